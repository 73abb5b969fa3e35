"""What a checkpoint overwrites in place, kept beside the database until the checkpoint is through.

DuckDB writes the rows of a checkpoint into free blocks, but its metadata into what is free within blocks whose other
parts are in use: 256 KiB at a time, before the header by which they are read. A process killed in that write leaves a
block that is half new, and a database that nobody can open ("computed checksum ... in block at location 12288"). Of 150
kills of a program that did nothing but such writes, 141 left one. So those blocks are copied before, and put back when
a checkpoint did not come to its end; the write-ahead log, which has the rest, is there until then. Knows bytes, not
DuckDB.
"""

import fcntl
import logging
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from tasks.errors import StoreError, first_line
from tasks.files.durable import write_whole

HEADERS_BYTES = 3 * 4096  # the file's own, and two that take turns: a checkpoint is through when one is written

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Extent:
    """A part of a file."""

    at_bytes: int
    num_bytes: int


def journal_of(database: Path) -> Path:
    """Where a database's journal lies while a checkpoint is under way."""
    return database.with_name(f"{database.name}.journal")


@contextmanager
def journaled(database: Path, descriptor: int, extents: Sequence[Extent]) -> Iterator[None]:
    """Keeps what the extents hold while the body overwrites them; after an error of the body, until `roll_back`.

    Args:
        database: the file.
        descriptor: of the file, to read by. Not opened here: to close it would free the locks of the whole process.
        extents: what may be overwritten before the headers are; nothing is kept if there are none.

    Raises:
        StoreError: the journal could not be written; the body did not run.
    """
    if not extents:
        yield
        return
    kept = [Extent(0, HEADERS_BYTES), *extents]
    table = pa.table(
        {
            "at_bytes": pa.array([extent.at_bytes for extent in kept], pa.int64()),
            "content": pa.array([_read(descriptor, extent) for extent in kept], pa.large_binary()),
        }
    )
    content = pa.BufferOutputStream()
    with pa.ipc.new_file(content, table.schema) as writer:
        writer.write_table(table)
    write_whole(journal_of(database), content.getvalue().to_pybytes())
    yield
    journal_of(database).unlink()


def roll_back(database: Path) -> bool:
    """Puts back what a checkpoint overwrote that did not come to its end; does nothing where there is none.

    Not to be called while this process has the file open.

    Returns:
        Whether there is no journal now. There is one while another process has the file open.

    Raises:
        StoreError: the journal cannot be read, or the database not be written; both are as they were.
    """
    journal = journal_of(database)
    if not (journal.exists() and database.exists()):  # one that was moved away left its journal behind
        return True
    try:
        with database.open("r+b") as stream:
            fcntl.lockf(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)  # DuckDB's own lock
            if journal.exists():  # its checkpoint may have ended meanwhile
                _put_back(stream.fileno(), journal)
    except BlockingIOError:
        return False
    except (OSError, pa.ArrowException) as error:
        raise StoreError(
            f"{database}: a checkpoint was cut off, and what it overwrote cannot be put back from {journal.name}: "
            f"{first_line(error)}. Run the command as the user of the nights."
        ) from error
    return True


def _put_back(descriptor: int, journal: Path) -> None:
    """Writes the kept extents, unless the checkpoint came to its end: then the headers are others."""
    headers, *kept = pa.ipc.open_file(pa.py_buffer(journal.read_bytes())).read_all().to_pylist()
    if os.pread(descriptor, HEADERS_BYTES, 0) == headers["content"]:
        for row in kept:
            os.pwrite(descriptor, row["content"], row["at_bytes"])
        os.fsync(descriptor)
        logger.warning("a checkpoint was cut off: %d blocks were put back from %s", len(kept), journal)
    journal.unlink()


def _read(descriptor: int, extent: Extent) -> bytes:
    return os.pread(descriptor, extent.num_bytes, extent.at_bytes)
