"""The ledger: what is committed is durable, loaded once, and read while others write."""

import os
import subprocess
import sys
import threading
import time
from dataclasses import replace
from datetime import UTC, date, datetime
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest

from tasks.report.explain import explain_query
from tasks.report.run_lookup import find_ranked_run
from tasks.report.run_report import report_run
from tasks.report.sql_shell import run_statement
from tasks.store import night_store as store_module
from tasks.store.loader import Ledger, LoadPace
from tasks.store.night_store import ShardProgress, Store
from tasks.store.publication import publish_by_hand
from tasks.store.runs import Runs
from tasks.store.spool import Spool
from tasks.store.tables import SCHEMAS, BatchId
from tasks.system.database import DatabaseLimits, open_database
from tasks.system.errors import AlreadyRunning, StoreError
from tasks.system.run_lock import run_lock
from tests.ledger_rows import RUN, count, make_run, make_tables
from tests.locks import held


@pytest.fixture
def limits(tmp_path):
    return DatabaseLimits("200MB", 1, tmp_path / "spill")


@pytest.fixture
def store(tmp_path, limits):
    made = Store(tmp_path / "var" / "test.duckdb", limits)
    made.prepare()
    return made


@pytest.fixture
def spool(tmp_path):
    return Spool(tmp_path / "spool", RUN)


def test_a_batch_is_whole_or_not_there(spool, tmp_path):
    spool.commit(0, 3, make_tables(3))
    aside = tmp_path / "spool" / RUN / "0" / ".00000004.part"
    aside.mkdir()
    (aside / "scores.parquet").write_bytes(b"torn")  # a process killed while it wrote

    assert [(batch.shard, batch.batch_no) for batch in spool.batches()] == [(0, 3)]
    assert spool.batches()[0].read("scores").num_rows == 2
    assert spool.batches()[0].read("windows") is None


@pytest.mark.fault(62)
def test_a_batch_that_cannot_be_written_says_so_and_harms_no_other(spool, tmp_path):
    spool.commit(0, 0, make_tables(0))
    parent = tmp_path / "spool" / RUN / "0"
    (parent / ".00000001.part").write_text("a file where the folder should be")

    with pytest.raises(StoreError, match="Its scores are lost, earlier batches are safe"):
        spool.commit(0, 1, make_tables(1))

    assert len(spool.batches()) == 1


def test_loading_empties_the_spool_and_loading_again_adds_nothing(store, spool):
    for number in range(3):
        spool.commit(0, number, make_tables(number))

    assert store.load_spool(spool, RUN) == 3
    assert store.load_spool(spool, RUN) == 0
    assert (count(store, "batches"), count(store, "scores")) == (3, 6)
    assert store.resume_shard(spool, RUN, 0) == ShardProgress(2, [], 0)


@pytest.mark.fault(12)
def test_a_batch_left_in_the_spool_after_it_was_loaded_is_not_loaded_twice(store, spool):
    """Killed between DuckDB's commit and the folder's deletion: the folder is still there, and so are its rows."""
    spool.commit(0, 0, make_tables(0))
    store.load_spool(spool, RUN)
    spool.commit(0, 0, make_tables(0))
    spool.commit(0, 1, make_tables(1))

    store.load_spool(spool, RUN)

    assert (count(store, "batches"), count(store, "scores")) == (2, 4)
    assert spool.batches() == []


@pytest.mark.fault(66)
def test_a_load_that_fails_leaves_database_and_spool_as_they_were(store, spool):
    spool.commit(0, 0, make_tables(0))
    bad = make_tables(1)
    bad["scores"] = bad["scores"].set_column(2, "doc_id", pa.nulls(2, pa.string()))
    spool.commit(0, 1, bad)

    with pytest.raises(StoreError, match="NOT NULL"):
        store.load_spool(spool, RUN)

    assert (count(store, "batches"), count(store, "scores")) == (0, 0)
    assert len(spool.batches()) == 2


@pytest.mark.fault(20)
def test_rows_are_loaded_by_name(store, spool):
    tables = make_tables(0)
    turned = tables["scores"].select(tables["scores"].column_names[::-1])

    with open_database(store.path, store.limits) as database:
        database.append("scores", turned)
        rows = database.query_text("select rank, score, doc_id from scores order by rank").to_pylist()

    assert rows == [{"rank": 1, "score": 1.0, "doc_id": "d0"}, {"rank": 2, "score": 0.5, "doc_id": "d1"}]


