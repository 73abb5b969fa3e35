"""The rows of a CSV file, of JSON Lines or of a TREC run, each with the line at which it ends; values are as written.

A line has at most MAX_LINE_BYTES. Knows nothing of the columns that are needed.
"""

import csv
import gzip
import io
import json
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import fsspec

from tasks.inputs.locations import file_errors, without_query
from tasks.system.errors import InputError, InputNotReady, PackrankError, first_line

SEPARATORS = ",;\t|"
JSON, TREC = "json", "trec"  # in place of a separator
TREC_NAMES = ["query_id", "Q0", "doc_id", "trec_rank", "score", "tag"]  # trec_eval orders by the score alone
MAX_LINE_BYTES = 64 << 20
MAX_VALUE_CHARS = 16 << 20  # as pages.MAX_VALUE_BYTES
BUFFER_BYTES = HEAD_BYTES = 1 << 20

Row = tuple[int, Any]  # the line that it ends at, from 1, and its values: a list, or of JSON an object


class Lines:
    """The lines of a file, decoded; bytes that are not UTF-8 become surrogates, which no text has."""

    def __init__(self, where: str, stream: Any, on_line: Callable[[bytes], None] | None = None) -> None:
        """`on_line` is shown each line as it is read."""
        self.where = where
        self.number = 0
        self._stream, self._on_line = stream, on_line

    def __iter__(self) -> Iterator[str]:
        """Raises InputError for a line that is too long."""
        while line := self._stream.readline(MAX_LINE_BYTES + 1):
            self.number += 1
            if len(line) > MAX_LINE_BYTES:
                raise self.error(f"more than {MAX_LINE_BYTES:,} bytes. Is it text?")
            if self._on_line is not None:
                self._on_line(line)
            yield line.decode("utf-8-sig" if self.number == 1 else "utf-8", "surrogateescape")

    def error(self, told: str) -> InputError:
        """What is wrong with the present line."""
        return InputError(f"{self.where}, line {self.number}: {told}")


@contextmanager
def open_text(where: str, filesystem: fsspec.AbstractFileSystem, path: str) -> Iterator[Any]:
    """A file for reading bytes, decompressed if its name ends in .gz.

    Raises:
        InputNotReady: it is compressed and cut short.
        InputError: it cannot be read.
    """
    compression = "gzip" if without_query(path).lower().endswith(".gz") else None
    try:
        with filesystem.open(path, "rb", compression=compression) as stream:
            yield io.BufferedReader(stream, BUFFER_BYTES)
    except PackrankError:
        raise
    except EOFError as error:
        raise InputNotReady(f"{where}: not a complete file: {first_line(error)}. Write it again.") from error
    except (zlib.error, gzip.BadGzipFile) as error:
        raise InputError(f"{where}: damaged: {first_line(error)}. Write the file again.") from error
    except OSError:
        with file_errors(where):
            raise


def separator_and_names(where: str, path: str, head: bytes) -> tuple[str, list[str]]:
    """How a file's columns are separated, and their names; those of JSON stand in each row."""
    kind = without_query(path).lower().removesuffix(".gz").rpartition(".")[2]
    if head.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise InputError(f"{where}: UTF-16. Write it as UTF-8 (Excel: CSV UTF-8).")
    if kind in ("jsonl", "ndjson", "json"):
        if head.removeprefix(b"\xef\xbb\xbf").lstrip().startswith(b"["):
            raise InputError(f"{where}: one JSON array, expected one object per line: convert it with jq -c '.[]'.")
        return JSON, []
    if kind in ("trec", "run"):
        return TREC, TREC_NAMES
    csv.field_size_limit(MAX_VALUE_CHARS)
    text = head.decode("utf-8-sig", "replace")
    marks = "\t" if kind == "tsv" else SEPARATORS
    headers = {mark: next(csv.reader(io.StringIO(text, newline=""), delimiter=mark), []) for mark in marks}
    separator = max(headers, key=lambda mark: len(headers[mark]))
    return separator, [name.strip() for name in headers[separator]]


def rows_of(lines: Lines, separator: str, num_columns: int) -> Iterator[Row]:
    """The rows; blank lines are none, and a header is none.

    Raises:
        InputError: naming the line that is no row.
    """
    if separator == JSON:
        return _json_rows(lines)
    return _trec_rows(lines) if separator == TREC else _csv_rows(lines, separator, num_columns)


def _json_rows(lines: Lines) -> Iterator[Row]:
    for line in lines:
        if line.isspace():
            continue
        try:
            row = json.loads(line, parse_int=str, parse_float=str, parse_constant=str)
        except (ValueError, RecursionError) as error:
            raise lines.error(f"not JSON: {first_line(error)}. Write the line again.") from error
        if not isinstance(row, dict):
            raise lines.error(f"{type(row).__name__}, expected an object.")
        yield lines.number, row


def _trec_rows(lines: Lines) -> Iterator[Row]:
    for line in lines:
        row = line.split()
        if row and len(row) != len(TREC_NAMES):
            raise lines.error(f"{len(row)} columns, expected 6 (query_id Q0 doc_id rank score tag).")
        if row:
            yield lines.number, row


def _csv_rows(lines: Lines, separator: str, num_columns: int) -> Iterator[Row]:
    reader = csv.reader(iter(lines), delimiter=separator, strict=True)
    try:
        next(reader, None)
        for row in reader:
            if row and len(row) != num_columns:
                raise lines.error(
                    f"{len(row)} columns, the header has {num_columns} (separated by {separator!r}). Quote a value "
                    "that holds the separator."
                )
            if row:
                yield lines.number, row
    except csv.Error as error:
        raise lines.error(f"{first_line(error)}. Write the line again.") from error


def value_at(row: Any, name: str) -> Any:
    """As `parquet_schema.values_at`, of one JSON object."""
    if not isinstance(row, dict) or name in row:
        return row.get(name) if isinstance(row, dict) else None
    outer, _, inner = name.partition(".")
    return value_at(row.get(outer), inner) if inner else None
