"""Opens the Parquet files of an input and reads chosen columns of them, each checked against a declared schema.

Footers and schemas of all files are checked before a row is read; pages are read with checksum verification, in small
batches, of a file that is still the same. Columns are matched by name, never by place or by case. Knows nothing of
what the columns mean.
"""

import difflib
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import pyarrow as pa
import pyarrow.compute as pc

from tasks.errors import ConfigError, InputError, PackrankError, first_line
from tasks.read.files.footers import ParquetFile, check_unchanged, open_footer
from tasks.read.files.locations import Wanted, hive_keys, locate
from tasks.read.files.pages import read_pages

ROWS_PER_BATCH = 65_536
ROWS_PER_BATCH_WITH_TEXT = 2_048  # a string array holds 2 GB: room for texts of 1 MB each

Kind = Literal["id", "text", "rank", "score", "relevance", "nested"]

WANTED = {
    "id": "text or integers",
    "text": "text",
    "rank": "integers",
    "score": "numbers",
    "relevance": "integers",
    "nested": "list<struct<doc_id, text, score>>",
}


@dataclass(frozen=True, slots=True)
class Column:
    """One column that we read: our name for it, what it holds, and its name in the files."""

    name: str
    kind: Kind
    file_name: str
    is_required: bool = True
    is_all_or_none: bool = False  # optional, but a part without it beside a part with it is an error


@dataclass(frozen=True, slots=True)
class ParquetInput:
    """The checked files of one input, in path order."""

    source: str  # 'queries', 'documents', ...: what messages call it
    path: str  # as given in the settings
    files: tuple[ParquetFile, ...]
    columns: tuple[Column, ...]
    partition: str | None  # 'dt=2026-11-28' where one was chosen

    @property
    def num_rows(self) -> int:
        """By the footers."""
        return sum(file.num_rows for file in self.files)

    def has(self, name: str) -> bool:
        """Whether any file has our column `name`."""
        column = self.column(name)
        return any(column.file_name in file.schema.names for file in self.files)

    def column(self, name: str) -> Column:
        """Our column `name`."""
        return next(column for column in self.columns if column.name == name)

    def type_of(self, name: str) -> str:
        """The Arrow type of our column in the first file that has it, for messages."""
        column = self.column(name)
        file = next(file for file in self.files if column.file_name in file.schema.names)
        return str(file.schema.field(column.file_name).type)

    def holds_integers(self, name: str) -> bool:
        """Whether our id column is stored as integers; the parts agree on it."""
        column = self.column(name)
        return any(
            column.file_name in file.schema.names and pa.types.is_integer(file.schema.field(column.file_name).type)
            for file in self.files
        )


def open_input(source: str, path: str, columns: Sequence[Column], wanted: Wanted, *, allow_empty: bool) -> ParquetInput:
    """Finds and checks the files of one input.

    Raises:
        InputNotReady: no file, no partition, no marker, a half-written file.
        InputError: an unreadable file, no rows, a missing, doubled or wrongly typed column.
    """
    located = locate(source, path, wanted)
    files = tuple(open_footer(source, located, found) for found in located.paths)
    for file in files:
        _check_schema(source, file, columns)
        _check_partition_columns(source, file)
    _check_drift(source, files, columns)
    opened = ParquetInput(source, path, files, tuple(columns), located.partition)
    if opened.num_rows == 0 and not allow_empty:
        raise InputError(
            f"{source}: {files[0].path}: 0 rows. An empty night is an error; "
            "set [inputs] allow_empty = true if it is meant."
        )
    return opened


def input_digest(inputs: Sequence[ParquetInput]) -> str:
    """SHA-256 over source, sorted relative path, size and footer of every file: the identity of a night's input."""
    digest = hashlib.sha256()
    for opened in sorted(inputs, key=lambda each: each.source):
        for file in sorted(opened.files, key=lambda each: each.relative_path):
            line = (opened.source, file.relative_path, str(file.size_bytes), file.footer_sha256)
            digest.update("\x00".join(line).encode() + b"\x01")
    return digest.hexdigest()


def read_batches(opened: ParquetInput, names: Sequence[str]) -> Iterator[tuple[ParquetFile, pa.RecordBatch]]:
    """Our columns `names` of every file, normalised, in batches.

    ids and text are `string` (integers in decimal), ranks and relevance `int64`, scores `float64` (NaN and the
    infinities become null), nested lists as they are. A column that a file lacks is null.

    Raises:
        InputError: a page that does not match its checksum, text that is not UTF-8, a rank that is not whole.
    """
    for file in opened.files:
        present = [name for name in names if opened.column(name).file_name in file.schema.names]
        for batch in _raw_batches(opened, file, [opened.column(name).file_name for name in present]):
            arrays = [
                _normalised(opened, file, opened.column(name), batch)
                if name in present
                else pa.nulls(batch.num_rows, _normal_type(opened.column(name)))
                for name in names
            ]
            yield file, pa.RecordBatch.from_arrays(arrays, names=list(names))


def _check_schema(source: str, file: ParquetFile, columns: Sequence[Column]) -> None:
    names = file.schema.names
    for column in columns:
        found = names.count(column.file_name)
        if found > 1:
            raise InputError(f"{source}: {file.path}: {found} columns are named {column.file_name!r}. Keep one.")
        if found == 0 and column.is_required:
            raise InputError(f"{source}: {file.path} ({file.num_rows} rows): {_missing(source, column, file.schema)}")
        if found == 1:
            _check_kind(source, file, column)


