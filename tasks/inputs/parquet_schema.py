"""The columns of an input's files: which are needed, of which types they may be, and that all files agree.

A name may lead inside a column: `query.text` is the field `text` of the column `query`, where no column is called so.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import pyarrow as pa
import pyarrow.compute as pc

from tasks.inputs.footers import InputFile
from tasks.system.errors import InputError

Kind = Literal["id", "text", "rank", "score", "relevance", "nested", "field"]
WANTED = {
    "id": "text or integers",
    "text": "text",
    "rank": "integers",
    "score": "numbers",
    "relevance": "integers",
    "nested": "list<struct<doc_id, text, score>>",
    "field": "text, numbers, booleans, dates or times",
}
SQL_TYPES: dict[Kind, str] = {
    "id": "varchar",
    "text": "varchar",
    "rank": "bigint",
    "score": "double",
    "relevance": "int",
    "field": "varchar",
}


@dataclass(frozen=True, slots=True)
class Column:
    """One column that we read: our name for it, what it holds, and its name in the files."""

    name: str
    kind: Kind
    file_name: str
    is_required: bool = True
    is_all_or_none: bool = False  # optional, but a part without it beside a part with it is an error
    fields: tuple["Column", ...] = ()  # of the nested layout's lists, 'candidates.doc_id': doc_id, text, score

    def fits(self, found: pa.DataType, *, is_text: bool) -> bool:
        """Whether a column of the type may hold it; in a text file, whose numbers are text, too."""
        if pa.types.is_dictionary(found):
            return self.fits(found.value_type, is_text=is_text)
        if pa.types.is_null(found):
            return True  # all of its rows are null
        if self.kind == "id":
            return is_text_type(found) or is_whole(found)
        if self.kind == "field":
            return any(is_kind(found) for is_kind in FIELD_KINDS)
        if self.kind == "text" or (is_text and self.kind != "nested"):
            return is_text_type(found)
        if self.kind == "nested":
            struct = inner_struct(found)
            types = {} if struct is None else {each: type_at(struct, each.file_name) for each in self.fields}
            return struct is not None and all(
                kind is None or each.fits(kind, is_text=is_text) for each, kind in types.items()
            )
        is_number = is_whole(found) or pa.types.is_floating(found)
        return is_number or (self.kind == "score" and pa.types.is_decimal(found))


def type_at(fields: pa.Schema | pa.StructType, name: str) -> pa.DataType | None:
    """The type of a column, or of a field inside one; None if it is not there. Of several of one name, the first."""
    found = next((field.type for field in fields if field.name == name), None)
    if found is not None:
        return found
    outer, _, inner = name.partition(".")
    inside = type_at(fields, outer) if inner else None
    return type_at(inside, inner) if inside is not None and pa.types.is_struct(inside) else None


def values_at(columns: pa.RecordBatch | pa.StructArray, name: str) -> pa.Array | None:
    """The values of a column, or of a field inside one; None if it is not there."""
    is_batch = isinstance(columns, pa.RecordBatch)
    if name in {field.name for field in (columns.schema if is_batch else columns.type)}:
        return columns.column(name) if is_batch else pc.struct_field(columns, name)
    outer, _, inner = name.partition(".")
    inside = values_at(columns, outer) if inner else None
    return values_at(inside, inner) if inside is not None and pa.types.is_struct(inside.type) else None


def inner_struct(found: pa.DataType) -> pa.StructType | None:
    """Of a list of structs, the struct; of lists that are all empty, one without fields."""
    if not (pa.types.is_list(found) or pa.types.is_large_list(found)):
        return None
    if pa.types.is_null(found.value_type):
        return pa.struct([])
    return found.value_type if pa.types.is_struct(found.value_type) else None


def lacking_columns(file: InputFile, columns: Sequence[Column]) -> list[Column]:
    """Those that the file has to have and has not; also fields of its lists of candidates."""
    lacking = [each for each in columns if each.is_required and type_at(file.schema, each.file_name) is None]
    for column in columns:
        struct = inner_struct(type_at(file.schema, column.file_name) or pa.null()) if column.fields else None
        if struct is not None and struct.num_fields:
            lacking += [each for each in column.fields if each.is_required and type_at(struct, each.file_name) is None]
    return lacking


def check_schema(source: str, file: InputFile, columns: Sequence[Column]) -> None:
    """Whether the columns that a file has are of kinds that fit.

    Raises:
        InputError: one stands there twice, or is of another kind.
    """
    for column in columns:
        times = file.schema.names.count(column.file_name)
        if times > 1:
            raise InputError(f"{source}: {file.path}: {times} columns are named {column.file_name!r}. Keep one.")
        found = type_at(file.schema, column.file_name)
        if found is None or column.fits(found, is_text=file.is_text):
            continue
        struct = inner_struct(found)
        for field in column.fields if struct is not None else ():
            inside = type_at(struct, field.file_name)
            if inside is not None and field.kind == "field" and not field.fits(inside, is_text=file.is_text):
                column, found = field, inside
        raise InputError(
            f"{source}: {file.path}: column {column.file_name!r} holds {found} in {file.num_rows} rows, "
            f"expected {WANTED[column.kind]}.{_cast_hint(column, found)}"
        )


def _cast_hint(column: Column, found: pa.DataType) -> str:
    """What to write upstream, in SQL."""
    name = column.file_name
    if _is_binary(found):
        return f" Cast it to text (UTF-8) upstream: decode({name}) in DuckDB."
    if column.kind == "field" and pa.types.is_list(found):
        return f" Write array_to_string({name}, ', ')."
    if column.kind == "id" and pa.types.is_floating(found):
        return f" Write it as text: cast(cast({name} as bigint) as varchar)."
    if column.kind == "nested" or pa.types.is_boolean(found) or pa.types.is_nested(found):
        return ""
    return f" Write cast({name} as {SQL_TYPES[column.kind]})."


def is_whole(found: pa.DataType) -> bool:
    """Whether the numbers are whole: integers, or decimals without places, such as Snowflake's NUMBER(38,0)."""
    return bool(pa.types.is_integer(found) or (pa.types.is_decimal(found) and found.scale == 0))


