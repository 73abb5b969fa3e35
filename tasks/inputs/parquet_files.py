"""Opens the files of an input and reads chosen columns of them, each checked against a declared schema.

Footers and schemas of all files are checked before a row is read; pages are read with checksum verification, in small
batches, of a file that is still the same. Columns are matched by name, never by place or by case. Text files are read
by `text_files` and come out alike. Knows nothing of what the columns mean.
"""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import reduce

import pyarrow as pa
import pyarrow.compute as pc

from tasks.inputs.footers import InputFile, check_unchanged, open_footer
from tasks.inputs.locations import TEXT_SUFFIXES, Wanted, hive_keys, locate, without_query
from tasks.inputs.missing_columns import MissingColumns
from tasks.inputs.pages import read_pages
from tasks.inputs.parquet_schema import (
    Column,
    Kind,
    check_drift,
    check_schema,
    is_whole,
    lacking_columns,
    normal_type,
    type_at,
    values_at,
)
from tasks.inputs.partitions import is_same_partition, is_same_value
from tasks.inputs.text_files import open_text_file, read_text_rows
from tasks.system.errors import ConfigError, InputError, PackrankError, first_line

ROWS_PER_BATCH = 65_536
ROWS_PER_BATCH_WITH_TEXT = 2_048  # a string array holds 2 GB: room for texts of 1 MB each


@dataclass(frozen=True, slots=True)
class ParquetInput:
    """The checked files of one input, in path order."""

    source: str  # 'queries', 'documents', ...: what messages call it
    path: str  # as given in the settings
    files: tuple[InputFile, ...]
    columns: tuple[Column, ...]
    partition: str | None  # 'dt=2026-11-28' where one was chosen

    @property
    def num_rows(self) -> int:
        """By the footers."""
        return sum(file.num_rows for file in self.files)

    @property
    def files_with_rows(self) -> tuple[InputFile, ...]:
        """Writers give the columns of a part without rows any type, or leave them out: it says nothing of an input."""
        return tuple(file for file in self.files if file.num_rows > 0)

    def has(self, name: str) -> bool:
        """Whether any file with rows has our column `name`."""
        return bool(self._types(name))

    def column(self, name: str) -> Column:
        """Our column `name`."""
        return next(column for column in self.columns if column.name == name)

    def type_of(self, name: str) -> str:
        """The Arrow type of our column in the first file that has it, for messages."""
        return next(map(str, self._types(name)), "no rows")

    def holds_integers(self, name: str) -> bool:
        """Whether our id column is stored as integers; the parts agree on it."""
        return any(map(is_whole, self._types(name)))

    @property
    def is_text(self) -> bool:
        """Whether ids are text since the files are: it does not say how others have to write them."""
        return self.files[0].is_text

    def _types(self, name: str) -> list[pa.DataType]:
        """Of our column, in the files with rows that have it."""
        found = (type_at(file.schema, self.column(name).file_name) for file in self.files_with_rows)
        return [each for each in found if each is not None]


def open_input(source: str, path: str, columns: Sequence[Column], wanted: Wanted, *, allow_empty: bool) -> ParquetInput:
    """Finds and checks the files of one input.

    Raises:
        InputNotReady: no file, no partition, no marker, a half-written file.
        MissingColumns: a file has not all of `columns`.
        InputError: an unreadable file, no rows, a doubled or wrongly typed column.
    """
    located = locate(source, path, wanted)
    open_file = open_text_file if without_query(located.paths[0]).lower().endswith(TEXT_SUFFIXES) else open_footer
    files = tuple(open_file(source, located, found) for found in located.paths)
    opened = ParquetInput(source, path, files, tuple(columns), located.partition)
    for file in opened.files_with_rows:
        lacking = lacking_columns(file, columns)
        if lacking:
            raise MissingColumns.of_file(source, file, columns, lacking)
        check_schema(source, file, columns)
        _check_partition_columns(source, file)
    check_drift(source, opened.files_with_rows, columns)
    if opened.num_rows == 0 and not allow_empty:
        raise InputError(
            f"{source}: {files[0].path}: 0 rows. An empty night is an error; "
            "set [inputs] allow_empty = true if it is intended."
        )
    return opened


def input_digest(inputs: Sequence[ParquetInput]) -> str:
    """SHA-256 over source, sorted relative path, size and footer of every file: the identity of a night's input."""
    digest = hashlib.sha256()
    for opened in sorted(inputs, key=lambda each: each.source):
        for file in sorted(opened.files, key=lambda each: each.relative_path):
            line = (opened.source, file.relative_path, str(file.size_bytes), file.sha256)
            digest.update("\x00".join(line).encode() + b"\x01")
    return digest.hexdigest()


