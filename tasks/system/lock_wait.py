"""Waiting for a file that another process has locked: for how long, and what the log says meanwhile."""

import fcntl
import logging
import os
import struct
import sys
import time
from pathlib import Path

import psutil

from tasks.system.errors import DatabaseLocked, first_line

FIRST_WARNING_S = 5.0
WARN_EVERY_S = 60.0
FLOCK = "hhqqi4x"  # struct flock of 64-bit Linux: type, whence, start, length, process id

logger = logging.getLogger(__name__)


class LockWait:
    """One wait: retries every 10 ms, later every 250 ms, and names the holder in a warning each minute."""

    def __init__(self, path: Path, wait_s: float) -> None:
        self._path = path
        self._wait_s = wait_s
        self._began = time.monotonic()
        self._warn_at_s = FIRST_WARNING_S
        self._has_warned = False

    @property
    def waited_s(self) -> float:
        """Since the wait began."""
        return time.monotonic() - self._began

    @property
    def left_s(self) -> float:
        """Until it is over."""
        return max(0.0, self._wait_s - self.waited_s)

    def pause(self, holder: str) -> None:
        """Sleeps until the next try.

        Args:
            holder: who has the lock, as `lock_holder` tells it.

        Raises:
            DatabaseLocked: the time is over.
        """
        waited_s = self.waited_s
        if waited_s >= self._wait_s:
            raise DatabaseLocked(
                f"{self._path}: cannot open the database: {holder} holds its lock, waited {waited_s:.0f} s. Close it "
                "there, or end that process."
            )
        if waited_s >= self._warn_at_s:
            self._warn_at_s = waited_s + WARN_EVERY_S
            self._has_warned = True
            logger.warning(
                "%s: waiting for the lock of %s: close it there, or end that process. waited_s=%.0f wait_s=%.0f",
                self._path,
                holder,
                waited_s,
                self._wait_s,
            )
        time.sleep(0.01 if waited_s < FIRST_WARNING_S else 0.25)

    def end(self) -> None:
        """The lock was had: says so if there was a warning."""
        if self._has_warned:
            logger.warning("%s: the lock is free again. waited_s=%.0f", self._path, self.waited_s)


def lock_holder(path: Path) -> str:
    """The process that has the file locked, in words; Linux knows which it is.

    Only for a file that this process does not have open: to close it again frees all of the process's locks on it.
    """
    if sys.platform != "linux":
        return "another process"
    wanted = struct.pack(FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)  # any lock is in its way
    try:
        with path.open("rb") as stream:
            kind, *_, pid = struct.unpack(FLOCK, fcntl.fcntl(stream, fcntl.F_GETLK, wanted))
    except OSError as error:
        return f"another process ({first_line(error)})"
    if kind == fcntl.F_UNLCK or pid <= 0:  # freed meanwhile, or held in another container
        return "another process"
    return f"process {pid}{_described(pid)}"


def _described(pid: int) -> str:
    """The program and the user of a process, where they can be known."""
    try:
        process = psutil.Process(pid)
        return f" ({' '.join(process.cmdline())[:60]}, user {process.username()})"
    except psutil.Error:
        return ""