@pytest.mark.fault(13)
def test_a_reader_waits_for_a_short_lock_and_gives_up_on_a_long_one(store):
    with held(store.path) as holder:
        with (
            pytest.raises(StoreError, match="lock"),
            open_database(store.path, store.limits, read_only=True, wait_s=0.1),
        ):
            pass
        threading.Timer(0.1, holder.kill).start()
        with open_database(store.path, store.limits, read_only=True, wait_s=60.0) as database:
            assert database.query_text("select count(*) as n from runs").num_rows == 1


def test_a_held_database_leaves_batches_in_the_spool_and_the_night_goes_on(store, spool, caplog, monkeypatch):
    monkeypatch.setattr(store_module, "LOAD_WAIT_S", 0.05)
    ledger = Ledger(store, spool, RUN, 0, LoadPace(every_s=0, max_share=1))
    with held(store.path) as holder:
        ledger.commit(ledger.next_id(), make_tables(0))
        ledger.flush()
        assert len(spool.batches()) == 1
        assert "stay in the spool" in caplog.text

        threading.Timer(0.1, holder.kill).start()
        ledger.close()  # waits for the lock
    assert spool.batches() == []
    assert count(store, "scores") == 2


def test_loads_become_rarer_as_they_take_longer(store, spool):
    ledger = Ledger(store, spool, RUN, 0, LoadPace(every_s=0, max_share=1e-6))

    for number in range(3):
        ledger.commit(ledger.next_id(), make_tables(number))
        ledger.flush()

    assert count(store, "batches") == 1  # the next load is some ten hours away
    assert len(spool.batches()) == 2
    ledger.close()
    assert count(store, "batches") == 3
    assert LoadPace(every_s=5, max_share=0.005).pause_s(0.01) == 5
    assert LoadPace(every_s=5, max_share=0.005).pause_s(0.1) == pytest.approx(20)


def test_a_new_ledger_loads_what_was_left_and_numbers_on(store, spool):
    spool.commit(0, 0, make_tables(0))
    spool.commit(0, 1, make_tables(1))

    ledger = Ledger(store, spool, RUN, 0, LoadPace(every_s=60, max_share=1))

    assert not ledger.is_new
    assert ledger.next_id() == BatchId(RUN, 0, 2)
    assert count(store, "batches") == 2


def test_killed_runs_are_failed_and_unfinished_ones_of_the_night_superseded(store):
    store.begin_run(make_run(run_id="2026-11-29-test-aaaaaaaa"))
    store.begin_run(make_run(run_id="2026-11-28-test-bbbbbbbb", night=date(2026, 11, 28)))
    store.begin_run(make_run(run_id="2026-11-29-test-cccccccc"))

    names = ("2026-11-29-test-aaaaaaaa", "2026-11-28-test-bbbbbbbb", "2026-11-29-test-cccccccc")
    runs = [store.find_run(name) for name in names]

    assert [run.status for run in runs] == ["superseded", "failed", "running"]
    assert [(run.error or "").partition(":")[0] for run in runs] == ["killed", "killed", ""]
    assert [run.finished_at is None for run in runs] == [False, False, True]


def test_a_run_taken_up_again_keeps_its_start(store):
    store.begin_run(make_run(input_warnings=["old"], failed_checks=["a"], reuse_run_id="earlier"))
    store.write(lambda database: Runs(database).finish(RUN, "failed", "boom"))
    before = store.find_run(RUN)

    store.begin_run(before.taken_up(make_run(started_at=datetime(2027, 1, 1, tzinfo=UTC), host="other"), reuses=True))

    run = store.find_run(RUN)
    assert (before.status, before.error) == ("failed", "boom")
    assert (run.status, run.host, run.error, run.finished_at) == ("running", "other", None, None)
    assert run.started_at == datetime(2026, 11, 29, 1, 30, tzinfo=UTC)
    assert run == replace(before, status="running", host="other", error=None, finished_at=None)
    assert before.taken_up(make_run(), reuses=False).reuse_run_id is None


