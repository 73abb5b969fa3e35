"""Nights on a disk that fills up, tears or is older than its spool; only the model behind the pipe is a fake."""

import json
import random
import resource
import shutil
import subprocess
import sys
from contextlib import contextmanager
from datetime import date

import pytest

from tasks.nightly.night import run_night
from tasks.nightly.prepare import NightRequest, prepare_night
from tasks.system.errors import EngineError, StoreError
from tests.makers import FAKE_VLLM, asked, make_inputs, make_settings, select, value

LISTS = [0, 1, 2, 5, 9, 12]  # 0 + 0 + 1 + 2 + 4 + 5 windows of 4, stride 2
NUM_WINDOWS = 12


def make_night(folder, model_folder, **settings):
    folder.mkdir()
    settings["store__load_every_s"] = 3_600  # batches wait in the spool, however slow the machine
    values = {name.replace("__", "."): given for name, given in settings.items()}
    config = make_settings(folder, model_folder, make_inputs(folder / "in", LISTS) | values)
    return prepare_night(NightRequest(config=config, night=date(2026, 11, 29)))


@pytest.fixture(scope="module")
def rows(model_folder, tmp_path_factory):
    """What an undisturbed night ends with."""
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("PYTHONPATH", str(FAKE_VLLM))
        prepared = make_night(tmp_path_factory.mktemp("whole") / "a", model_folder)
        run_night(prepared)
    return all_rows(prepared)


def all_rows(prepared, run_id=None):
    """Everything that a run's ranking says, times and batch numbers left out; of the only run if none is named."""
    of_run = "true" if run_id is None else f"run_id = '{run_id}'"
    return {
        table: select(prepared, f"select {columns} from {table} where {of_run} order by all")
        for table, columns in {
            "scores": "* exclude (run_id)",
            "rankings": "* exclude (run_id, scores_run_id)",
            "windows": "query_id, round, window_no, attempt, docs, num_listed",
            "outcomes": "* exclude (run_id)",
            "quarantine": "* exclude (run_id)",
        }.items()
    }


def spooled(prepared):
    return sorted((prepared.workspace.folder / "spool").glob("*/*/*/[0-9]*"))


FULL_DISK = """
import json, shutil, subprocess, sys
from datetime import date
from pathlib import Path

from tasks.system.errors import PackrankError
from tasks.nightly.night import run_night
from tasks.nightly.prepare import NightRequest, prepare_night
from tests.makers import make_finished_run, select

config, var = Path(sys.argv[1]), Path(sys.argv[2])


def ended(day, *listeners):
    try:
        return run_night(prepare_night(NightRequest(config=config, night=date(2026, 11, day))), *listeners)
    except PackrankError as error:
        return str(error)


def fill(progress):
    if progress.done >= 6:
        with (var / "filler").open("wb", buffering=0) as stream:
            for size in (1 << 20, 4096, 1):
                try:
                    while stream.write(bytes(size)):
                        pass
                except OSError:
                    pass


def rows():
    return select(prepare_night(NightRequest(config=config)), "select run_id, count(*) as n from scores group by run_id")


earlier = {"q": (["a", "b"], ["b", "a"])}
make_finished_run(var / "test.duckdb", "earlier", earlier, status="published", night=date(2026, 11, 28))
told = {"full": ended(29, fill), "readable": rows()}
told["spooled"] = len(list(var.glob("spool/*/*/*/[0-9]*")))
(var / "test.duckdb.lock").unlink()
told["again"] = ended(29)
(var / "filler").unlink()
told["freed"] = ended(29)
told["rows"] = rows()
shutil.copy(var / "test.duckdb", sys.argv[3])
subprocess.run(["mount", "-o", "remount,ro", var], check=True)
told["read_only"] = ended(30)
print(json.dumps(told))
"""


