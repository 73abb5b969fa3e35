"""The disk below the database: whether there is room for a run, that it is full, and whether it is a network's.

Knows nothing of what is written there.
"""

import errno
import logging
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from tasks.system.errors import StoreError

logger = logging.getLogger(__name__)

NETWORK_FILE_SYSTEMS = {
    *("nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "afs", "ceph", "glusterfs", "lustre", "beegfs", "gpfs", "davfs"),
    *("fuse.sshfs", "fuse.s3fs", "fuse.gcsfuse", "fuse.rclone", "fuse.glusterfs", "fuse.juicefs", "fuse.ceph-fuse"),
}

FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS}

MARGIN = 2  # times the estimate must be free
# Measured with windows of 20 and ids of 36 characters, bytes in the spool and in the database together.
FIXED_BYTES = 8_000_000  # an empty database, logs, the report page
WINDOW_BYTES = 400  # its row and its outcome's, and as much of the spool's files as is not rows
SLOT_BYTES = 16  # a candidate of a window: its places in docs and outcome_order, and its log-probability
SCORE_BYTES = 20  # and twice its document's id
RANKING_BYTES = 200
FIELD_BYTES = 120  # of a candidate: its text in the scratch database, its tokens, its share of offsets and digests
STAGED_CANDIDATE_BYTES = 60  # joined, ordered, and written by query
TOKEN_BYTES = 4


@dataclass(frozen=True, slots=True)
class RunSize:
    """What decides how much a run writes; all of the run, as an upper bound."""

    num_queries: int
    num_candidates: int
    num_windows: int
    num_slots: int  # candidates over all windows
    id_bytes: float  # a document's, on average

    @property
    def num_bytes(self) -> int:
        """Of database and spool, where nothing can be loaded before the end."""
        windows = self.num_windows * WINDOW_BYTES + self.num_slots * SLOT_BYTES
        scores = self.num_candidates * (SCORE_BYTES + 2 * self.id_bytes)
        return FIXED_BYTES + windows + int(scores) + self.num_queries * RANKING_BYTES


def staging_bytes(num_candidates: int, num_documents: int, max_passage_tokens: int, num_fields: int = 0) -> int:
    """What laying out a night's input takes: half of the most, since few passages are as long as they may be."""
    num_tokens = min(num_candidates, num_documents) * max_passage_tokens
    candidate_bytes = STAGED_CANDIDATE_BYTES + num_fields * FIELD_BYTES
    return (num_tokens * TOKEN_BYTES + num_candidates * candidate_bytes) // 2


def require_space(folder: Path, num_bytes: int, what: str) -> None:
    """Refuses to begin what the disk has no room for.

    Args:
        folder: where it is written; need not be there yet.
        num_bytes: an estimate of what is written.
        what: is written, for the message.

    Raises:
        StoreError: less than MARGIN times the estimate is free.
    """
    while not folder.exists():
        folder = folder.parent
    free = shutil.disk_usage(folder).free
    if free < MARGIN * num_bytes:
        raise StoreError(
            f"{folder}: {_megabytes(free)} free, needs {_megabytes(MARGIN * num_bytes)}: {MARGIN} times what "
            f"{what} may take. Free the disk, or put [store] database on another one."
        )


@contextmanager
def told_when_full(folder: Path) -> Iterator[None]:
    """A full or read-only disk as our error, wherever it is met; other errors pass.

    Raises:
        StoreError: naming the file, or the folder where the error names none.
    """
    try:
        yield
    except OSError as error:
        if error.errno not in FULL:
            raise
        raise StoreError(
            f"{error.filename or folder}: {error.strerror}. What was committed is safe; free the disk and run the same "
            "command again."
        ) from error


def warn_of_network_disk(folder: Path) -> None:
    """One line in the log where the folder lies on a network file system."""
    kind = file_system_of(folder.resolve())
    if kind in NETWORK_FILE_SYSTEMS:
        logger.warning(
            "%s: a network file system (%s), on which locks and syncs may fail. Put [store] database on a local disk, "
            "and send the published copy or the export there.",
            folder,
            kind,
        )


def file_system_of(folder: Path) -> str | None:
    """The type of the file system that a folder lies on; of two in the same place the later one hides the other."""
    mounts = [mount for mount in psutil.disk_partitions(all=True) if folder.is_relative_to(mount.mountpoint)]
    return max(reversed(mounts), key=lambda mount: len(mount.mountpoint)).fstype if mounts else None


def _megabytes(num_bytes: int) -> str:
    return f"{num_bytes / 1e6:,.0f} MB"
