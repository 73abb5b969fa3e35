"""`[prompt] fields`: columns of candidates and documents that stand beside a passage, and their values as texts.

A value is written alike on every host and in every night: dates by ISO 8601, decimals as they are, booleans as yes and
no, floats with four decimals at most. Null, NaN and infinity have no text. Files' footers say which input has a field.
Knows nothing of prompts.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tasks.inputs.footers import InputFile
from tasks.inputs.missing_columns import UNKNOWN, MissingColumns, names_for, paths_told
from tasks.inputs.parquet_files import ParquetInput
from tasks.inputs.parquet_schema import Column, inner_struct, is_text_type, type_at
from tasks.prompt.passage_form import split_field
from tasks.system.errors import InputError

NUM_DECIMALS = 4  # of floats; of those below 0.1, digits
SCIENTIFIC = (1e-6, 1e16)  # floats below and above are written with an exponent
Looked = Mapping[str, tuple[InputFile, tuple[Column, ...]]]  # by source: a file with rows, and what is read of it


@dataclass(frozen=True, slots=True)
class WantedFields:
    """What settings and prompt template ask for."""

    names: tuple[str, ...] = ()  # 'price', or 'documents.price' where both inputs have such a column
    decimals: int | None = None  # of numbers; as many as they need if None

    def of(self, source: str) -> list[str]:
        """Our names of the columns that may be in `source`."""
        return [own for own, sources in map(split_field, self.names) if source in sources]


NOTHING_WANTED = WantedFields()


@dataclass(frozen=True, slots=True)
class PassageFields:
    """A night's fields in their order, each with the input that has it."""

    names: tuple[str, ...] = ()  # of our columns
    sources: tuple[str, ...] = ()
    decimals: int | None = None

    def of(self, source: str) -> list[str]:
        """Those of candidates, or of documents."""
        return [name for name, each in zip(self.names, self.sources, strict=True) if each == source]

    def rows(self, source: str, columns: Mapping[str, pa.Array] | pa.RecordBatch, num_rows: int) -> pa.ListArray:
        """For each row of `source` the texts of all fields, null where it has none or another input has the field."""
        texts = [
            field_texts(columns[name], self.decimals) if each == source else pa.nulls(num_rows, pa.string())
            for name, each in zip(self.names, self.sources, strict=True)
        ]
        num = len(texts)
        row_by_row = np.arange(num * num_rows).reshape(num, num_rows).T.ravel()
        offsets = pa.array(np.arange(0, num * num_rows + 1, num), pa.int32())
        return pa.ListArray.from_arrays(offsets, pa.concat_arrays(texts).take(pa.array(row_by_row)))


NO_FIELDS = PassageFields()


def field_columns(
    wanted: Sequence[str], names: Mapping[str, str], known: Collection[str], prefix: str = ""
) -> tuple[Column, ...]:
    """The columns of fields beside those that are `known`, under their names in the files."""
    return tuple(
        Column(f"{prefix}{name}", "field", names.get(f"{prefix}{name}", name), is_required=False, is_all_or_none=True)
        for name in wanted
        if name not in known
    )


def field_texts(values: pa.Array, decimals: int | None = None) -> pa.Array:
    """The values of a column as `string`; bytes that are not UTF-8 become U+FFFD.

    Args:
        values: of any type that `Column.fits` allows for a field.
        decimals: of numbers; as many as they need if None.
    """
    if pa.types.is_dictionary(values.type):
        values = values.dictionary_decode()
    kind = values.type
    if pa.types.is_null(kind):
        return pa.nulls(len(values), pa.string())
    if pa.types.is_boolean(kind):
        return pc.if_else(values, "yes", "no")
    if is_text_type(kind) or pa.types.is_binary(kind):
        return _decoded(values)
    if pa.types.is_temporal(kind):
        return _time_texts(values)
    if pa.types.is_integer(kind) and decimals is None:
        return values.cast(pa.string())
    if pa.types.is_floating(kind):
        numbers = values.cast(pa.float32()) if pa.types.is_float16(kind) else values
        filled = pc.fill_null(numbers, np.nan).to_numpy(zero_copy_only=False)
        return pa.array([_float_text(each, decimals) for each in filled], pa.string())
    return pa.array([_exact_text(each, decimals) for each in values.to_pylist()], pa.string())


def _decoded(values: pa.Array) -> pa.Array:
    try:
        texts = values.cast(pa.string())
        texts.validate(full=True)
    except pa.ArrowInvalid:
        raw = values.cast(pa.large_binary()).to_pylist()
        return pa.array([None if text is None else text.decode("utf-8", "replace") for text in raw], pa.string())
    return texts


