"""The columns of an input's files: which are needed, of which types they may be, and that all files agree."""

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import pyarrow as pa

from tasks.inputs.footers import ParquetFile
from tasks.system.errors import InputError

Kind = Literal["id", "text", "rank", "score", "relevance", "nested"]
WANTED = {
    "id": "text or integers",
    "text": "text",
    "rank": "integers",
    "score": "numbers",
    "relevance": "integers",
    "nested": "list<struct<doc_id, text, score>>",
}
USUAL_NAMES = {  # of our columns, by those who call them otherwise
    "query_id": ("qid", "q_id", "topic_id"),
    "doc_id": ("docid", "docno", "did", "pid", "document_id", "passage_id", "corpus_id"),
    "text": ("body", "content", "contents", "passage", "query", "question"),
    "relevance": ("label", "rel", "grade"),
    "candidates": ("hits", "results", "passages", "documents"),
}
SQL_TYPES: dict[Kind, str] = {
    "id": "varchar",
    "text": "varchar",
    "rank": "bigint",
    "score": "double",
    "relevance": "int",
}


@dataclass(frozen=True, slots=True)
class Column:
    """One column that we read: our name for it, what it holds, and its name in the files."""

    name: str
    kind: Kind
    file_name: str
    is_required: bool = True
    is_all_or_none: bool = False  # optional, but a part without it beside a part with it is an error


def check_schema(source: str, file: ParquetFile, columns: Sequence[Column]) -> None:
    """Whether a file has the columns, of kinds that fit.

    Raises:
        InputError: one is missing, stands there twice, or is of another kind.
    """
    names = file.schema.names
    missing = [column for column in columns if column.is_required and column.file_name not in names]
    if missing:
        raise InputError(f"{source}: {file.path} ({file.num_rows} rows): {_missing(source, missing, file.schema)}")
    for column in columns:
        found = names.count(column.file_name)
        if found > 1:
            raise InputError(f"{source}: {file.path}: {found} columns are named {column.file_name!r}. Keep one.")
        if found == 1:
            _check_kind(source, file, column)


def _missing(source: str, columns: Sequence[Column], schema: pa.Schema) -> str:
    names = ", ".join(repr(column.file_name) for column in columns)
    said = f"no column{'s' if len(columns) > 1 else ''} {names}"
    nested = [field.name for field in schema if _is_candidate_list(field.type)]
    if nested and source != "nested":
        kind = schema.field(nested[0]).type
        return f"{said}: this is the nested layout ({nested[0]}: {kind}); name it as [inputs] nested."
    structs = [field.name for field in schema if pa.types.is_nested(field.type)]
    inside = [column for column in columns if column.file_name.partition(".")[0] in structs]
    if inside:
        name = inside[0].file_name
        new = inside[0].name
        return f"{said}: a field inside a column cannot be named. Write it as a column of its own: {name} as {new}."
    guesses = _guesses(columns, schema.names)
    of = {name: f" for {name}" if len(columns) > 1 else "" for name in guesses}
    hint = f" Is it {', '.join(f'{theirs!r}{of[ours]}' for ours, theirs in guesses.items())}?" if guesses else ""
    wanted = ", ".join(column.name for column in columns)
    return (
        f"{said} (found: {', '.join(schema.names)}).{hint} Rename upstream or set [inputs.columns.{source}] {wanted}."
    )


def _guesses(columns: Sequence[Column], names: Sequence[str]) -> dict[str, str]:
    """Our columns -> those of the file that they may be, each once: by names that are usual, then by spelling."""
    free = {name.lower(): name for name in names}
    guesses: dict[str, str] = {}
    for column in columns:
        usual = [name for name in USUAL_NAMES.get(column.name, ()) if name in free]
        alike = difflib.get_close_matches(column.file_name.lower(), free, n=1)
        for name in (usual + alike)[:1]:
            guesses[column.name] = free.pop(name)
    return guesses


def _check_kind(source: str, file: ParquetFile, column: Column) -> None:
    found = file.schema.field(column.file_name).type
    if _is_of_kind(found, column.kind):
        return
    raise InputError(
        f"{source}: {file.path}: column {column.file_name!r} holds {found} in {file.num_rows} rows, "
        f"wanted {WANTED[column.kind]}.{_cast_hint(column, found)}"
    )


def _cast_hint(column: Column, found: pa.DataType) -> str:
    """What to write upstream, in SQL."""
    name = column.file_name
    if column.kind == "nested":
        return " The fields inside must have these names; they cannot be mapped."
    if _is_binary(found):
        return f" Cast it to text (UTF-8) upstream: decode({name}) in DuckDB."
    if column.kind == "id" and pa.types.is_floating(found):
        return f" Write it as text: cast(cast({name} as bigint) as varchar)."
    if pa.types.is_boolean(found) or pa.types.is_nested(found):
        return ""
    return f" Write cast({name} as {SQL_TYPES[column.kind]})."


def _is_of_kind(found: pa.DataType, kind: Kind) -> bool:
    if pa.types.is_dictionary(found):
        return _is_of_kind(found.value_type, kind)
    if pa.types.is_null(found):
        return True  # all of its rows are null
    if kind == "id":
        return _is_text(found) or is_whole(found)
    if kind == "text":
        return _is_text(found)
    if kind == "nested":
        return _is_candidate_list(found)
    is_number = is_whole(found) or pa.types.is_floating(found)
    return is_number or (kind == "score" and pa.types.is_decimal(found))


def is_whole(found: pa.DataType) -> bool:
    """Whether the numbers are whole: integers, or decimals without places, such as Snowflake's NUMBER(38,0)."""
    return bool(pa.types.is_integer(found) or (pa.types.is_decimal(found) and found.scale == 0))


def _is_text(found: pa.DataType) -> bool:
    return bool(pa.types.is_string(found) or pa.types.is_large_string(found) or pa.types.is_string_view(found))


def _is_binary(found: pa.DataType) -> bool:
    return bool(pa.types.is_binary(found) or pa.types.is_large_binary(found) or pa.types.is_binary_view(found))


def _is_candidate_list(found: pa.DataType) -> bool:
    if not (pa.types.is_list(found) or pa.types.is_large_list(found)):
        return False
    if pa.types.is_null(found.value_type):
        return True  # all of its lists are empty
    if not pa.types.is_struct(found.value_type):
        return False
    fields = {field.name: field.type for field in found.value_type}
    kinds: Mapping[str, Kind] = {"doc_id": "id", "text": "text"}
    return all(name in fields and _is_of_kind(fields[name], kind) for name, kind in kinds.items())


def check_drift(source: str, files: Sequence[ParquetFile], columns: Sequence[Column]) -> None:
    """Parts of one input that disagree about a column."""
    for column in columns:
        having = [file for file in files if column.file_name in file.schema.names]
        if column.is_all_or_none and 0 < len(having) < len(files):
            lacking = next(file for file in files if file not in having)
            raise InputError(
                f"{source}: {lacking.path}: no column {column.file_name!r} in its {lacking.num_rows} rows, which "
                f"{having[0].path} has. Write all parts with it, or none."
            )
        if column.kind == "id":
            types = {file.path: file.schema.field(column.file_name).type for file in having}
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
    if column.kind in ("id", "text"):
        return pa.string()
    return pa.float64() if column.kind == "score" else pa.int64()