def _missing(source: str, column: Column, schema: pa.Schema) -> str:
    nested = [field.name for field in schema if pa.types.is_nested(field.type)]
    if nested:
        return (
            f"no column {column.file_name!r}: this is the nested layout ({nested[0]}: "
            f"{schema.field(nested[0]).type}); name it as [inputs] nested."
        )
    names = {name.lower(): name for name in schema.names}
    close = difflib.get_close_matches(column.file_name.lower(), names, n=1)
    hint = f" Is it {names[close[0]]!r}?" if close else ""
    return (
        f"no column {column.file_name!r} (found: {', '.join(schema.names)}).{hint} "
        f"Rename it upstream or set [inputs.columns.{source}] {column.name}."
    )


def _check_kind(source: str, file: ParquetFile, column: Column) -> None:
    found = file.schema.field(column.file_name).type
    if _is_of_kind(found, column.kind):
        return
    hint = " Cast it to text (UTF-8) upstream." if _is_binary(found) else ""
    raise InputError(
        f"{source}: {file.path}: column {column.file_name!r} holds {found} in {file.num_rows} rows, "
        f"wanted {WANTED[column.kind]}.{hint}"
    )


def _is_of_kind(found: pa.DataType, kind: Kind) -> bool:
    if pa.types.is_dictionary(found):
        return _is_of_kind(found.value_type, kind)
    if kind == "id":
        return _is_text(found) or pa.types.is_integer(found)
    if kind == "text":
        return _is_text(found) or pa.types.is_null(found)
    if kind == "nested":
        return _is_candidate_list(found)
    is_number = pa.types.is_integer(found) or pa.types.is_floating(found)
    return is_number or pa.types.is_null(found) or (kind == "score" and pa.types.is_decimal(found))


def _is_text(found: pa.DataType) -> bool:
    return bool(pa.types.is_string(found) or pa.types.is_large_string(found) or pa.types.is_string_view(found))


def _is_binary(found: pa.DataType) -> bool:
    return bool(pa.types.is_binary(found) or pa.types.is_large_binary(found) or pa.types.is_binary_view(found))


def _is_candidate_list(found: pa.DataType) -> bool:
    if not (pa.types.is_list(found) or pa.types.is_large_list(found)) or not pa.types.is_struct(found.value_type):
        return False
    fields = {field.name: field.type for field in found.value_type}
    kinds: Mapping[str, Kind] = {"doc_id": "id", "text": "text"}
    return all(name in fields and _is_of_kind(fields[name], kind) for name, kind in kinds.items())


def _check_partition_columns(source: str, file: ParquetFile) -> None:
    """A column inside the file that contradicts its Hive folder."""
    for key, value in hive_keys(file.relative_path).items():
        if key not in file.schema.names:
            continue
        with file.filesystem.open(file.path, "rb") as stream:
            batches = read_pages(stream, f"{source}: {file.path}", [key], ROWS_PER_BATCH)
            inside = {str(each) for batch in batches for each in pc.unique(batch.column(key)).to_pylist()}
        other = sorted(inside - {value})
        if other:
            raise InputError(
                f"{source}: {file.path}: column {key!r} says {other[0]}, its folder says {key}={value} "
                f"({file.num_rows} rows). Write the file into the right folder or drop the column."
            )


def _check_drift(source: str, files: Sequence[ParquetFile], columns: Sequence[Column]) -> None:
    """Parts of one input that disagree about a column."""
    for column in columns:
        having = [file for file in files if column.file_name in file.schema.names]
        if column.is_all_or_none and 0 < len(having) < len(files):
            lacking = next(file for file in files if file not in having)
            raise InputError(
                f"{source}: {lacking.path}: no column {column.file_name!r} in its {lacking.num_rows} rows, which "
                f"{having[0].path} has. Write all parts with it, or none."
            )
        if column.kind == "id" and having:
            integers = [file for file in having if pa.types.is_integer(file.schema.field(column.file_name).type)]
            if 0 < len(integers) < len(having):
                text = next(file for file in having if file not in integers)
                raise InputError(
                    f"{source}: column {column.file_name!r} holds integers in {integers[0].path} and text in "
                    f"{text.path}. Write one type."
                )


def _raw_batches(opened: ParquetInput, file: ParquetFile, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    with_text = any(column.kind in ("text", "nested") and column.file_name in columns for column in opened.columns)
    rows = ROWS_PER_BATCH_WITH_TEXT if with_text else ROWS_PER_BATCH
    where = f"{opened.source}: {file.path}"
    check_unchanged(opened.source, file)
    try:
        with file.filesystem.open(file.path, "rb") as stream:
            yield from read_pages(stream, where, columns, rows)
    except PackrankError:
        raise
    except Exception as error:  # of damaged bytes pyarrow makes many kinds
        check_unchanged(opened.source, file)
        raise InputError(
            f"{where}: damaged, one of its pages cannot be read: {first_line(error)}. Write the file again."
        ) from error
    check_unchanged(opened.source, file)


def _normal_type(column: Column) -> pa.DataType:
    if column.kind in ("id", "text"):
        return pa.string()
    return pa.float64() if column.kind == "score" else pa.int64()


def _normalised(opened: ParquetInput, file: ParquetFile, column: Column, batch: pa.RecordBatch) -> pa.Array:
    array = batch.column(column.file_name)
    if column.kind == "nested":
        return array
    return normalised_values(array, column.kind, f"{opened.source}: {file.path}: column {column.file_name!r}")


def normalised_values(array: pa.Array, kind: Kind, where: str) -> pa.Array:
    """The values in our type for `kind`, see `read_batches`; `where` opens the message of an error."""
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    if kind in ("id", "text"):
        text = array.cast(pa.string())
        try:
            text.validate(full=True)
        except pa.ArrowInvalid as error:
            raise InputError(f"{where} is not valid UTF-8: {first_line(error)}") from error
        return text
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
    if partition is not None and not any(opened.partition == partition for opened in inputs):
        raise ConfigError(f"[inputs] partition = {partition!r}: no input lies in folders named so.")