def is_text_type(found: pa.DataType) -> bool:
    """Whether the values are texts."""
    return bool(pa.types.is_string(found) or pa.types.is_large_string(found) or pa.types.is_string_view(found))


FIELD_KINDS = (
    *(is_text_type, pa.types.is_boolean, pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal),
    *(pa.types.is_date, pa.types.is_time, pa.types.is_timestamp),
)


def _is_binary(found: pa.DataType) -> bool:
    return bool(pa.types.is_binary(found) or pa.types.is_large_binary(found) or pa.types.is_binary_view(found))


def check_drift(source: str, files: Sequence[InputFile], columns: Sequence[Column]) -> None:
    """Parts of one input that disagree about a column."""
    for column in columns:
        having = [file for file in files if type_at(file.schema, column.file_name) is not None]
        if column.is_all_or_none and 0 < len(having) < len(files):
            lacking = next(file for file in files if file not in having)
            raise InputError(
                f"{source}: {lacking.path}: no column {column.file_name!r} in its {lacking.num_rows} rows, which "
                f"{having[0].path} has. Write all parts with it, or none."
            )
        if column.kind == "id":
            types = {file.path: type_at(file.schema, column.file_name) or pa.null() for file in having}
            having = [file for file in having if not pa.types.is_null(types[file.path])]
            integers = [file for file in having if is_whole(types[file.path])]
            if 0 < len(integers) < len(having):
                text = next(file for file in having if file not in integers)
                raise InputError(
                    f"{source}: column {column.file_name!r} holds integers in {integers[0].path} and text in "
                    f"{text.path}. Write one type."
                )


def normal_type(column: Column) -> pa.DataType:
    """What a column is read as, however the file stores it."""
    if column.kind in ("id", "text", "field"):
        return pa.string()
    return pa.float64() if column.kind == "score" else pa.int64()
