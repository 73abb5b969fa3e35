"""The lock of a database's runs: one run writes at a time, whichever process or host it is in."""

import fcntl
import json
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tasks.system.errors import AlreadyInProgress, AlreadyRunning, StoreError, first_line

LOCK_POLL_S = 2.0  # a night that waits for another to end, which takes hours


@contextmanager
def run_lock(database: Path, run_id: str) -> Iterator[None]:
    """Holds `{database}.lock` for a whole run, freed by the kernel even after kill -9; the file tells who holds it.

    Raises:
        AlreadyRunning: another process holds it; the message names it. AlreadyInProgress where it runs this very run.
        StoreError: the folder cannot be written.
    """
    path = _lock_path(database)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        stream = path.open("a+", encoding="utf-8")
    except OSError as error:
        raise StoreError(f"{path}: cannot open the run lock: {first_line(error)}") from error
    with stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            stream.seek(0)
            holder, told = _holder(stream.read())
            refusal = AlreadyInProgress if holder == run_id else AlreadyRunning
            raise refusal(f"{database}: {told} holds the run lock. Wait for it to end.") from error
        except OSError as error:
            raise StoreError(
                f"{path}: this file system cannot lock ({first_line(error)}). Put [store] database on a local disk."
            ) from error
        _write_holder(stream.fileno(), path, run_id)
        yield


def await_run_lock(database: Path) -> None:
    """Returns when nobody holds the run lock; another process may still take it first."""
    while True:
        with _lock_path(database).open("a+", encoding="utf-8") as stream, suppress(BlockingIOError):
            fcntl.flock(stream, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return
        time.sleep(LOCK_POLL_S)


def _lock_path(database: Path) -> Path:
    return database.with_name(f"{database.name}.lock")


def _write_holder(descriptor: int, path: Path, run_id: str) -> None:
    told = json.dumps({"host": socket.gethostname(), "pid": os.getpid(), "run_id": run_id})
    try:
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, told.encode(), 0)
    except OSError as error:
        raise StoreError(f"{path}: cannot write the run lock: {first_line(error)}") from error


def _holder(text: str) -> tuple[str | None, str]:
    """The run that the lock's file names, and who holds it in words."""
    try:
        told = json.loads(text)
        return told["run_id"], f"run {told['run_id']} (process {told['pid']} on {told['host']})"
    except (ValueError, KeyError, TypeError):
        return None, "another process"
