"""What a checkpoint overwrites in place, kept beside the database until the checkpoint is through.

DuckDB writes the rows of a checkpoint into free blocks, but its metadata into what is free within blocks whose other
parts are in use: 256 KiB at a time, before the header by which they are read. A process killed in that write leaves a
block that is half new, and a database that nobody can open ("computed checksum ... in block at location 12288"). Of 150
kills of a program that did nothing but such writes, 141 left one. So those blocks are copied first, and restored if
the checkpoint did not complete; the write-ahead log, which has the rest, is kept until then. The module knows
only DuckDB's headers and their checksum.
"""

import errno
import fcntl
import logging
import os
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from tasks.system.atomic_files import write_whole
from tasks.system.errors import StoreError, first_line

HEADER_BYTES = 4096
HEADERS_BYTES = 3 * HEADER_BYTES  # the file's own, and two that take turns: a checkpoint is through when one is written
RECOVERY = "docs/operations.md, 'The database cannot be opened'"

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
    contents = [_read(descriptor, extent) for extent in kept]
    table = pa.table(
        {
            "at_bytes": pa.array([extent.at_bytes for extent in kept], pa.int64()),
            "content": pa.array(contents, pa.large_binary()),
            "crc32": pa.array([zlib.crc32(content) for content in contents], pa.int64()),
        }
    )
    content = pa.BufferOutputStream()
    with pa.ipc.new_file(content, table.schema) as writer:
        writer.write_table(table)
    write_whole(journal_of(database), content.getvalue().to_pybytes())
    yield
    journal_of(database).unlink()


def roll_back(database: Path) -> bool:
    """Restores what an incomplete checkpoint overwrote; does nothing if there is none.

    The journal stays: who calls this deletes it once DuckDB has opened the file. Not to be called while this process
    has the file open.

    Returns:
        Whether the file can be opened now. It cannot while another process has it open and there is a journal.

    Raises:
        StoreError: the journal cannot be read, or the database not be written; both are as they were.
    """
    journal = journal_of(database)
    if not (journal.exists() and database.exists()):  # one that was moved away left its journal behind
        return True
    try:
        # DuckDB's own lock, and a shared one first: who may only read must not take a live checkpoint for one cut off
        for mode, lock in (("rb", fcntl.LOCK_SH), ("r+b", fcntl.LOCK_EX)):
            with database.open(mode) as stream:
                fcntl.lockf(stream, lock | fcntl.LOCK_NB)
                if not (journal.exists() and _was_cut_off(stream.fileno(), journal)):
                    return True  # its checkpoint came to its end
                if lock == fcntl.LOCK_EX:
                    _put_back(stream.fileno(), journal)
    except BlockingIOError:
        return False
    except (OSError, ValueError, pa.ArrowException) as error:
        raise StoreError(
            f"{database}: a checkpoint was interrupted, and what it overwrote cannot be restored from {journal.name}: "
            f"{first_line(error)}. {_advice(error)}"
        ) from error
    return True


def _advice(error: Exception) -> str:
    number = error.errno if isinstance(error, OSError) else None
    if number in (errno.EACCES, errno.EPERM, errno.EROFS):
        return "Run the command as the user of the nights."
    if number in (errno.ENOSPC, errno.EDQUOT):
        return "Free the disk and run the same command again."
    return f"See {RECOVERY}."


def _was_cut_off(descriptor: int, journal: Path) -> bool:
    """Whether the headers are the kept ones, or one of the two is torn: half of a new one, which has no checksum."""
    kept, found = _kept(journal)[0][1], os.pread(descriptor, HEADERS_BYTES, 0)
    if found == kept:
        return True
    own, *headers = _headers(found)
    torn = [each for each in headers if not _is_whole(each)]
    return own == _headers(kept)[0] and len(torn) == 1


def _put_back(descriptor: int, journal: Path) -> None:
    """Writes the kept extents, the headers last."""
    headers, *extents = _kept(journal)
    for at_bytes, content in (*extents, headers):
        _write(descriptor, content, at_bytes)
        os.fsync(descriptor)
    logger.warning("a checkpoint was interrupted: %d blocks were restored from %s", len(extents), journal)


def _kept(journal: Path) -> list[tuple[int, bytes]]:
    """Where each extent begins and what it held, the headers first.

    Raises:
        ValueError: the journal is damaged.
    """
    rows = pa.ipc.open_file(pa.py_buffer(journal.read_bytes())).read_all().to_pylist()
    if not rows or any(zlib.crc32(row["content"]) != row.get("crc32") for row in rows):
        raise ValueError("its checksums are not those of what it holds")
    return [(row["at_bytes"], row["content"]) for row in rows]


def _headers(content: bytes) -> list[bytes]:
    return [content[at : at + HEADER_BYTES] for at in range(0, HEADERS_BYTES, HEADER_BYTES)]


def _is_whole(header: bytes) -> bool:
    """Whether DuckDB's checksum, the first eight bytes, is that of the rest."""
    if len(header) < HEADER_BYTES:
        return False
    words = np.frombuffer(header, "<u8")
    return bool(np.bitwise_xor.reduce(words[1:] * np.uint64(0xBF58476D1CE4E5B9)) ^ np.uint64(5381) == words[0])


def _read(descriptor: int, extent: Extent) -> bytes:
    """What the file has of an extent: a block at its end may not be written yet."""
    at_bytes, content = extent.at_bytes, b""
    end_bytes = min(at_bytes + extent.num_bytes, os.fstat(descriptor).st_size)
    while at_bytes + len(content) < end_bytes:
        part = os.pread(descriptor, end_bytes - at_bytes - len(content), at_bytes + len(content))
        if not part:
            raise StoreError(f"the database ends at {at_bytes + len(content)} bytes, expected {end_bytes}")
        content += part
    return content


def _write(descriptor: int, content: bytes, at_bytes: int) -> None:
    """All of it: the kernel may take a part."""
    while content:
        num_bytes = os.pwrite(descriptor, content, at_bytes)
        content, at_bytes = content[num_bytes:], at_bytes + num_bytes
