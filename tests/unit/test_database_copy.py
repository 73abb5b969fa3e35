"""The copy for tools that keep a connection open: only what is published, swapped in whole, old clients can open it."""

import subprocess
import sys
from datetime import date

import pytest

from tasks.database import DatabaseLimits, open_database
from tasks.errors import FollowUpFailed
from tasks.keep.store import Store
from tasks.offer.database_copy import published_path
from tasks.offer.publication import publish_by_hand, unpublish_by_hand
from tests.makers import make_finished_run

pytestmark = pytest.mark.slow  # whole databases, written again and again

ORDER = {"q1": (["a", "b"], ["b", "a"])}
SETTINGS = {"store": {"published_copy": True}}

READER = """
import sys, duckdb
connection = duckdb.connect(sys.argv[1], read_only=True)
for line in sys.stdin:
    print(connection.execute(line).fetchall(), flush=True)
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


def rows(path, statement):
    with open_database(path, DatabaseLimits("200MB", 1, path.parent / "spill"), read_only=True) as opened:
        return opened.query_text(statement).to_pylist()


def test_the_copy_has_what_is_published_with_views_and_comments(publish, database):
    make_finished_run(database, "computed", ORDER, night=date(2026, 11, 20), failed_checks=[])
    told = publish("r1", 28, scores_run_id="computed")
    copy = published_path(database)

    assert copy == database.with_name("test.published.duckdb")
    assert told[-1].startswith(f"copy: {copy}, ")
    assert [row["run_id"] for row in rows(copy, "select run_id from runs")] == ["r1"]
    assert [row["doc_id"] for row in rows(copy, "select doc_id from latest_scores order by rank")] == ["b", "a"]
    described = "select * from duckdb_columns() where not internal and comment is not null and table_name = 'scores'"
    assert rows(copy, f"select count(*) as n from ({described})") == rows(
        database, f"select count(*) as n from ({described})"
    )
    for view in ("run_summary", "serving_benchmark", "kv_budget_use", "truncations", "fallbacks", "churn"):
        rows(copy, f"select * from {view}")
    left = {path.name for path in database.parent.iterdir() if path.is_file()}
    assert left == {"test.duckdb", "test.duckdb.lock", "test.published.duckdb"}


def test_every_table_is_copied_but_what_only_a_running_or_studied_run_needs(database, repo_root):
    Store(database, DatabaseLimits("200MB", 1, database.parent / "spill")).prepare()
    text = (repo_root / "sql" / "offer" / "copy_published.sql").read_text(encoding="utf-8")

    tables = {row["name"] for row in rows(database, "select table_name as name from duckdb_tables()")}

    assert {name for name in tables if f"insert into {name} " not in text} == {
        *("outcomes", "engine_steps", "schema_files")
    }


def test_a_reader_of_the_old_copy_goes_on_and_a_new_one_sees_the_new(publish, database):
    publish("r1", 28)
    reader = subprocess.Popen(
        [sys.executable, "-c", READER, str(published_path(database))],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:

        def ask():
            reader.stdin.write("select distinct run_id from latest_scores\n")
            reader.stdin.flush()
            return reader.stdout.readline().strip()

        assert ask() == "[('r1',)]"
        publish("r2", 29)
        assert ask() == "[('r1',)]"
    finally:
        reader.kill()
        reader.wait()

    assert rows(published_path(database), "select distinct run_id from latest_scores") == [{"run_id": "r2"}]
    unpublish_by_hand(database, "r2")
    assert rows(published_path(database), "select distinct run_id from latest_scores") == [{"run_id": "r1"}]


@pytest.mark.fault(69)
def test_older_clients_can_open_the_copy(publish, database):
    publish("r1", 28)

    (tags,) = rows(published_path(database), "select tags from duckdb_databases() where not internal")

    assert dict(tags["tags"])["storage_version"].startswith("v1.")


def test_a_copy_that_cannot_be_made_leaves_the_scores_published_and_the_old_copy(publish, database, monkeypatch):
    publish("r1", 28)

    def full(self):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("tasks.offer.database_copy.sync", full)
    with pytest.raises(FollowUpFailed, match=r"test\.published\.duckdb: cannot be written.*No space left"):
        publish("r2", 29)

    assert rows(published_path(database), "select distinct run_id from latest_scores") == [{"run_id": "r1"}]
    assert rows(database, "select distinct run_id from latest_scores") == [{"run_id": "r2"}]
    assert [path.name for path in database.parent.iterdir() if ".part" in path.name] == []
