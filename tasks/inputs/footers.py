"""Opens a Parquet file as far as its footer, within limits, and tells later whether it is still the same file.

Knows nothing of the columns that are needed.
"""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq

from tasks.inputs.locations import Located, file_errors
from tasks.system.errors import InputError, InputNotReady, PackrankError, first_line

MAGIC = b"PAR1"
ENCRYPTED_MAGIC = b"PARE"
MAX_FOOTER_BYTES = 32 << 20  # parsed it takes some ten times that
MAX_COLUMNS = 20_000
MAX_ROWS = (1 << 31) - 1  # of a file: documents are numbered by int32
VERSION_KEYS = ("size", "mtime", "LastModified", "last_modified", "ETag", "etag")  # as file systems call them


@dataclass(frozen=True, slots=True)
class InputFile:
    """A file whose footer was read, or a text file that was read once."""

    path: str
    filesystem: fsspec.AbstractFileSystem
    relative_path: str
    size_bytes: int
    num_rows: int
    schema: pa.Schema
    sha256: str  # of the footer; of a text file's lines
    version: tuple[str, ...]  # size, times and tags, as the file system tells them
    separator: str | None = None  # of a text file's columns; None: Parquet

    @property
    def is_text(self) -> bool:
        """Whether numbers, too, are text in it."""
        return self.separator is not None


def open_footer(source: str, located: Located, path: str) -> InputFile:
    """Reads a file's footer.

    Raises:
        InputNotReady: 0 bytes, or no whole footer: somebody may still be writing.
        InputError: no Parquet file, or one beyond the limits.
    """
    where = f"{source}: {path}"
    filesystem = located.filesystem
    with file_errors(where):
        version = version_of(filesystem, path)
        size = filesystem.size(path)
        with filesystem.open(path, "rb") as stream, _parse_errors(where):
            footer = _footer_bytes(where, stream, size)
            metadata = pq.read_metadata(pa.BufferReader(MAGIC + footer))
            _check_limits(where, metadata)
            schema = metadata.schema.to_arrow_schema()
    return InputFile(
        path=path,
        filesystem=filesystem,
        relative_path=located.relative(path),
        size_bytes=size,
        num_rows=metadata.num_rows,
        schema=schema,
        sha256=hashlib.sha256(footer).hexdigest(),
        version=version,
    )


def check_unchanged(source: str, file: InputFile) -> None:
    """Whether the file is still the one whose footer was read: two halves of two files are no input.

    Raises:
        InputNotReady: it was replaced, appended to or removed.
    """
    where = f"{source}: {file.path}"
    with file_errors(where):
        file.filesystem.invalidate_cache()
        version = version_of(file.filesystem, file.path)
        if version == file.version and file.is_text:
            return
        if version == file.version:
            with file.filesystem.open(file.path, "rb") as stream:
                footer = _footer_bytes(where, stream, file.size_bytes)
            if hashlib.sha256(footer).hexdigest() == file.sha256:
                return
    raise InputNotReady(
        f"{where}: has changed since this run looked at it first ({file.size_bytes} bytes then). Run the same command "
        "again when its writer is done."
    )


@contextmanager
def _parse_errors(where: str) -> Iterator[None]:
    try:
        yield
    except PackrankError:
        raise
    except Exception as error:  # of damaged bytes pyarrow makes many kinds
        if "limit" in str(error):  # of nesting, texts and lists in a footer
            raise InputError(f"{where}: exceeds a limit of the reader: {first_line(error)}") from error
        raise InputNotReady(f"{where}: not a complete Parquet file: {first_line(error)}") from error


def version_of(filesystem: fsspec.AbstractFileSystem, path: str) -> tuple[str, ...]:
    """Size, times and tags of a file; another version is another file."""
    info: dict[str, Any] = filesystem.info(path)
    return tuple(str(info.get(key)) for key in VERSION_KEYS)


def _footer_bytes(where: str, stream: fsspec.spec.AbstractBufferedFile, size: int) -> bytes:
    if size == 0:
        raise InputNotReady(f"{where}: 0 bytes, not a Parquet file. Write it again.")
    magic = stream.read(len(MAGIC))
    if magic == ENCRYPTED_MAGIC:
        raise InputError(f"{where}: its footer is encrypted. Write it without encryption.")
    if magic != MAGIC:
        raise InputError(
            f"{where}: not a Parquet file (it does not start with PAR1). Text is recognised by name: *.csv, *.tsv, "
            "*.jsonl, also with .gz; a TREC run: *.run."
        )
    stream.seek(max(size - 8, 0))
    tail = stream.read(8)
    length = int.from_bytes(tail[:4], "little")
    if size < 12 or tail[4:] != MAGIC or length > size - 12:
        raise InputNotReady(f"{where}: not a complete Parquet file: {size} bytes without a footer. Write it again.")
    if length > MAX_FOOTER_BYTES:
        raise InputError(
            f"{where}: a footer of {length:,} bytes, at most {MAX_FOOTER_BYTES:,} are read. Write fewer columns and "
            "larger row groups."
        )
    stream.seek(size - 8 - length)
    footer: bytes = stream.read(length + 8)
    return footer


def _check_limits(where: str, metadata: pq.FileMetaData) -> None:
    if metadata.num_columns > MAX_COLUMNS:
        raise InputError(f"{where}: {metadata.num_columns:,} columns, at most {MAX_COLUMNS:,} are read. Write fewer.")
    if not 0 <= metadata.num_rows <= MAX_ROWS:
        raise InputError(f"{where}: its footer says {metadata.num_rows:,} rows, at most {MAX_ROWS:,} can be numbered.")
