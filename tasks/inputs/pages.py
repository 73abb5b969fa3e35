"""Reads pages of a Parquet file in bounded memory, whatever the file claims.

A page of a few bytes may decompress to 2 GB, and one value of a dictionary may be named by every row. So a stream of
ours stands between file and reader: it sees each page's header (Thrift's compact protocol) before the reader makes room
for the page. How many rows a batch may have follows from the largest value that a row can name.

    file -> PageGuard (headers seen, limits kept) -> pyarrow -> batches

Knows nothing of what the columns mean.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tasks.inputs.chunks import ColumnChunks
from tasks.inputs.thrift_compact import CompactReader
from tasks.system.errors import InputError

MAX_PAGE_BYTES = 128 << 20  # writers aim at 1 MB
MAX_PREFIXED_PAGE_BYTES = 8 << 20  # DELTA_BYTE_ARRAY: each value may repeat the page's largest
MAX_VALUE_BYTES = 16 << 20  # a text; a novel has 1 MB
MAX_BATCH_BYTES = 64 << 20  # of one column; twice that where the footer's mean says little
SKEW = 256  # how much larger than the mean the values of one batch may all be
MAX_EXPANDED_BYTES = 4 << 30  # of what is decoded of one file, where that is MAX_EXPANSION times the file
MAX_EXPANSION = 1_000
MAX_HEADER_BYTES = 1 << 20  # statistics of long texts stand in headers
HEADER_PEEK_BYTES = 4_096
BUFFER_BYTES = 1 << 20
ADVICE = f"a text may have {MAX_VALUE_BYTES:,} bytes. Cut it upstream."
DATA_PAGE, DICTIONARY_PAGE, DATA_PAGE_V2 = 0, 2, 3
DELTA_BYTE_ARRAY = 7
PAGE_FIELDS = {DATA_PAGE: 5, DICTIONARY_PAGE: 7, DATA_PAGE_V2: 8}  # PageHeader's field with what only this kind has
ENCODING_FIELDS = {DATA_PAGE: 2, DATA_PAGE_V2: 4}


@dataclass(frozen=True, slots=True)
class PageHeader:
    """What a page says of itself."""

    kind: int
    num_values: int
    encoding: int | None
    uncompressed_bytes: int
    compressed_bytes: int
    header_bytes: int


@dataclass(slots=True)
class _Chunk:
    """A column of a row group, and how far the guard has seen it."""

    column: str
    start: int
    end: int
    rows_per_batch: int  # values that one batch may hold, nested ones estimated
    next_header: int
    recent: deque[tuple[int, int]] = field(default_factory=deque)  # values and bytes of the pages of one batch
    recent_values: int = 0
    recent_bytes: int = 0


class PageGuard:
    """A readable file that lets through only pages within limits."""

    def __init__(self, stream: Any, where: str) -> None:
        self._stream = stream
        self.where = where
        self._chunks: list[_Chunk] = []

    @property
    def closed(self) -> bool:
        """Whether the file is closed."""
        return bool(self._stream.closed)

    def watch(self, chunk: pq.ColumnChunkMetaData, rows_per_batch: int) -> None:
        """Holds the pages of a column chunk against the limits, as they are read."""
        start, end = _span(chunk)
        self._chunks.append(_Chunk(chunk.path_in_schema, start, end, max(rows_per_batch, 1), start))

    def read(self, size: int = -1) -> bytes:
        """Bytes from the place where the file stands."""
        position = self._stream.tell()
        data: bytes = self._stream.read(size)
        for chunk in self._chunks:
            while position <= chunk.next_header < min(position + len(data), chunk.end):
                first = chunk.next_header - position
                self._pass(chunk, data[first : first + HEADER_PEEK_BYTES])
        self._stream.seek(position + len(data))
        return data

    def seek(self, position: int, whence: int = 0) -> int:
        """See `io.IOBase.seek`."""
        self._stream.seek(position, whence)
        return int(self._stream.tell())

    def tell(self) -> int:
        """See `io.IOBase.tell`."""
        return int(self._stream.tell())

    def close(self) -> None:
        """Nothing: whoever opened the file closes it."""

    def forget(self) -> None:
        """Ends the watch: the row group was read."""
        self._chunks.clear()

    def header_at(self, position: int) -> PageHeader:
        """The page header that begins there.

        Raises:
            InputError: there is none, or one beyond the limits.
        """
        self._stream.seek(position)
        return self._parsed(position, self._stream.read(HEADER_PEEK_BYTES))

    def page_after(self, position: int, header: PageHeader) -> bytes:
        """The bytes of a page, as they are compressed."""
        self._stream.seek(position + header.header_bytes)
        page: bytes = self._stream.read(header.compressed_bytes)
        return page

    def _parsed(self, position: int, beginning: bytes) -> PageHeader:
        header = read_page_header(beginning)
        if header is None:
            self._stream.seek(position)
            header = read_page_header(self._stream.read(MAX_HEADER_BYTES))
        if header is None or header.compressed_bytes < 0:
            raise InputError(f"{self.where}: damaged: expected a page at byte {position:,}. Write the file again.")
        return header

    def _pass(self, chunk: _Chunk, beginning: bytes) -> None:
        header = self._parsed(chunk.next_header, beginning)
        chunk.next_header += header.header_bytes + header.compressed_bytes
        what = f"{self.where}: column {chunk.column!r}: a page of {header.uncompressed_bytes:,} bytes once decompressed"
        limit = MAX_PREFIXED_PAGE_BYTES if header.encoding == DELTA_BYTE_ARRAY else MAX_PAGE_BYTES
        if not 0 <= header.uncompressed_bytes <= limit:
            raise InputError(f"{what}, at most {limit:,} are read. Write smaller pages (1 MB is usual).")
        if header.kind == DICTIONARY_PAGE:
            return  # how large its values are was looked at before
        if header.uncompressed_bytes > MAX_VALUE_BYTES * max(header.num_values, 1):
            raise InputError(f"{what} with {header.num_values} values, {ADVICE}")
        chunk.recent.append((header.num_values, header.uncompressed_bytes))
        chunk.recent_values += header.num_values
        chunk.recent_bytes += header.uncompressed_bytes
        while len(chunk.recent) > 1 and chunk.recent_values - chunk.recent[0][0] >= chunk.rows_per_batch:
            values, size = chunk.recent.popleft()
            chunk.recent_values -= values
            chunk.recent_bytes -= size
        if chunk.recent_bytes > 2 * MAX_BATCH_BYTES:
            raise InputError(
                f"{what}: {chunk.recent_values:,} values in a row hold {chunk.recent_bytes:,} bytes, at most "
                f"{2 * MAX_BATCH_BYTES:,} are read at once. Cut the texts, or write smaller row groups."
            )


def read_pages(stream: Any, where: str, columns: Sequence[str], max_rows: int) -> Iterator[pa.RecordBatch]:
    """The columns in batches of at most `max_rows`, fewer where values are large; checksums are verified.

    Raises:
        InputError: a page or value beyond the limits.
        pa.ArrowException, OSError: what pyarrow cannot read.
    """
    file_bytes = stream.seek(0, 2)
    most_bytes = max(MAX_EXPANDED_BYTES, MAX_EXPANSION * file_bytes)
    num_bytes = 0
    guard = PageGuard(stream, where)
    reader = pq.ParquetFile(guard, page_checksum_verification=True, buffer_size=BUFFER_BYTES, pre_buffer=False)
    chunks_of = ColumnChunks(where, reader.metadata, columns, file_bytes)
    for number in range(reader.metadata.num_row_groups):
        num_rows = reader.metadata.row_group(number).num_rows
        chunks = chunks_of.of_group(number)
        rows = min([max_rows, *(_rows_that_fit(guard, chunk, num_rows) for chunk in chunks)])
        for chunk in chunks:
            guard.watch(chunk, rows * _values_per_row(chunk, num_rows))
        batches = reader.iter_batches(rows, row_groups=[number], columns=list(columns), use_threads=False)
        for batch in _gathered(map(_decoded, batches), max_rows):
            num_bytes += batch.nbytes
            if num_bytes > most_bytes:
                raise InputError(
                    f"{where}: decodes to more than {most_bytes:,} bytes, {MAX_EXPANSION:,} times the file: its rows "
                    "repeat a few values. Write the rows that are meant."
                )
            yield batch
        guard.forget()


def read_page_header(data: bytes) -> PageHeader | None:
    """Parses the page header at the beginning of `data`; None if it is cut short, or is none."""
    try:
        fields, length = CompactReader(data).struct()
        kind = fields[1]
        own = fields.get(PAGE_FIELDS.get(kind, -1), {})
        encoding = own.get(ENCODING_FIELDS.get(kind, -1))
        return PageHeader(kind, own.get(1, 0), encoding, fields[2], fields[3], length)
    except (IndexError, KeyError, TypeError, AttributeError, RecursionError):
        return None


def _span(chunk: pq.ColumnChunkMetaData) -> tuple[int, int]:
    start: int = chunk.data_page_offset
    if chunk.dictionary_page_offset is not None and 0 < chunk.dictionary_page_offset < start:
        start = chunk.dictionary_page_offset
    return start, start + chunk.total_compressed_size


def _values_per_row(chunk: pq.ColumnChunkMetaData, num_rows: int) -> int:
    num_values: int = chunk.num_values
    return max(1, -(-num_values // max(num_rows, 1)))


def _rows_that_fit(guard: PageGuard, chunk: pq.ColumnChunkMetaData, num_rows: int) -> int:
    """How many rows of the column one batch may have, from the largest value that each of them may name."""
    if chunk.physical_type != "BYTE_ARRAY" or chunk.num_values <= 0:
        return num_rows or 1
    mean: int = chunk.total_uncompressed_size // chunk.num_values
    largest = max(1, SKEW * mean, _largest_in_dictionary(guard, chunk))
    if "DELTA_BYTE_ARRAY" in chunk.encodings:
        largest = max(largest, MAX_PREFIXED_PAGE_BYTES)
    return max(1, MAX_BATCH_BYTES // (largest * _values_per_row(chunk, num_rows)))


def _largest_in_dictionary(guard: PageGuard, chunk: pq.ColumnChunkMetaData) -> int:
    """Bytes of a dictionary's largest value: rows that name it hold that much each. 1 without a dictionary.

    Raises:
        InputError: it is no text that anybody means.
    """
    start, _ = _span(chunk)
    header = guard.header_at(start)
    size = header.uncompressed_bytes
    if header.kind != DICTIONARY_PAGE or not 0 <= size <= MAX_PAGE_BYTES:
        return 1  # the guard refuses it when it is read
    page = guard.page_after(start, header)
    if chunk.compression != "UNCOMPRESSED":
        try:
            page = pa.Codec(chunk.compression.lower()).decompress(page, size, asbytes=True)
        except (pa.ArrowException, OSError, ValueError):
            return size  # a codec of another framing, or damage that the reader names
    largest = _largest_value(page)
    if largest > MAX_VALUE_BYTES:
        raise InputError(
            f"{guard.where}: column {chunk.path_in_schema!r}: a dictionary with a value of {largest:,} bytes, {ADVICE}"
        )
    return largest


def _largest_value(page: bytes) -> int:
    """Of length-prefixed values, end to end."""
    largest = place = 0
    while place + 4 <= len(page):
        length = int.from_bytes(page[place : place + 4], "little")
        largest = max(largest, length)
        place += 4 + length
    return largest


def _decoded(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The batch without dictionaries: its bytes are then what it holds."""
    columns = [each.dictionary_decode() if pa.types.is_dictionary(each.type) else each for each in batch.columns]
    return pa.RecordBatch.from_arrays(columns, names=batch.schema.names)


def _gathered(batches: Iterator[pa.RecordBatch], rows: int) -> Iterator[pa.RecordBatch]:
    """Small batches put together, up to `rows` or a quarter of MAX_BATCH_BYTES: each costs its reader a call.

    Nested ones stay as they are, since a dictionary inside them does not show what it stands for.
    """
    kept: list[pa.RecordBatch] = []
    num_rows = num_bytes = 0
    for batch in batches:
        is_full = num_rows + batch.num_rows > rows or num_bytes + batch.nbytes > MAX_BATCH_BYTES // 4
        if kept and (is_full or any(pa.types.is_nested(field.type) for field in batch.schema)):
            yield pa.concat_batches(kept)
            kept, num_rows, num_bytes = [], 0, 0
        kept.append(batch)
        num_rows += batch.num_rows
        num_bytes += batch.nbytes
    if kept:
        yield pa.concat_batches(kept)