@pytest.mark.fault(62)
def test_a_night_on_a_full_disk_says_so_and_goes_on_when_there_is_room_again(model_folder, fake_vllm, rows, tmp_path):
    """A small disk of its own, full to the last byte in mid-run: neither spool nor database can be written."""
    fake_vllm(log=str(tmp_path / "asked"))
    prepared = make_night(tmp_path / "a", model_folder)
    var, kept = tmp_path / "a" / "var", tmp_path / "kept.duckdb"
    var.mkdir()
    mount = f'mount -t tmpfs -o size=40m tmpfs {var} && exec {sys.executable} -c "$0" "$@"'
    words = ["unshare", "-Urm", "bash", "-c", mount, FULL_DISK, tmp_path / "a" / "nightly.toml", var, kept]
    done = subprocess.run(words, capture_output=True, text=True, timeout=600)
    if "unshare:" in done.stderr or "mount:" in done.stderr:
        pytest.skip(f"no disk of our own to be had: {done.stderr}")
    told = json.loads(done.stdout)

    assert "No space left on device. Its scores are lost, earlier batches are safe" in told["full"]
    assert told["readable"] == [{"run_id": "earlier", "n": 2}]
    assert told["spooled"] > 0
    assert "No space left on device" in told["again"]
    assert len(told["rows"]) == 2
    assert "Read-only file system" in told["read_only"]
    assert [told[name].count("\n") for name in ("full", "again", "read_only")] == [0, 0, 0]
    assert len(asked(tmp_path / "asked")) < 2 * NUM_WINDOWS  # what was in the spool was not asked again
    shutil.copy(kept, prepared.settings.database_path)
    assert all_rows(prepared, told["freed"]) == rows


@contextmanager
def files_limited_to(num_bytes):
    """No file of this process or its children can grow beyond that: what a full disk is to DuckDB."""
    hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))


@pytest.fixture
def half_done(model_folder, fake_vllm, tmp_path):
    """A night whose engine died half-way, with its batches in the spool."""
    fake_vllm(log=str(tmp_path / "first"), die_at=2)
    settings = {"packing__driver": "generate", "packing__max_engine_starts": 1, "packing__max_poison_prompts": 0}
    prepared = make_night(tmp_path / "a", model_folder, **settings)  # a call is a batch
    with pytest.raises(EngineError):
        run_night(prepared)
    assert len(spooled(prepared)) > 3
    return prepared


@pytest.mark.fault(62, 63, 65)
def test_what_could_not_be_moved_into_the_file_survives_a_torn_or_missing_log(half_done, fake_vllm, rows, tmp_path):
    """The database could not grow: its log has the batches, its file has not, and then the log is torn.

    DuckDB drops a torn end, and all of a missing log, without a word. The batches are still in the spool, since they
    leave it only after the checkpoint: the next start loads them, and asks only what nobody was asked.
    """
    prepared, database = half_done, half_done.settings.database_path
    log = database.with_name(f"{database.name}.wal")
    num_spooled = len(spooled(prepared))
    with files_limited_to(database.stat().st_size), pytest.raises(StoreError, match="File too large"):
        run_night(prepared)
    assert len(spooled(prepared)) == num_spooled
    written = log.read_bytes()
    assert len(written) > 1_000
    shutil.copytree(prepared.workspace.folder, tmp_path / "kept")

    for number, size in enumerate((len(written), random.Random(0).randrange(len(written)), 0)):
        shutil.rmtree(prepared.workspace.folder)
        shutil.copytree(tmp_path / "kept", prepared.workspace.folder)
        log.write_bytes(written[:size])
        fake_vllm(log=str(tmp_path / f"rest-{number}"))
        run_night(prepared)

        assert all_rows(prepared) == rows
        assert len(asked(tmp_path / "first")) + len(asked(tmp_path / f"rest-{number}")) == NUM_WINDOWS
        assert spooled(prepared) == []
        assert not log.exists()


@pytest.mark.fault(63)
def test_a_restored_backup_and_a_newer_spool_make_a_whole_night(half_done, fake_vllm, rows, tmp_path, caplog):
    """The backup lacks the batches that were loaded after it was made, the rows set aside among them."""
    prepared, database = half_done, half_done.settings.database_path
    backup = shutil.copy(database, tmp_path / "backup")
    num_lost = len(spooled(prepared))
    fake_vllm(log=str(tmp_path / "first"), die_at=4)
    with pytest.raises(EngineError):
        run_night(prepared)
    assert value(prepared, "select count(*) from batches") == num_lost
    assert spooled(prepared)
    shutil.copy(backup, database)

    fake_vllm(log=str(tmp_path / "rest"))
    run_night(prepared)

    assert f"lost_batches={num_lost}" in caplog.text
    assert all_rows(prepared) == rows
    assert value(prepared, "select count(*) from batches where driver = 'lost'") == num_lost - 1  # 0 is committed again
    numbers = [row["batch_no"] for row in select(prepared, "select batch_no from batches order by batch_no")]
    assert numbers == list(range(len(numbers)))
    assert 0 < len(asked(tmp_path / "rest")) <= NUM_WINDOWS
