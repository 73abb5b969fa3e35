"""The ledger: what is committed is durable, loaded once, and read while others write."""

import multiprocessing
import os
import subprocess
import sys
import time
from datetime import UTC, date, datetime
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest

from tasks.database import DatabaseLimits, open_database
from tasks.errors import AlreadyRunning, StoreError
from tasks.keep.ledger import Ledger, LoadPace
from tasks.keep.spool import Spool
from tasks.keep.store import NewRun, Store, run_lock
from tasks.keep.tables import SCHEMAS, BatchId, BatchRows, promptless_batch_row

RUN = "2026-11-29-test-00000000"


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


def make_tables(batch_no, num_scores=2):
    batch_id = BatchId(RUN, 0, batch_no)
    row = promptless_batch_row(batch_id, datetime(2026, 11, 29, tzinfo=UTC))
    scores = pa.Table.from_pylist(
        [
            {
                "run_id": RUN,
                "query_id": f"q{batch_no}",
                "doc_id": f"d{place}",
                "rank": place + 1,
                "score": 1.0 / (place + 1),
                "score_kind": "reciprocal_rank",
                "first_stage_rank": place + 1,
                "status": "ranked",
            }
            for place in range(num_scores)
        ],
        SCHEMAS["scores"],
    )
    return BatchRows().tables(batch_id, row) | {"scores": scores}


def make_run(**given):
    base = {
        "run_id": RUN,
        "name": "test",
        "night": date(2026, 11, 29),
        "started_at": datetime(2026, 11, 29, 1, 30, tzinfo=UTC),
        "settings": "{}",
        "resolved": "{}",
        "input_digest": "0",
        "input_partition": None,
        "model": "m",
        "model_identity": "i",
        "strategy": "sliding",
        "decode_mode": "first_token",
        "versions": "{}",
        "git_commit": None,
        "host": "h",
        "flow_run_id": None,
        "is_limited": False,
        "recipe": "{}",
        "reuse_run_id": None,
    }
    return NewRun(**(base | given))


def find_run(store, run_id=RUN):
    return store.query("run/find_run", {"run_id": run_id}).to_pylist()[0]


def count(store, table):
    with open_database(store.path, store.limits) as database:
        return database.query_text(f"select count(*) as n from {table}").to_pylist()[0]["n"]


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
    assert store.next_batch_no(RUN, 0) == 3


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
        database.execute("load/insert_scores", tables={"incoming": turned})
        rows = database.query_text("select rank, score, doc_id from scores order by rank").to_pylist()

    assert rows == [{"rank": 1, "score": 1.0, "doc_id": "d0"}, {"rank": 2, "score": 0.5, "doc_id": "d1"}]


def hold(path, seconds, ready):
    connection = duckdb.connect(path)
    ready.set()
    time.sleep(seconds)
    connection.close()


@pytest.fixture
def held(store):
    """The database held by another process for some seconds."""
    context = multiprocessing.get_context("spawn")
    children = []

    def start(seconds):
        ready = context.Event()
        child = context.Process(target=hold, args=(str(store.path), seconds, ready))
        child.start()
        children.append(child)
        assert ready.wait(20)

    yield start
    for child in children:
        child.kill()
        child.join()


@pytest.mark.slow
@pytest.mark.fault(13)
def test_a_reader_waits_for_a_short_lock_and_gives_up_on_a_long_one(store, held):
    held(0.4)
    with open_database(store.path, store.limits, read_only=True, wait_s=10.0) as database:
        assert database.query_text("select count(*) as n from runs").num_rows == 1

    held(30.0)
    with pytest.raises(StoreError, match="lock"), open_database(store.path, store.limits, read_only=True, wait_s=0.2):
        pass


@pytest.mark.slow
def test_a_held_database_leaves_batches_in_the_spool_and_the_night_goes_on(store, spool, held, caplog):
    ledger = Ledger(store, spool, RUN, 0, LoadPace(every_s=0, max_share=1))
    held(3.0)

    ledger.commit(ledger.next_id(), make_tables(0))
    ledger.flush()
    assert len(spool.batches()) == 1
    assert "stay in the spool" in caplog.text

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

    statuses = {row: find_run(store, row)["status"] for row in ("2026-11-29-test-aaaaaaaa", "2026-11-28-test-bbbbbbbb")}

    assert statuses == {"2026-11-29-test-aaaaaaaa": "superseded", "2026-11-28-test-bbbbbbbb": "failed"}
    assert find_run(store, "2026-11-29-test-cccccccc")["status"] == "running"


def test_a_run_taken_up_again_keeps_its_start(store):
    store.begin_run(make_run())
    store.update("finish_run", {"run_id": RUN, "status": "failed", "error": "boom"})

    store.begin_run(make_run(started_at=datetime(2027, 1, 1, tzinfo=UTC), host="other"))

    row = find_run(store)
    assert (row["status"], row["host"], row["error"]) == ("running", "other", None)
    assert row["started_at"] == datetime(2026, 11, 29, 1, 30, tzinfo=UTC)


@pytest.mark.fault(69)
def test_a_database_of_a_newer_packrank_is_refused(store):
    store.update("add_schema_file", {"file_name": "999_later"})

    with pytest.raises(StoreError, match="999_later"):
        store.prepare()


def test_preparing_twice_changes_nothing(store):
    store.begin_run(make_run())
    store.prepare()

    assert find_run(store)["status"] == "running"


@pytest.mark.fault(69)
def test_a_file_that_is_no_database_is_named(tmp_path, limits):
    path = tmp_path / "x.duckdb"
    path.write_bytes(b"not a database" * 500)

    with pytest.raises(StoreError, match=r"x\.duckdb: cannot open the database"), open_database(path, limits):
        pass


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
from tasks.keep.store import run_lock
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


@pytest.mark.slow
@pytest.mark.fault(59)
def test_a_million_rows_load_in_bulk(store, spool):
    """Row by row this takes minutes; ten seconds decide."""
    rows = 1_000_000
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
    started = time.monotonic()

    store.load_spool(spool, RUN)

    assert time.monotonic() - started < 10
    assert count(store, "scores") == rows
    assert os.path.getsize(store.path) < 100e6
