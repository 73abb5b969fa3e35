"""A checkpoint that is cut off at any byte leaves a database that opens and lacks nothing."""

import os
import shutil
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import duckdb
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.system.checkpoint_journal import HEADERS_BYTES, journal_of, roll_back
from tasks.system.database import DatabaseLimits, open_database
from tasks.system.errors import LogUnreadable, StoreError
from tests.locks import held
from tests.makers import ROOT

pytestmark = pytest.mark.fault(63)

LIMITS = DatabaseLimits("200MB", 1, Path("spill"))
BLOCK_BYTES = 262_144
PAGE_BYTES = 4096  # the kernel writes at least one, and looks for a SIGKILL between two
NUM_ROWS = {"before": 5_000, "after": 9_000}

KILLED = """
import os, sys
from pathlib import Path
from tasks.system import database as module
from tasks.system.database import DatabaseLimits, open_database

path, moment = Path(sys.argv[1]), sys.argv[2]
with open_database(path, DatabaseLimits("200MB", 1, path.parent)) as database:
    database.query_text("insert into nights select range from range(5000, 9000)")
    if moment == "begun":
        module.KeptDatabase.execute = lambda *arguments: os._exit(9)
    database.checkpoint()
    os._exit(9)
"""


def num_rows(path, *, read_only=True):
    with open_database(path, LIMITS, read_only=read_only, wait_s=0.1) as database:
        (row,) = database.query_text("select count(*) as found, sum(night) as total from nights").to_pylist()
    assert row["total"] == row["found"] * (row["found"] - 1) // 2
    return row["found"]


def extent(path, begin, end):
    return path.read_bytes()[begin:end]


@dataclass(frozen=True)
class Cut:
    """A database whose process was killed when its checkpoint had begun, and the same one when it was through."""

    begun: Path
    through: Path

    def torn(self, folder, num_new_bytes):
        """A copy whose checkpoint got so far into the file, all but its headers."""
        path = folder / "nights.duckdb"
        for name in self.begun.parent.glob("nights.duckdb*"):
            shutil.copy(name, folder)
        old, new = self.begun.read_bytes(), self.through.read_bytes()
        path.write_bytes(
            old[:HEADERS_BYTES] + new[HEADERS_BYTES:][:num_new_bytes] + old[HEADERS_BYTES:][num_new_bytes:]
        )
        return path


@pytest.fixture(scope="module")
def cut(tmp_path_factory):
    whole = tmp_path_factory.mktemp("whole") / "nights.duckdb"
    with open_database(whole, LIMITS) as database:
        database.query_text("create table nights as select range as night from range(5000)")
    paths = []
    for moment in ("begun", "through"):
        path = tmp_path_factory.mktemp(moment) / whole.name
        shutil.copy(whole, path)
        done = subprocess.run([sys.executable, "-c", KILLED, path, moment], cwd=ROOT, capture_output=True, text=True)
        assert done.returncode == 9, done.stderr
        paths.append(path)
    return Cut(*paths)


def test_the_fault_is_there_a_block_with_metadata_is_overwritten_before_the_header(cut, tmp_path):
    torn = cut.torn(tmp_path, PAGE_BYTES)
    journal_of(torn).unlink()

    with pytest.raises(duckdb.Error, match="computed checksum .* in block at location 12288"):
        duckdb.connect(str(torn), read_only=True)


@settings(max_examples=40)
@given(num_new_bytes=st.integers(0, 8 * PAGE_BYTES) | st.integers(0, 6 * BLOCK_BYTES), read_only=st.booleans())
def test_wherever_a_checkpoint_is_cut_off_nothing_is_lost(cut, tmp_path_factory, num_new_bytes, read_only):
    torn = cut.torn(tmp_path_factory.mktemp("torn"), num_new_bytes)

    assert num_rows(torn, read_only=read_only) == NUM_ROWS["after"]  # its log is still there

    assert not journal_of(torn).exists()
    assert num_rows(torn) == NUM_ROWS["after"]


def test_what_was_put_back_is_told(cut, tmp_path, caplog):
    torn = cut.torn(tmp_path, PAGE_BYTES)

    num_rows(torn)

    assert "a checkpoint was interrupted: 1 blocks were restored from" in caplog.text


