"""What a disk can do to the database: fill up, tear, lie elsewhere, hold something else; and several writers at once."""

import json
import os
import random
import re
import shutil
import sqlite3
import struct
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.store.loader import Ledger, LoadPace
from tasks.store.night_store import Store
from tasks.store.runs import Runs
from tasks.store.spool import Spool
from tasks.store.tables import SCHEMAS
from tasks.system.database import STORAGE_VERSION, DatabaseLimits, open_database
from tasks.system.disk import FIXED_BYTES, RunSize, file_system_of, require_space, told_when_full, warn_of_network_disk
from tasks.system.errors import LogUnreadable, StoreError
from tasks.system.run_lock import run_lock
from tests.ledger_rows import LIMITS, RUN, count, make_run, make_store, make_tables
from tests.makers import ROOT


def make_scores(num_queries, num_docs=100):
    rows = num_queries * num_docs
    columns = {
        "run_id": pa.repeat(RUN, rows),
        "query_id": pa.array([f"q{number // num_docs}" for number in range(rows)]),
        "doc_id": pa.array([f"d{number * 7919 % 1_000_003}" for number in range(rows)]),
        "rank": pa.array([number % num_docs + 1 for number in range(rows)], pa.int32()),
        "score": pa.array([1.0 / (number % num_docs + 1) for number in range(rows)], pa.float32()),
        "score_kind": pa.repeat("reciprocal_rank", rows),
        "model_score": pa.nulls(rows, pa.float32()),
        "first_stage_rank": pa.array([number % num_docs + 1 for number in range(rows)], pa.int32()),
        "first_stage_score": pa.nulls(rows, pa.float64()),
        "status": pa.repeat("ranked", rows),
    }
    return pa.table(columns).cast(SCHEMAS["scores"])


def log_of(store):
    return store.path.with_name(f"{store.path.name}.wal")


def error_of(call, *arguments):
    try:
        call(*arguments)
    except StoreError as error:
        return str(error)
    return None


def run_python(code, *arguments):
    return subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)], cwd=ROOT, capture_output=True, text=True, timeout=300
    )


# ---- a log that is torn


LOADED_BUT_NOT_MOVED = """
import os, sys
from pathlib import Path
from tasks.system.database import DatabaseLimits, open_database
from tasks.store import night_store as store
from tasks.store.spool import Spool

folder, run_id = Path(sys.argv[1]), sys.argv[2]
batches = Spool(folder / "spool", run_id).batches()
with open_database(folder / "test.duckdb", DatabaseLimits("200MB", 1, folder / "spill")) as database:
    for batch in batches:
        with database.transaction():
            store._load(database, run_id, {batch: store._rows_of(batch)})
    os._exit(9)  # between commit and checkpoint
"""


@pytest.fixture(scope="module")
def crashed(tmp_path_factory):
    """A database whose log has six committed batches that its file lacks."""
    folder = tmp_path_factory.mktemp("crashed") / "var"
    folder.mkdir()
    store = make_store(folder)
    spool = Spool(folder / "spool", RUN)
    for number in range(6):
        spool.commit(0, number, make_tables(number, num_scores=50))
    done = run_python(LOADED_BUT_NOT_MOVED, folder, RUN)
    assert done.returncode == 9, done.stderr
    assert log_of(store).stat().st_size > 10_000
    return folder


@pytest.mark.fault(63)
@settings(max_examples=25)
@given(share=st.floats(0, 1))
def test_whatever_is_cut_off_the_log_nothing_is_lost(crashed, tmp_path, share):
    folder = tmp_path / "var"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(crashed, folder)
    store, spool = Store(folder / "test.duckdb", LIMITS), Spool(folder / "spool", RUN)
    os.truncate(log_of(store), int(share * log_of(store).stat().st_size))

    store.load_spool(spool, RUN)

    assert (count(store, "batches"), count(store, "scores")) == (6, 300)
    assert count(store, "(select distinct query_id, doc_id from scores)") == 300
    assert spool.batches() == []
    assert not log_of(store).exists()


