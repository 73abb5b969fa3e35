"""The column chunks of a Parquet file, looked at without ending the process.

pyarrow 26 makes a chunk's metadata where no exception is caught: an encrypted column, an unknown codec or a histogram
of another length aborts the process (SIGABRT). Its reader makes the same object where one is. So a reader is asked for
each chunk first, on a file that refuses to be read: what comes as far as reading is sound. Knows nothing of pages.
"""

from collections.abc import Iterator, Sequence

import pyarrow.parquet as pq

from tasks.system.errors import InputError, first_line


class _Refusal(Exception):
    """The file was read, so what the footer says of the chunk was understood."""


class _UnreadableFile:
    """A file of some size that cannot be read."""

    closed = False

    def __init__(self, size: int) -> None:
        self._size = size
        self._place = 0

    def seek(self, place: int, whence: int = 0) -> int:
        """See `io.IOBase.seek`."""
        self._place = place + (0, self._place, self._size)[whence]
        return self._place

    def tell(self) -> int:
        """See `io.IOBase.tell`."""
        return self._place

    def read(self, _size: int = -1) -> bytes:
        """Raises _Refusal."""
        raise _Refusal

    def close(self) -> None:
        """Nothing to close."""


class ColumnChunks:
    """The chunks of some columns, row group by row group."""

    def __init__(self, where: str, metadata: pq.FileMetaData, columns: Sequence[str], file_bytes: int) -> None:
        """Of `columns` and all that lies inside them; `where` opens the messages."""
        self._where = where
        self._metadata = metadata
        self._reader = pq.ParquetFile(_UnreadableFile(file_bytes), metadata=metadata, buffer_size=1, pre_buffer=False)
        paths = {place: metadata.schema.column(place).path for place in range(metadata.num_columns)}
        self._paths = {
            place: path
            for place, path in paths.items()
            if any(path == column or path.startswith(f"{column}.") for column in columns)
        }

    def of_group(self, number: int) -> list[pq.ColumnChunkMetaData]:
        """The chunks of a row group.

        Raises:
            InputError: an encrypted one.
            pa.ArrowException, OSError: one that pyarrow does not understand.
        """
        for path in self._paths.values():
            self._check(number, path)
        group = self._metadata.row_group(number)
        return [group.column(place) for place in self._paths]

    def _check(self, number: int, path: str) -> None:
        batches: Iterator[object] = self._reader.iter_batches(1, row_groups=[number], columns=[path], use_threads=False)
        try:
            next(batches, None)
        except _Refusal:
            return
        except OSError as error:
            if "decrypt" not in str(error).lower():
                raise
            raise InputError(
                f"{self._where}: column {path!r} is encrypted ({first_line(error)}). Write it without encryption."
            ) from None
