"""The copy for tools that keep a connection open: only what is published, swapped in whole, old clients can open it."""

import subprocess
import sys
import threading
from datetime import date

import pytest

from tasks.store.night_store import Store
from tasks.store.publication import publish_by_hand, unpublish_by_hand
from tasks.store.published_copy import copy_published
from tasks.system.database import DatabaseLimits, read_sql
from tasks.system.errors import FollowUpFailed
from tasks.system.workspace import Workspace
from tests.locks import held
from tests.makers import make_finished_run, read_rows

ORDER = {"q1": (["a", "b"], ["b", "a"])}
SETTINGS = {"store": {"published_copy": True}}

READER = """
import sys, duckdb
kept = duckdb.connect(sys.argv[1], read_only=True)
for line in sys.stdin:
    with duckdb.connect(sys.argv[1], read_only=True) as fresh:
        print([each.execute(line).fetchone()[0] for each in (kept, fresh)], flush=True)
"""


@pytest.fixture
def database(tmp_path):
    return tmp_path / "var" / "test.duckdb"


@pytest.fixture
def publish(database):
    def call(run_id, day, **given):
        night = date(2026, 11, day)
        make_finished_run(
            database, run_id, given.pop("order", ORDER), night=night, settings=SETTINGS, failed_checks=[], **given
        )
        return publish_by_hand(database, run_id)

    return call


def test_the_copy_has_what_is_published_with_views_and_comments(publish, database):
    make_finished_run(database, "computed", ORDER, night=date(2026, 11, 20), failed_checks=[])
    told = publish("r1", 28, scores_run_id="computed")
    copy = Workspace(database).published_copy

    assert copy == database.with_name("test.published.duckdb")
    assert told[-1].startswith(f"copy: {copy}, ")
    assert [row["run_id"] for row in read_rows(copy, "select run_id from runs")] == ["r1"]
    assert [row["doc_id"] for row in read_rows(copy, "select doc_id from latest_scores order by rank")] == ["b", "a"]
    described = "select * from duckdb_columns() where not internal and comment is not null and table_name = 'scores'"
    assert read_rows(copy, f"select count(*) as n from ({described})") == read_rows(
        database, f"select count(*) as n from ({described})"
    )
    for view in ("run_summary", "serving_benchmark", "kv_budget_use", "truncations", "fallbacks", "churn"):
        read_rows(copy, f"select * from {view}")
    left = {path.name for path in database.parent.iterdir() if path.is_file()}
    assert left == {"test.duckdb", "test.duckdb.lock", "test.published.duckdb", copy.resolve().name}


def test_every_table_is_copied_but_what_only_a_running_or_studied_run_needs(database):
    Store(database, DatabaseLimits("200MB", 1, database.parent / "spill")).prepare()
    text = read_sql("publication/copy_published")

    tables = {row["name"] for row in read_rows(database, "select table_name as name from duckdb_tables()")}

    assert {name for name in tables if f"insert into {name} " not in text} == {*("engine_steps", "schema_version")}


def test_a_connection_to_the_old_copy_goes_on_and_a_new_one_of_the_same_process_sees_the_new(publish, database):
    publish("r1", 28)
    reader = subprocess.Popen(
        [sys.executable, "-c", READER, str(Workspace(database).published_copy)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:

        def ask():
            reader.stdin.write("select distinct run_id from latest_scores\n")
            reader.stdin.flush()
            return reader.stdout.readline().strip()

        assert ask() == "['r1', 'r1']"
        publish("r2", 29)
        assert ask() == "['r1', 'r2']"
    finally:
        reader.kill()
        reader.wait()

    assert read_rows(Workspace(database).published_copy, "select distinct run_id from latest_scores") == [
        {"run_id": "r2"}
    ]
    unpublish_by_hand(database, "r2")
    assert read_rows(Workspace(database).published_copy, "select distinct run_id from latest_scores") == [
        {"run_id": "r1"}
    ]


@pytest.mark.fault(69)
def test_older_clients_can_open_the_copy(publish, database):
    publish("r1", 28)

    (tags,) = read_rows(Workspace(database).published_copy, "select tags from duckdb_databases() where not internal")

    assert dict(tags["tags"])["storage_version"].startswith("v1.")


def test_a_copy_that_cannot_be_made_leaves_the_scores_published_and_the_old_copy(publish, database, monkeypatch):
    publish("r1", 28)

    def full(self):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("tasks.store.published_copy.sync", full)
    with pytest.raises(FollowUpFailed, match=r"test\.published\.duckdb: cannot be written.*No space left"):
        publish("r2", 29)

    assert read_rows(Workspace(database).published_copy, "select distinct run_id from latest_scores") == [
        {"run_id": "r1"}
    ]
    assert read_rows(database, "select distinct run_id from latest_scores") == [{"run_id": "r2"}]
    assert [path.name for path in database.parent.iterdir() if ".part" in path.name] == []
    assert len(list(database.parent.glob("*.published.*"))) == 2  # the link and its file


def test_what_killed_copies_left_is_removed_and_other_files_are_not(publish, database):
    publish("r1", 28)
    for name in (
        ".test.published.duckdb.4711.part",
        ".test.published.duckdb.4711.part.wal",
        "test.published.mine.duckdb",
    ):
        database.with_name(name).write_bytes(b"x")

    publish("r2", 29)

    assert {path.name for path in database.parent.glob("*published*")} == {
        "test.published.duckdb",
        Workspace(database).published_copy.resolve().name,
        "test.published.mine.duckdb",
    }
    assert not list(database.parent.glob(".*part*"))


def test_the_copy_waits_for_a_lock_that_somebody_holds(publish, database):
    publish("r1", 28)
    store = Store(database, DatabaseLimits("200MB", 1, database.parent / "spill"))
    with held(database) as writer:
        timer = threading.Timer(0.1, writer.kill)
        timer.start()
        told = copy_published(store)
        timer.join()

    assert told.startswith("copy: ")
    assert read_rows(Workspace(database).published_copy, "select distinct run_id from latest_scores") == [
        {"run_id": "r1"}
    ]