@pytest.mark.fault(63)
def test_a_log_that_cannot_be_read_is_told_with_the_step_that_recovers_it(crashed, tmp_path):
    folder = tmp_path / "var"
    shutil.copytree(crashed, folder)
    store, spool = Store(folder / "test.duckdb", LIMITS), Spool(folder / "spool", RUN)
    written = log_of(store).read_bytes()
    shutil.copy(store.path, tmp_path / "kept")
    shutil.copytree(folder / "spool", tmp_path / "spool")
    within = [match.start() for match in re.finditer(b"reciprocal_rank", written)]  # entries, which have checksums
    for place in (within[0], within[-1], len(written) - 1):
        shutil.copy(tmp_path / "kept", store.path)
        shutil.copytree(tmp_path / "spool", folder / "spool", dirs_exist_ok=True)
        bad = bytearray(written)
        bad[place] ^= 0xFF
        log_of(store).write_bytes(bad)
        told = error_of(store.load_spool, spool, RUN)
        assert re.search(r"Corrupt WAL file.*Move test\.duckdb\.wal aside and run the same", told)
        assert "\n" not in told
        assert log_of(store).read_bytes() == bad
        with pytest.raises(LogUnreadable) as torn:
            store.find_run(RUN)
        store.set_log_aside(str(torn.value))
        store.load_spool(spool, RUN)
        assert (count(store, "batches"), count(store, "scores")) == (6, 300)


KILLED_AS_THE_FIRST_LEAVES = """
import os, sys
from pathlib import Path
from tasks.system.database import DatabaseLimits
from tasks.store.spool import Spool, SpooledBatch
from tasks.store.night_store import Store

class LastBatch(SpooledBatch):
    def remove(self):
        SpooledBatch.remove(self)
        os._exit(9)

class LastSpool(Spool):
    def batches(self):
        return [LastBatch(each.shard, each.batch_no, each.folder) for each in Spool.batches(self)]

folder, run_id = Path(sys.argv[1]), sys.argv[2]
store = Store(folder / "test.duckdb", DatabaseLimits("200MB", 1, folder / "spill"))
store.load_spool(LastSpool(folder / "spool", run_id), run_id)
"""


@pytest.mark.fault(63)
def test_a_batch_that_has_left_the_spool_does_not_need_the_log(tmp_path):
    """The same at the one moment that decides, which a killed process seldom meets."""
    store, spool = make_store(tmp_path), Spool(tmp_path / "spool", RUN)
    for number in range(2):
        spool.commit(0, number, make_tables(number))

    assert run_python(KILLED_AS_THE_FIRST_LEAVES, tmp_path, RUN).returncode == 9
    assert len(spool.batches()) == 1
    log_of(store).unlink(missing_ok=True)
    store.load_spool(spool, RUN)

    assert (count(store, "batches"), count(store, "scores")) == (2, 4)


LOADER = """
import sys
from pathlib import Path
from tasks.system.database import DatabaseLimits
from tasks.store.spool import Spool
from tasks.store.night_store import Store

folder, run_id = Path(sys.argv[1]), sys.argv[2]
spool = Spool(folder / sys.argv[3], run_id)
store = Store(folder / "test.duckdb", DatabaseLimits("200MB", 1, folder / "spill"))
print("ready", flush=True)
for number in range(30):
    store.load_spool(spool, run_id, wait_s=30)
"""


@pytest.mark.fault(63)
def test_a_loader_killed_at_any_moment_and_its_log_gone_loses_nothing(tmp_path):
    """kill -9 at seeded moments, the worst tear each time; the spool is the only other place where batches are."""
    store, spool, moments = make_store(tmp_path), Spool(tmp_path / "spool", RUN), random.Random(63)
    committed = 0
    for _ in range(8):
        for number in range(committed, committed + 5):
            spool.commit(0, number, make_tables(number, num_scores=200))
        committed += 5
        process = subprocess.Popen(
            [sys.executable, "-c", LOADER, tmp_path, RUN, "spool"], cwd=ROOT, stdout=subprocess.PIPE, text=True
        )
        assert process.stdout.readline() == "ready\n"
        time.sleep(moments.uniform(0, 0.3))
        process.kill()
        process.wait()
        process.stdout.close()
        log_of(store).unlink(missing_ok=True)

    store.load_spool(spool, RUN)

    assert (count(store, "batches"), count(store, "scores")) == (committed, committed * 200)