def make_older_database(path):
    """As the packrank with 31 migrations left it: what tells them, and a run."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with duckdb.connect(str(path)) as connection:
        connection.execute("create table schema_files (file_name varchar primary key, applied_at timestamptz not null)")
        for name in ("001_runs", "022_publication_order", "031_inside_an_engine_step"):
            connection.execute("insert into schema_files values (?, now())", [name])
        connection.execute("create table runs (run_id varchar primary key, name varchar, status varchar)")
        connection.execute("insert into runs values ('r', 'test', 'published')")


@pytest.mark.fault(20, 69)
@pytest.mark.parametrize(
    "open_it",
    [
        lambda store: store.prepare(),
        lambda store: store.find_run("r"),
        lambda store: publish_by_hand(store.path, "r"),
        lambda store: run_statement(store.path, "select 1"),
        lambda store: run_statement(store.path, "runs"),
        lambda store: find_ranked_run(store.path, "r"),
        lambda store: explain_query(store.path, "r", "q"),
        lambda store: report_run(store.path, "r", None),
    ],
)
def test_a_database_of_an_older_packrank_is_refused_and_stays_as_it_is(tmp_path, limits, open_it):
    store = Store(tmp_path / "var" / "old.duckdb", limits)
    make_older_database(store.path)
    before = store.path.read_bytes()

    with pytest.raises(StoreError) as refused:
        open_it(store)

    assert type(refused.value).exit_code == 1
    assert str(refused.value) == (
        f"{store.path}: was made by an older packrank, its schema is 31; this packrank reads and writes schema 33 "
        "only. Export the runs that you need with the older packrank (packrank export), then name a new file as "
        "[store] database."
    )
    assert store.path.read_bytes() == before


@pytest.mark.fault(69)
def test_a_database_of_a_newer_packrank_is_refused(store):
    with store.unit_of_work() as database:
        database.query_text("update schema_version set number = 34")

    with pytest.raises(StoreError, match="made by a newer packrank, its schema is 34"):
        Store(store.path, store.limits).prepare()


def test_preparing_twice_changes_nothing(store):
    store.begin_run(make_run())
    store.prepare()

    assert store.find_run(RUN).status == "running"


@pytest.mark.fault(61)
def test_duckdbs_limits_are_set(store, tmp_path):
    with open_database(store.path, store.limits) as database:
        (row,) = database.query_text(
            "select current_setting('memory_limit') as memory, current_setting('threads') as threads, "
            "current_setting('temp_directory') as spill, current_setting('TimeZone') as zone"
        ).to_pylist()

    assert row == {"memory": "190.7 MiB", "threads": 1, "spill": str(tmp_path / "spill"), "zone": "UTC"}


LOCK_HOLDER = """
import sys, time
from pathlib import Path
from tasks.system.run_lock import run_lock
with run_lock(Path(sys.argv[1]), "2026-11-29-other-11111111"):
    print("held", flush=True)
    time.sleep(60)
"""


@pytest.mark.fault(12, 17)
def test_one_run_at_a_time_and_kill_9_frees_the_lock(tmp_path):
    path = tmp_path / "x.duckdb"
    holder = subprocess.Popen([sys.executable, "-c", LOCK_HOLDER, str(path)], stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout.readline() == "held\n"
        with (
            pytest.raises(AlreadyRunning, match=rf"2026-11-29-other-11111111 \(process {holder.pid}"),
            run_lock(path, RUN),
        ):
            pass
    finally:
        holder.kill()
        holder.wait()

    with run_lock(path, RUN):
        assert RUN in Path(f"{path}.lock").read_text(encoding="utf-8")


def test_a_folder_that_cannot_be_written_is_an_error_of_the_store(tmp_path):
    (tmp_path / "file").write_text("x")

    with pytest.raises(StoreError, match="cannot open the run lock"), run_lock(tmp_path / "file" / "x.duckdb", RUN):
        pass


@pytest.mark.fault(59)
def test_many_rows_load_in_bulk(store, spool):
    """Row by row this takes half a minute of a processor."""
    rows = 100_000
    scores = pa.table(
        {
            "run_id": pa.repeat(RUN, rows),
            "query_id": pa.array([f"q{number // 100}" for number in range(rows)]),
            "doc_id": pa.array([f"d{number % 100}" for number in range(rows)]),
            "rank": pa.array([number % 100 + 1 for number in range(rows)], pa.int32()),
            "score": pa.array([1.0 / (number % 100 + 1) for number in range(rows)], pa.float32()),
            "score_kind": pa.repeat("reciprocal_rank", rows),
            "model_score": pa.nulls(rows, pa.float32()),
            "first_stage_rank": pa.array([number % 100 + 1 for number in range(rows)], pa.int32()),
            "first_stage_score": pa.nulls(rows, pa.float64()),
            "status": pa.repeat("ranked", rows),
        }
    ).cast(SCHEMAS["scores"])
    spool.commit(0, 0, make_tables(0) | {"scores": scores})
    started_s = time.process_time()

    store.load_spool(spool, RUN)

    assert time.process_time() - started_s < 6
    assert count(store, "scores") == rows
    assert os.path.getsize(store.path) < 20e6