def test_a_checkpoint_that_came_to_its_end_is_not_taken_back(cut, tmp_path, caplog):
    path = tmp_path / "nights.duckdb"
    shutil.copy(cut.through, path)
    shutil.copy(journal_of(cut.begun), journal_of(path))  # killed before it could be deleted

    assert num_rows(path) == NUM_ROWS["after"]

    assert not journal_of(path).exists()
    assert caplog.text == ""


def test_a_journal_whose_database_was_moved_away_is_nobodys(cut, tmp_path):
    path = tmp_path / "nights.duckdb"
    shutil.copy(journal_of(cut.begun), journal_of(path))

    with open_database(path, LIMITS) as database:
        database.query_text("create table nights as select range as night from range(3)")

    assert num_rows(path) == 3
    assert not journal_of(path).exists()


def test_no_journal_and_no_log_stay_behind_a_unit_of_work(cut, tmp_path):
    path = tmp_path / "nights.duckdb"
    shutil.copy(cut.through, path)

    with open_database(path, LIMITS) as database:
        database.query_text("insert into nights values (9000)")

    assert [each.name for each in tmp_path.iterdir()] == ["nights.duckdb"]
    assert num_rows(path) == NUM_ROWS["after"] + 1


def test_the_journal_of_a_checkpoint_that_failed_stays_until_the_next_opening(cut, tmp_path, monkeypatch):
    path = tmp_path / "nights.duckdb"
    shutil.copy(cut.through, path)

    def tears(_):
        with path.open("r+b") as stream:
            stream.seek(HEADERS_BYTES)
            stream.write(b"x" * PAGE_BYTES)
        raise StoreError("input/output error")

    with open_database(path, LIMITS) as database:
        database.query_text("insert into nights values (9000)")
        before = extent(path, HEADERS_BYTES, HEADERS_BYTES + BLOCK_BYTES)
        with monkeypatch.context() as disk:
            disk.setattr(database, "execute", tears)
            with pytest.raises(StoreError, match="input/output"):
                database.checkpoint()

    assert before in journal_of(path).read_bytes()
    assert num_rows(path) == NUM_ROWS["after"] + 1


def test_a_journal_is_left_alone_while_another_process_has_the_file(cut, tmp_path):
    torn = cut.torn(tmp_path, 0)
    with held(torn, "reader") as reader:
        assert not roll_back(torn)
        with pytest.raises(StoreError, match=f"process {reader.pid} .* holds its lock"):
            num_rows(torn)

    assert num_rows(torn) == NUM_ROWS["after"]


def test_by_a_link_the_log_and_the_journal_are_those_of_the_file_itself(cut, tmp_path):
    real, link = tmp_path / "data", tmp_path / "var" / "link.duckdb"
    real.mkdir()
    link.parent.mkdir()
    torn = cut.torn(real, PAGE_BYTES)
    link.symlink_to(torn)

    assert num_rows(link) == NUM_ROWS["after"]
    with open_database(link, LIMITS) as database:
        database.query_text("insert into nights values (9000)")

    assert [path.name for path in real.iterdir()] == [torn.name]
    assert list(link.parent.iterdir()) == [link]
    assert num_rows(torn) == NUM_ROWS["after"] + 1


def test_a_damaged_journal_stops_the_command_and_stays(cut, tmp_path):
    torn = cut.torn(tmp_path, PAGE_BYTES)
    os.truncate(journal_of(torn), 100)

    with pytest.raises(StoreError, match=r"nights\.duckdb: a checkpoint was interrupted, and .* nights.duckdb.journal"):
        num_rows(torn)

    assert journal_of(torn).stat().st_size == 100


@pytest.mark.parametrize("num_new_bytes", [4, 12, 20])
def test_a_header_that_was_torn_is_put_back_with_the_blocks(cut, tmp_path, num_new_bytes):
    path = tmp_path / "nights.duckdb"
    for name in cut.begun.parent.glob("nights.duckdb*"):
        shutil.copy(name, tmp_path)
    old, new = cut.begun.read_bytes(), cut.through.read_bytes()
    (at,) = [at for at in range(0, HEADERS_BYTES, PAGE_BYTES) if old[at : at + PAGE_BYTES] != new[at : at + PAGE_BYTES]]
    path.write_bytes(
        old[:at] + new[at : at + num_new_bytes] + old[at + num_new_bytes : HEADERS_BYTES] + new[HEADERS_BYTES:]
    )

    assert num_rows(path) == NUM_ROWS["after"]

    assert not journal_of(path).exists()


