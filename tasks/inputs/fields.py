"""`[prompt] fields`: columns of candidates and documents that stand beside a passage, and their values as texts.

A value is written alike on every host and in every night: dates by ISO 8601, decimals as they are, booleans as yes and
no, floats with four decimals at most. Null, NaN and infinity have no text. Knows nothing of prompts.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tasks.inputs.parquet_schema import Column, is_text_type

NUM_DECIMALS = 4  # of floats; of those below 0.1, digits
SCIENTIFIC = (1e-6, 1e16)  # floats below and above are written with an exponent
SOURCES = ("candidates", "documents")


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


def split_field(field: str) -> tuple[str, tuple[str, ...]]:
    """The name of our column, and the inputs that it may be in.

    >>> split_field("documents.date"), split_field("score")
    (('date', ('documents',)), ('score', ('candidates', 'documents')))
    """
    source, _, name = field.partition(".")
    return (name, (source,)) if source in SOURCES and name else (field, SOURCES)


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