@pytest.mark.fault(63)
def test_batches_that_a_backup_lacks_are_noted_once_and_their_queries_computed_again(tmp_path, caplog):
    store, spool = make_store(tmp_path), Spool(tmp_path / "spool", RUN)
    for number in (2, 4):  # 0, 1 and 3 were in the database that was lost
        spool.commit(0, number, make_tables(number))

    ledger = Ledger(store, spool, RUN, 0, LoadPace(every_s=60, max_share=1))

    assert "lost_batches=3" in caplog.text
    assert ledger.is_new  # batch 0 has the rows set aside
    assert [ledger.next_id().batch_no, ledger.next_id().batch_no] == [0, 5]
    assert not ledger.is_new
    assert count(store, "scores") == 0  # without rankings they are no whole queries
    ledger.commit(replace(ledger.next_id(), batch_no=0), make_tables(0))
    ledger.flush()
    caplog.clear()
    assert not Ledger(store, spool, RUN, 0, LoadPace(every_s=60, max_share=1)).is_new
    assert caplog.text == ""


# ---- a log that is large


LARGE_LOG = """
import os, sys
import duckdb
connection = duckdb.connect(sys.argv[1])
connection.execute("set wal_autocheckpoint = '1TB'; set auto_checkpoint_skip_wal_threshold = 1000000000000")
for number in range(30):
    connection.execute(
        "insert into scores select $r, 'q' || i // 100, md5(i::varchar || $n), i % 100 + 1, 1, 'k', null, 1, null, 'ranked' "
        "from range(30000) t(i)", {"r": sys.argv[2], "n": str(number)}
    )
os._exit(9)
"""


@pytest.mark.fault(64)
def test_a_large_log_is_replayed_within_a_small_memory_limit(tmp_path):
    store = make_store(tmp_path)
    done = run_python(LARGE_LOG, store.path, RUN)
    assert done.returncode == 9, done.stderr
    assert log_of(store).stat().st_size > 50e6

    small = Store(store.path, DatabaseLimits("64MB", 2, tmp_path / "spill"))
    small.prepare()

    assert count(small, "scores") == 900_000
    assert not log_of(store).exists()


@pytest.mark.fault(65)
def test_the_log_is_empty_after_every_load(tmp_path):
    store, spool = make_store(tmp_path), Spool(tmp_path / "spool", RUN)
    for number in range(5):
        spool.commit(0, number, make_tables(number))
        store.load_spool(spool, RUN)
        assert not log_of(store).exists()


@pytest.mark.fault(65, 68)
def test_a_reader_in_another_thread_lets_every_checkpoint_through(tmp_path):
    """Its transaction would stop them; threads take turns, so it is never open beside one."""
    store, spool, stop = make_store(tmp_path), Spool(tmp_path / "spool", RUN), threading.Event()
    read = []

    def keep_reading():
        while not stop.is_set():
            with store.unit_of_work() as database, database.transaction():
                read.append(database.query_text("select count(*) as n from scores").to_pylist()[0]["n"])

    reader = threading.Thread(target=keep_reading)
    reader.start()
    for number in range(10):
        spool.commit(0, number, make_tables(number))
        store.load_spool(spool, RUN, wait_s=30)
        assert spool.batches() == []
    stop.set()
    reader.join()

    assert read == sorted(read)
    assert count(store, "scores") == 20


# ---- several at once