def read_batches(
    opened: ParquetInput, names: Sequence[str], *, mark_undecodable: bool = False
) -> Iterator[tuple[InputFile, pa.RecordBatch]]:
    """Our columns `names` of every file, normalised, in batches.

    ids and text are `string` (integers in decimal), ranks and relevance `int64`, scores `float64` (NaN and the
    infinities become null), nested lists and fields as they are. A column that a file lacks is null, and so is a text
    that is not UTF-8; with `mark_undecodable` a further column `is_undecodable` says in which rows.

    Raises:
        InputError: a page that does not match its checksum, an id that is not UTF-8, a rank that is not whole.
    """
    for file in opened.files_with_rows:
        columns = [opened.column(name) for name in names]
        present = [column for column in columns if type_at(file.schema, column.file_name) is not None]
        once = list({column.file_name: column for column in reversed(present)}.values())  # a field may be a score too
        for batch in _raw_batches(opened.source, file, once):
            arrays: dict[str, pa.Array] = {}
            marks: list[pa.Array] = []
            for column in columns:
                values = values_at(batch, column.file_name)
                if values is None:
                    arrays[column.name] = pa.nulls(batch.num_rows, normal_type(column))
                elif column.kind == "text":
                    arrays[column.name], undecodable = decoded_texts(values)
                    marks.append(undecodable)
                elif column.kind in ("nested", "field"):
                    arrays[column.name] = values
                else:
                    where = f"{opened.source}: {file.path}: column {column.file_name!r}"
                    arrays[column.name] = normalised_values(values, column.kind, where)
            if mark_undecodable:
                arrays["is_undecodable"] = reduce(pc.or_, marks) if marks else pa.repeat(False, batch.num_rows)
            yield file, pa.RecordBatch.from_arrays(list(arrays.values()), names=list(arrays))


def _check_partition_columns(source: str, file: InputFile) -> None:
    """A column inside the file that contradicts its Hive folder; `dt=20261128` is the date 2026-11-28."""
    for key, value in hive_keys(file.relative_path).items():
        if key not in file.schema.names:
            continue
        batches = _raw_batches(source, file, [Column(key, "id", key)])
        inside = {str(each) for batch in batches for each in pc.unique(batch.column(key)).to_pylist()}
        other = sorted(each for each in inside if not is_same_value(value, each))
        if other:
            raise InputError(
                f"{source}: {file.path}: column {key!r} says {other[0]}, its folder says {key}={value} "
                f"({file.num_rows} rows). Write the file into the right folder or drop the column."
            )


def _raw_batches(source: str, file: InputFile, columns: Sequence[Column]) -> Iterator[pa.RecordBatch]:
    with_text = any(column.kind in ("text", "nested") for column in columns)
    rows = ROWS_PER_BATCH_WITH_TEXT if with_text else ROWS_PER_BATCH
    where = f"{source}: {file.path}"
    check_unchanged(source, file)
    try:
        if file.is_text:
            yield from read_text_rows(file, where, columns)
        else:
            with file.filesystem.open(file.path, "rb") as stream:
                yield from read_pages(stream, where, [column.file_name for column in columns], rows)
    except PackrankError:
        raise
    except Exception as error:  # of damaged bytes pyarrow makes many kinds
        check_unchanged(source, file)
        raise InputError(
            f"{where}: damaged, one of its pages cannot be read: {first_line(error)}. Write the file again."
        ) from error
    check_unchanged(source, file)


def decoded_texts(array: pa.Array) -> tuple[pa.Array, pa.Array]:
    """The texts as `string`, null where they are not UTF-8, and in which rows that is, bool."""
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    try:
        texts = array.cast(pa.string())
        texts.validate(full=True)
    except pa.ArrowInvalid:
        raw = array.cast(pa.large_binary()).to_pylist()
        decoded = [_decoded(text) for text in raw]
        is_lost = [text is None and each is not None for text, each in zip(decoded, raw, strict=True)]
        return pa.array(decoded, pa.string()), pa.array(is_lost, pa.bool_())
    return texts, pa.repeat(False, len(texts))


def _decoded(text: bytes | None) -> str | None:
    try:
        return None if text is None else text.decode()
    except UnicodeDecodeError:
        return None


def normalised_values(array: pa.Array, kind: Kind, where: str) -> pa.Array:
    """The values in our type for `kind`, see `read_batches`; `where` opens the message of an error."""
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    if kind in ("id", "text"):
        texts, is_undecodable = decoded_texts(array)
        if kind == "id" and pc.any(is_undecodable).as_py():
            bad = array.filter(is_undecodable).cast(pa.large_binary())
            raise InputError(
                f"{where} is not valid UTF-8 in {len(bad)} rows or more ({bad[0].as_py()[:40]!r}). Repair or drop them "
                "upstream."
            )
        return texts
    if kind == "score":
        scores = array.cast(pa.float64())
        return pc.if_else(pc.is_finite(scores), scores, pa.scalar(None, pa.float64()))
    if pa.types.is_floating(array.type):  # pandas makes floats of integers beside a null
        array = pc.if_else(pc.is_finite(array), array, pa.scalar(None, array.type))
    try:
        return array.cast(pa.int64())
    except pa.ArrowInvalid as error:
        raise InputError(f"{where} must hold whole numbers: {first_line(error)}") from error


def check_partition_setting(partition: str | None, inputs: Sequence[ParquetInput]) -> None:
    """A given partition that no input knows is a mistake.

    Raises:
        ConfigError: naming the partition.
    """
    if partition is None:
        return
    if not any(opened.partition is not None and is_same_partition(opened.partition, partition) for opened in inputs):
        raise ConfigError(f"[inputs] partition = {partition!r}: no input has folders of that name.")