def _time_texts(values: pa.Array) -> pa.Array:
    """Dates, times to the second, and both: 2026-11-28T13:30:00, with Z where it is UTC, without a time at midnight."""
    kind = values.type
    if pa.types.is_time(kind):
        return values.cast(pa.time32("s"), safe=False).cast(pa.string())
    if pa.types.is_date(kind):
        return values.cast(pa.date32()).cast(pa.string())
    texts = pc.replace_substring(values.cast(pa.timestamp("s"), safe=False).cast(pa.string()), " ", "T")
    mark = "" if kind.tz is None else "Z"
    is_midnight = pc.ends_with(texts, "T00:00:00")
    return pc.if_else(is_midnight, pc.utf8_slice_codeunits(texts, 0, -9), pc.binary_join_element_wise(texts, mark, ""))


def _float_text(value: np.floating, decimals: int | None) -> str | None:
    if not np.isfinite(value):
        return None
    if decimals is not None:
        return f"{value:.{decimals}f}"
    size = abs(value)
    if size == 0:
        return "0"
    if not SCIENTIFIC[0] <= size < SCIENTIFIC[1]:
        return np.format_float_scientific(value, NUM_DECIMALS, unique=True, trim="-")
    return np.format_float_positional(value, NUM_DECIMALS, unique=True, fractional=bool(size >= 0.1), trim="-")


def _exact_text(value: Decimal | int | None, decimals: int | None) -> str | None:
    if value is None:
        return None
    return f"{value:f}" if decimals is None else f"{value:.{decimals}f}"


def find_fields(
    wanted: WantedFields, inputs: Mapping[str, ParquetInput], missing: Sequence[MissingColumns]
) -> tuple[PassageFields, list[MissingColumns]]:
    """The input of each field, and an error for each field that none has.

    Args:
        wanted: the fields.
        inputs: those that were opened.
        missing: of those that were not, since they lack other columns.

    Raises:
        InputError: both candidates and documents have a column of that name.
    """
    looked: Looked = {error.source: (error.file, error.columns) for error in missing} | {
        source: (opened.files_with_rows[0], opened.columns)
        for source, opened in inputs.items()
        if source != "queries" and opened.files_with_rows
    }
    names, sources, errors = [], [], []
    for field in wanted.names:
        name, allowed = split_field(field)
        asked = [source for source in ("nested",) if source in looked] or [each for each in allowed if each in looked]
        having = [source for source in asked if _has(*looked[source], _column_name(source, name))]
        if len(having) > 1:
            paths = " and ".join(f"{source}: {looked[source][0].path}" for source in having)
            raise InputError(
                f"[prompt] fields: {paths} both have a column {name!r}. Write 'candidates.{name}' or "
                f"'documents.{name}'."
            )
        if asked and not having:
            errors.append(_missing(looked, asked, name))
        names.append(name)
        sources.append(having[0] if having else allowed[0])
    found = tuple("candidates" if source == "nested" else source for source in sources)
    return PassageFields(tuple(names), found, wanted.decimals), errors


def _column_name(source: str, name: str) -> str:
    return f"candidates.{name}" if source == "nested" else name


def _column(columns: Sequence[Column], name: str) -> Column:
    inner = (field for column in columns for field in column.fields)
    return next(column for column in (*columns, *inner) if column.name == name)


def _has(file: InputFile, columns: Sequence[Column], name: str) -> bool:
    path = _column(columns, name).file_name
    if "candidates" not in {column.name for column in columns}:
        return type_at(file.schema, path) is not None
    struct = inner_struct(type_at(file.schema, _column(columns, "candidates").file_name))
    return struct is not None and type_at(struct, path) is not None


def _missing(looked: Looked, asked: Sequence[str], name: str) -> MissingColumns:
    """The error of a field, with the name that it may have in the input that has one like it."""
    ours = {source: _column_name(source, name) for source in asked}
    guesses = {source: _guess(*looked[source], ours[source]) for source in asked}
    source = next((each for each in asked if guesses[each] != UNKNOWN), asked[-1])
    column = _column(looked[source][1], ours[source])
    found = "; ".join(
        f"{each}: {looked[each][0].path} ({', '.join(paths_told(looked[each][0].schema, [column]))})" for each in asked
    )
    told = f"[prompt] fields: no column {column.file_name!r} in {found}"
    return MissingColumns(told, source, {column.name: guesses[source]}, looked[source])


def _guess(file: InputFile, columns: Sequence[Column], name: str) -> str:
    def as_required(column: Column) -> Column:
        is_required = column.is_required or column.name == name
        return replace(column, is_required=is_required, fields=tuple(map(as_required, column.fields)))

    wanted = list(map(as_required, columns))
    return names_for(file, wanted, [column for column in wanted if column.name == name]).get(name, UNKNOWN)