def test_a_journal_stays_until_duckdb_has_opened_the_file(cut, tmp_path):
    torn = cut.torn(tmp_path, PAGE_BYTES)
    log = torn.with_name(f"{torn.name}.wal")
    bad = bytearray(log.read_bytes())
    bad[-1] ^= 0xFF  # in an entry, which has a checksum; a changed length may read as a log that was cut short
    log.write_bytes(bad)

    with pytest.raises(LogUnreadable, match="WAL"):
        num_rows(torn)

    assert journal_of(torn).exists()
    log.unlink()
    assert num_rows(torn) == NUM_ROWS["before"]


def test_a_journal_with_a_changed_byte_is_not_put_back(cut, tmp_path):
    torn = cut.torn(tmp_path, PAGE_BYTES)
    content = bytearray(journal_of(torn).read_bytes())
    content[len(content) // 2] ^= 0xFF
    journal_of(torn).write_bytes(content)
    before = torn.read_bytes()

    with pytest.raises(
        StoreError, match=r"cannot be restored from nights\.duckdb\.journal: .*checksums.*docs/operations"
    ):
        num_rows(torn)

    assert torn.read_bytes() == before
    assert journal_of(torn).exists()


def test_another_file_beside_an_old_journal_is_left_alone(cut, tmp_path):
    path = tmp_path / "nights.duckdb"
    shutil.copy(journal_of(cut.begun), journal_of(path))
    path.write_bytes(b"a,b,c\n" * 50_000)

    with pytest.raises(StoreError, match="not a DuckDB database"):
        num_rows(path)

    assert path.read_bytes() == b"a,b,c\n" * 50_000


def test_the_kernel_may_take_a_part_of_a_write_and_give_a_part_of_a_read(cut, tmp_path, monkeypatch):
    torn = cut.torn(tmp_path, PAGE_BYTES)
    pread, pwrite = os.pread, os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda fd, content, at: pwrite(fd, content[:100_000], at))
    assert num_rows(torn) == NUM_ROWS["after"]

    monkeypatch.setattr(os, "pread", lambda fd, num_bytes, at: pread(fd, min(num_bytes, 100_000), at))
    with open_database(torn, LIMITS) as database:
        database.query_text("insert into nights values (9000)")
    assert num_rows(torn) == NUM_ROWS["after"] + 1


NOBODY_READS = """
import os, sys
from pathlib import Path
from tasks.system.database import DatabaseLimits, open_database
from tasks.system.errors import StoreError

path = Path(sys.argv[1])
if os.geteuid() == 0:  # who may write anything
    os.setuid(65534)
for wait_s in (0.1, 30.0):
    try:
        with open_database(path, DatabaseLimits("200MB", 1, path.parent), read_only=True, wait_s=wait_s) as database:
            print(database.query_text("select count(*) as n from nights").to_pylist(), flush=True)
    except StoreError as error:
        print(error, flush=True)
"""


def test_who_may_not_write_waits_for_a_checkpoint_and_sees_no_damage(cut):
    with ExitStack() as ended:
        # pytest closes its own folders to everybody else whenever another pytest starts
        folder = Path(ended.enter_context(tempfile.TemporaryDirectory(prefix="packrank-")))
        folder.chmod(0o755)
        path = folder / "nights.duckdb"
        shutil.copy(cut.through, path)
        writer = ended.enter_context(held(path))
        path.chmod(0o444)
        shutil.copy(journal_of(cut.begun), journal_of(path))  # as while a checkpoint is under way
        asked = subprocess.Popen(
            [sys.executable, "-c", NOBODY_READS, path], cwd=ROOT, stdout=subprocess.PIPE, text=True
        )
        ended.callback(asked.kill)

        assert f"process {writer.pid} " in asked.stdout.readline()

        writer.kill()
        assert asked.stdout.readline() == f"[{{'n': {NUM_ROWS['after']}}}]\n"
        asked.wait()