@pytest.mark.fault(67, 68)
def test_four_threads_on_one_store_write_and_read_without_a_conflict(tmp_path):
    """One connection a unit of work; the same row is updated, the same tables are appended to."""
    store, errors = make_store(tmp_path), []
    for number in range(8):
        Spool(tmp_path / f"spool-{number % 4}", RUN).commit(0, number, make_tables(number))

    def work(number):
        try:
            for _ in range(5):
                store.write(lambda database: Runs(database).note_checks(RUN, []))
                store.find_run(RUN)
            store.load_spool(Spool(tmp_path / f"spool-{number}", RUN), RUN, wait_s=30)
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=[number]) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert errors == []
    assert (count(store, "batches"), count(store, "scores")) == (8, 16)


@pytest.mark.fault(13, 67)
def test_two_processes_load_at_once_and_each_waits_its_turn(tmp_path):
    store = make_store(tmp_path)
    for number in range(12):
        Spool(tmp_path / f"spool-{number % 2}", RUN).commit(0, number, make_tables(number))
    with open_database(store.path, LIMITS):  # both meet a lock
        words = [sys.executable, "-c", LOADER, tmp_path, RUN]
        loaders = [
            subprocess.Popen([*words, f"spool-{number}"], cwd=ROOT, stdout=subprocess.PIPE, text=True)
            for number in range(2)
        ]
        assert [loader.stdout.readline() for loader in loaders] == ["ready\n", "ready\n"]
    assert [(loader.communicate(timeout=300), loader.returncode)[1] for loader in loaders] == [0, 0]

    assert (count(store, "batches"), count(store, "scores")) == (12, 24)


@pytest.mark.fault(66)
def test_after_a_failed_statement_the_first_error_is_told_and_the_next_batch_is_written(tmp_path):
    def insert(database, *tables):
        with database.transaction():
            for table in tables:
                database.append("scores", table)

    store = make_store(tmp_path)
    good, bad = make_tables(0)["scores"], make_tables(1)["scores"]
    bad = bad.set_column(2, "doc_id", pa.nulls(2, pa.string()))
    with store.unit_of_work() as database:
        with pytest.raises(StoreError, match="NOT NULL constraint failed"):
            insert(database, good, bad)
        insert(database, good)
        with pytest.raises(StoreError, match="NOT NULL constraint failed"):
            insert(database, bad)
        insert(database, good)

    assert count(store, "scores") == 4


# ---- what lies at the database's path


def checksum(block):
    """DuckDB's, over a block of whole words."""
    total = 5381
    for (word,) in struct.iter_unpack("<Q", block):
        total ^= word * 0xBF58476D1CE4E5B9 & 0xFFFFFFFFFFFFFFFF
    return total


def make_newer(path):
    """The file as a later DuckDB would write it: its storage version, and the header's checksum anew."""
    header = bytearray(path.read_bytes())
    struct.pack_into("<Q", header, 12, 5_000)
    struct.pack_into("<Q", header, 0, checksum(bytes(header[8:4096])))
    path.write_bytes(header)


def make_sqlite(path):
    with sqlite3.connect(path) as connection:
        connection.execute("create table runs (run_id text)")
    connection.close()


FOREIGN = {
    "a text": (lambda path: path.write_text("run_id,score\n" * 500), "the file is not a DuckDB database"),
    "a short text": (lambda path: path.write_text("hi"), "the file is not a DuckDB database"),
    "SQLite": (make_sqlite, "the file is not a DuckDB database"),
    "Parquet": (lambda path: pq.write_table(pa.table({"a": [1]}), path), "the file is not a DuckDB database"),
    "nothing": (lambda path: path.write_bytes(b""), "the file is empty, 0 bytes"),
    "a folder": (lambda path: path.mkdir(), "Is a directory"),
}
DAMAGED = {
    "cut in half": (
        lambda path: os.truncate(path, path.stat().st_size // 2),
        "Could not read enough bytes|the file is truncated",
    ),
    "cut in its header": (lambda path: os.truncate(path, 5_000), "Could not read enough bytes"),
    "overwritten": (lambda path: path.write_bytes(path.read_bytes()[:4096] + bytes(8192)), "Corrupt database file"),
    "newer": (make_newer, rf"storage version number 5000.* between 64 and \d+; this is DuckDB {duckdb.__version__}"),
}


@pytest.mark.fault(63, 69)
@pytest.mark.parametrize("what", [*FOREIGN, *DAMAGED])
def test_what_is_no_database_is_told_in_one_line_and_left_as_it_is(tmp_path, what):
    path = tmp_path / "test.duckdb"
    if what in DAMAGED:
        make_store(tmp_path)
    make, words = (FOREIGN | DAMAGED)[what]
    make(path)
    before = path.read_bytes() if path.is_file() else None
    store = Store(path, replace(LIMITS, temp_directory=tmp_path / "spill"))

    for start in (lambda: store.find_run(RUN), store.prepare):
        with pytest.raises(StoreError, match=rf"test\.duckdb.*({words})|({words}).*test\.duckdb") as told:
            start()
        assert "\n" not in str(told.value)
        assert re.search(r"'The database cannot be opened'|or another database", str(told.value))
    assert (path.read_bytes() if path.is_file() else None) == before


@pytest.mark.fault(63)
@pytest.mark.parametrize("share", [0.3, 0.6, 0.9, 0.999])
def test_a_file_whose_end_is_missing_is_not_written_to(tmp_path, share):
    """What it needs to open may be there, and the rest be read only days later."""
    path = make_store(tmp_path).path
    os.truncate(path, int(share * path.stat().st_size))
    before = path.read_bytes()

    with pytest.raises(StoreError, match="Could not read enough bytes|the file is truncated"):
        Store(path, replace(LIMITS, temp_directory=tmp_path / "spill")).prepare()

    assert path.read_bytes() == before


KILLED_AS_IT_IS_MADE = """
import os, sys
from pathlib import Path
from tasks.system.database import DatabaseLimits
from tasks.store.night_store import Store

Path.rename = lambda *arguments: os._exit(9)  # the file is made aside, and has its name at last
Store(Path(sys.argv[1]), DatabaseLimits("200MB", 1, Path("spill"))).prepare()
"""


@pytest.mark.parametrize("num_bytes", [0, 4_096, 8_192, None])
def test_a_process_killed_while_it_makes_the_database_leaves_none_and_the_next_makes_it(tmp_path, num_bytes):
    store = Store(tmp_path / "test.duckdb", replace(LIMITS, temp_directory=tmp_path / "spill"))
    if num_bytes is None:
        assert run_python(KILLED_AS_IT_IS_MADE, store.path).returncode == 9
    else:
        (tmp_path / ".test.duckdb.new").write_bytes(bytes(num_bytes))  # within the first milliseconds
        (tmp_path / "test.duckdb.wal").write_bytes(b"of a file that was moved away")
    assert not store.path.exists()

    store.prepare()
    store.begin_run(make_run())

    assert store.find_run(RUN).run_id == RUN
    assert {path.name.split("-")[0] for path in tmp_path.iterdir()} <= {"test.duckdb", "test.duckdb.wal.bad"}


@pytest.mark.fault(20)
def test_somebody_elses_database_gets_no_tables_of_ours(tmp_path):
    path = tmp_path / "test.duckdb"
    with duckdb.connect(str(path)) as connection:
        connection.execute("create table runs (run_id varchar)")
    store = Store(path, replace(LIMITS, temp_directory=tmp_path / "spill"))

    assert store.find_run(RUN) is None
    with pytest.raises(StoreError, match="has tables, but none of packrank's"):
        store.prepare()
    with duckdb.connect(str(path)) as connection:
        assert connection.execute("show tables").fetchall() == [("runs",)]


NOBODY = """
import ctypes, os, sys
from pathlib import Path
from tasks.system.database import DatabaseLimits, open_database
from tasks.system.errors import LogUnreadable, StoreError
from tasks.system.run_lock import run_lock

path = Path(sys.argv[1])
if os.geteuid() == 0:  # may write anything, but not without its capabilities
    version = (ctypes.c_uint32 * 2)(0x20080522, 0)
    assert ctypes.CDLL(None).capset(version, (ctypes.c_uint32 * 6)()) == 0
for enter in (lambda: open_database(path, DatabaseLimits("200MB", 1, path.parent)), lambda: run_lock(path, "r")):
    try:
        with enter():
            print("opened")
    except StoreError as error:
        print(error)
"""


@pytest.mark.fault(62)
def test_a_database_that_may_not_be_written_is_told_in_one_line(tmp_path):
    folder = tmp_path / "var"
    folder.mkdir()
    store = make_store(folder)
    for path in (store.path, folder):
        path.chmod(0o444 if path.is_file() else 0o555)
    done = run_python(NOBODY, store.path)
    folder.chmod(0o755)

    first, second = done.stdout.splitlines()
    assert "cannot open the database" in first
    assert "Permission denied" in first
    assert "cannot open the run lock" in second


@pytest.mark.fault(69)
def test_a_new_database_has_the_storage_version_that_is_set_and_keeps_it(tmp_path):
    store = make_store(tmp_path)
    statement = "select tags['storage_version'] as version from duckdb_databases() where not internal"
    with store.unit_of_work() as database:
        assert database.query_text(statement).to_pylist() == [{"version": f"{STORAGE_VERSION}+"}]
    with Store(store.path, store.limits, storage_version="v1.0.0").unit_of_work() as database:
        assert database.query_text(statement).to_pylist() == [{"version": f"{STORAGE_VERSION}+"}]


@pytest.mark.fault(63)
def test_a_stale_log_beside_a_restored_backup_is_refused(tmp_path):
    """An older storage version takes it for its own, and the file is then neither of the two."""
    store = make_store(tmp_path)
    backup = shutil.copy(store.path, tmp_path / "backup")
    store.write(lambda database: Runs(database).note_checks(RUN, ["a"]))
    crash = "import duckdb, os, sys; c = duckdb.connect(sys.argv[1]); c.execute('delete from runs'); os._exit(9)"
    run_python(crash, store.path)
    assert log_of(store).exists()
    shutil.copy(backup, store.path)

    with pytest.raises(StoreError, match=r"WAL.*does not match.*Move test\.duckdb\.wal aside"):
        store.find_run(RUN)
    log_of(store).unlink()
    assert store.find_run(RUN).run_id == RUN


# ---- room


@pytest.mark.fault(62)
def test_without_room_for_twice_the_estimate_nothing_begins(tmp_path):
    night = RunSize(num_queries=10_000, num_candidates=10**6, num_windows=90_000, num_slots=1_800_000, id_bytes=36)
    assert 150e6 < night.num_bytes < 250e6
    require_space(tmp_path / "not" / "there", night.num_bytes, "database and spool")

    huge = shutil.disk_usage(tmp_path).total
    with pytest.raises(
        StoreError, match=r"[\d,]+ MB free, needs [\d,]+ MB: 2 times what database and spool may take\. Free the disk"
    ):
        require_space(tmp_path, huge, "database and spool")


@pytest.mark.fault(62)
def test_the_estimate_holds_for_scores_of_long_ids(tmp_path):
    store, spool = make_store(tmp_path), Spool(tmp_path / "spool", RUN)
    empty = store.path.stat().st_size
    scores = make_scores(1_000)
    ids = pa.array([f"{random.Random(number).getrandbits(128):036x}" for number in range(scores.num_rows)])
    scores = scores.set_column(2, "doc_id", ids)
    for number in range(20):
        spool.commit(0, number, make_tables(number) | {"scores": scores.slice(number * 5_000, 5_000)})
    spooled = sum(path.stat().st_size for path in (tmp_path / "spool").rglob("*.parquet"))
    store.load_spool(spool, RUN)

    written = store.path.stat().st_size - empty + spooled
    estimate = RunSize(0, scores.num_rows, 0, 0, id_bytes=36).num_bytes - FIXED_BYTES
    assert written < estimate < 3 * written


@pytest.mark.fault(62)
def test_a_full_disk_is_our_error_wherever_it_is_met_and_other_errors_are_not(tmp_path):
    with (
        pytest.raises(StoreError, match=r"x: No space left on device\. What was committed is safe"),
        told_when_full(tmp_path),
    ):
        raise OSError(28, "No space left on device", "x")
    with pytest.raises(FileNotFoundError), told_when_full(tmp_path):
        (tmp_path / "nothing").read_bytes()


@pytest.mark.fault(62)
def test_the_run_lock_on_a_full_disk_is_an_error_of_the_store():
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full here")
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        path = Path(folder) / "x.duckdb"
        path.with_name("x.duckdb.lock").symlink_to("/dev/full")
        with pytest.raises(StoreError, match="run lock"), run_lock(path, RUN):
            pass


MOUNTS = r"""sysfs /sys sysfs rw 0 0
/dev/vda / ext4 rw,relatime 0 0
proc /proc proc rw,relatime 0 0
10.0.0.1:/export /srv/share nfs4 rw,vers=4.2 0 0
/dev/sdb1 /srv/share/local xfs rw 0 0
//host/share /mnt/two\040words cifs rw 0 0
me@host:/ /home/me/far fuse.sshfs rw,nosuid 0 0
/dev/sdc1 /data ext4 rw 0 0
host:/data /data nfs rw 0 0
"""


@pytest.fixture
def mount(tmp_path_factory, monkeypatch):
    """A host with other mounts, as its /proc tells them."""

    def mounted(text):
        folder = tmp_path_factory.mktemp("proc")
        (folder / "self").mkdir()
        (folder / "self" / "mounts").write_text(text)
        (folder / "filesystems").write_text("nodev\tnfs\n\text4\n")
        monkeypatch.setattr("psutil.PROCFS_PATH", str(folder))

    return mounted


@pytest.mark.fault(71)
@pytest.mark.parametrize(
    ("folder", "kind"),
    [
        ("/var/lib/packrank", "ext4"),
        ("/srv/share", "nfs4"),
        ("/srv/share/var", "nfs4"),
        ("/srv/shared", "ext4"),
        ("/srv/share/local/var", "xfs"),
        ("/mnt/two words/var", "cifs"),
        ("/home/me/far/away", "fuse.sshfs"),
        ("/data/var", "nfs"),  # mounted over the local one
    ],
)
def test_the_file_system_of_a_folder_is_that_of_the_nearest_mount(mount, folder, kind):
    mount(MOUNTS)

    assert file_system_of(Path(folder)) == kind


@pytest.mark.fault(71)
def test_a_database_on_a_network_file_system_is_warned_of_and_a_local_one_is_not(tmp_path, mount, caplog):
    mount(MOUNTS + f"host:/x {tmp_path.resolve()} nfs4 rw 0 0\n")

    make_store(tmp_path)  # begins a run

    (line,) = caplog.messages
    assert "a network file system (nfs4)" in line
    assert "local disk" in line
    caplog.clear()
    warn_of_network_disk(Path("/"))
    assert caplog.messages == []


# ---- large tables, exact totals, UTC


@pytest.mark.fault(60)
def test_two_million_score_rows_need_no_index_in_memory(tmp_path):
    """A text key of three columns ran out of 64 MB here."""
    store = Store(tmp_path / "test.duckdb", DatabaseLimits("64MB", 1, tmp_path / "spill"))
    store.prepare()
    spool, scores = Spool(tmp_path / "spool", RUN), make_scores(2_000)
    for number in range(10):
        spool.commit(0, number, make_tables(number) | {"scores": scores})
        store.load_spool(spool, RUN)

    assert count(store, "scores") == 2_000_000
    with store.unit_of_work() as database:
        keys = database.query_text(
            "select distinct table_name from duckdb_constraints() where constraint_type = 'PRIMARY KEY'"
        )
    assert set(keys.column(0).to_pylist()) == {"runs", "batches"}


@pytest.fixture(scope="module")
def columns(tmp_path_factory):
    """Name, column and type of every column of a fresh database."""
    store = make_store(tmp_path_factory.mktemp("columns"))
    with store.unit_of_work() as database:
        return database.query_text(
            "select table_name, column_name, data_type from duckdb_columns() where not internal"
        ).to_pylist()


@pytest.mark.fault(72)
def test_counts_and_totals_are_integers_in_every_table_and_view(columns):
    integers = {"INTEGER", "BIGINT", "SMALLINT", "UINTEGER", "UBIGINT", "USMALLINT"}
    counted = ("num_", "total_input", "total_generated", "successful_requests")
    measured = ("_tokens", "_blocks", "_passages", "_count", "block_budget", "blocks_used")
    found = [row for row in columns if row["column_name"].startswith(counted) or row["column_name"].endswith(measured)]

    assert len(found) > 60
    assert [row for row in found if row["data_type"] not in integers] == []
    assert [
        row for row in columns if row["data_type"] in ("HUGEINT", "UHUGEINT") or "DECIMAL" in row["data_type"]
    ] == []


@pytest.mark.fault(72)
def test_totals_above_2_to_the_53_are_exact_in_pandas_and_parquet(tmp_path):
    store, odd = make_store(tmp_path), 2**53 + 1
    batch = make_tables(0)["batches"].to_pylist()[0] | {"prompt_tokens": odd, "num_prompts": 1}
    rows = pa.Table.from_pylist([batch, batch | {"batch_no": 1, "prompt_tokens": 1}], SCHEMAS["batches"])
    with store.unit_of_work() as database:
        database.append("batches", rows)
        totals = [
            database.query_text("select prompt_tokens as total from run_summary"),
            database.query_text("select total_input_tokens as total from serving_benchmark"),
        ]

    for total in totals:
        pq.write_table(total, tmp_path / "total.parquet")
        assert pq.read_table(tmp_path / "total.parquet").column("total").to_pylist() == [odd + 1]
        assert total.to_pandas()["total"].tolist() == [odd + 1]


@pytest.mark.fault(72)
@pytest.mark.parametrize("report", sorted((ROOT / "sql" / "reports").glob("*.sql")), ids=lambda path: path.stem)
def test_a_report_has_no_128_bit_sums(tmp_path, report):
    store = make_store(tmp_path)
    with store.unit_of_work() as database:
        types = database.query_text(report.read_text(encoding="utf-8")).schema.types

    assert [str(each) for each in types if pa.types.is_decimal(each)] == []


def test_every_time_is_of_a_zone(columns):
    times = [row for row in columns if "TIME" in row["data_type"]]
    assert {row["data_type"] for row in times} == {"TIMESTAMP WITH TIME ZONE"}
    assert {row["column_name"] for row in columns if row["column_name"].endswith("_at")} == {
        row["column_name"] for row in times
    }


def test_times_are_read_in_utc_wherever_the_machine_is(tmp_path):
    code = (
        "import sys; from pathlib import Path; from tests.ledger_rows import make_store; "
        "store = make_store(Path(sys.argv[1])); "
        "print(store.find_run(sys.argv[2]).started_at.isoformat())"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, tmp_path, RUN],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "TZ": "Asia/Seoul"},
    )
    assert datetime.fromisoformat(done.stdout.strip()) == datetime(2026, 11, 29, 1, 30, tzinfo=UTC)
    assert done.stdout.strip().endswith("+00:00")


@pytest.mark.fault(61)
def test_the_limits_of_the_database_stand_in_the_run_record():
    from tasks.settings import load_settings

    stored = json.loads(load_settings(ROOT / "configs" / "sample.toml").model_dump_json())["store"]
    assert stored["memory_limit"] == "1GB"
    assert stored["threads"] == 2
