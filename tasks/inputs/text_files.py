"""Reads CSV, JSON Lines and TREC runs, compressed by gzip or not, as a night reads Parquet.

A file is read through once when it is opened: its columns, how many rows, a digest, and whether each line can be read.
Ids and texts are as written; rank, score and relevance become numbers when rows are read. Memory is bounded by chunks
of CHUNK_ROWS and CHUNK_CHARS. Knows nothing of what the columns mean.
"""

import json
from collections.abc import Iterator, Sequence
from hashlib import sha256
from typing import Any

import pyarrow as pa

from tasks.inputs.footers import InputFile, version_of
from tasks.inputs.locations import Located, file_errors
from tasks.inputs.parquet_schema import Column
from tasks.inputs.text_rows import HEAD_BYTES, JSON, Lines, open_text, rows_of, separator_and_names, value_at
from tasks.system.errors import InputError, InputNotReady

CHUNK_ROWS = 8_192
CHUNK_CHARS = 16 << 20
WANTED_VALUES = {
    "id": "text or a number",
    "text": "text",
    "nested": "a list of objects",
    "field": "text, a number, true or false",
}
WRITTEN = ("id", "text", "field")  # kinds whose values are as written


def open_text_file(source: str, located: Located, path: str) -> InputFile:
    """Reads a file through: which columns, how many rows, and that every line is whole.

    Raises:
        InputNotReady: 0 bytes, or compressed and cut short.
        InputError: naming the line that cannot be read.
    """
    where = f"{source}: {path}"
    with file_errors(where):
        version = version_of(located.filesystem, path)
        size = located.filesystem.size(path)
    if size == 0:
        raise InputNotReady(f"{where}: 0 bytes. Write it again.")
    with open_text(where, located.filesystem, path) as stream:
        separator, names = separator_and_names(where, path, stream.read(HEAD_BYTES))
    digest, num_rows = sha256(), 0
    shape: dict[str, Any] = {}
    with open_text(where, located.filesystem, path) as stream:
        for _, row in rows_of(Lines(where, stream, digest.update), separator, len(names)):
            num_rows += 1
            if separator == JSON:
                _merge(shape, row)
    fields = list(_type_of(shape)) if separator == JSON else [pa.field(name, pa.string()) for name in names]
    return InputFile(
        path=path,
        filesystem=located.filesystem,
        relative_path=located.relative(path),
        size_bytes=size,
        num_rows=num_rows,
        schema=pa.schema(fields),
        sha256=digest.hexdigest(),
        version=version,
        separator=separator,
    )


def read_text_rows(file: InputFile, where: str, columns: Sequence[Column]) -> Iterator[pa.RecordBatch]:
    """The columns under their names in the file, in chunks: ids, texts and fields as text, numbers as float64.

    An id of no characters is null, and so is a number.

    Raises:
        InputError: naming the line whose value is not of the column's kind.
    """
    assert file.separator is not None, "not a text file"
    names, is_json = file.schema.names, file.separator == JSON
    places = [-1 if is_json else names.index(column.file_name) for column in columns]
    kept: list[list[Any]] = [[] for _ in columns]
    num_chars = 0
    with open_text(where, file.filesystem, file.path) as stream:
        for number, row in rows_of(Lines(where, stream), file.separator, len(names)):
            for column, place, values in zip(columns, places, kept, strict=True):
                found = value_at(row, column.file_name) if is_json else row[place]
                values.append(_value(f"{where}, line {number}: ", column, found))
                num_chars += _num_chars(values[-1])
            if len(kept[0]) == CHUNK_ROWS or num_chars > CHUNK_CHARS:
                yield _batch(columns, kept)
                kept, num_chars = [[] for _ in columns], 0
    if kept[0]:
        yield _batch(columns, kept)


def _merge(shape: dict[str, Any], row: dict[str, Any]) -> None:
    """Adds what an object holds: name -> None (text), a dict (an object's) or a list of one dict (its objects')."""
    for name, value in row.items():
        known = shape.setdefault(name)
        if isinstance(value, dict):
            shape[name] = known if isinstance(known, dict) else {}
            _merge(shape[name], value)
        elif isinstance(value, list):
            shape[name] = known if isinstance(known, list) else [{}]
            for inside in value:
                if isinstance(inside, dict):
                    _merge(shape[name][0], inside)


def _type_of(shape: Any) -> pa.DataType:
    if isinstance(shape, list):
        return pa.list_(_type_of(shape[0]))
    if isinstance(shape, dict):
        return pa.struct([(name, _type_of(inside)) for name, inside in shape.items()])
    return pa.string()


def _value(where: str, column: Column, found: Any) -> Any:
    if found is None or (found == "" and column.kind != "text"):
        return None
    if column.kind == "nested" and isinstance(found, list) and all(isinstance(each, dict) for each in found):
        fields = _inner(column)
        return [
            {each.file_name: _value(where, each, value_at(inside, each.file_name)) for each in fields}
            for inside in found
        ]
    if isinstance(found, str) and column.kind in WRITTEN:
        return found
    if isinstance(found, bool) and column.kind == "field":
        return "yes" if found else "no"
    try:
        if isinstance(found, str) and column.kind != "nested":
            return float(found)
    except ValueError:
        pass
    wanted = WANTED_VALUES.get(column.kind, "a number, with a decimal point")
    said = json.dumps(found, ensure_ascii=False)
    said = said if len(said) <= 40 else f"{said[:40]}..."
    raise InputError(f"{where}{column.file_name!r} is {said}, expected {wanted}.")


def _inner(column: Column) -> list[Column]:
    """What is read of a list's objects, once where a field of the prompt is the score too."""
    return list({field.file_name: field for field in reversed(column.fields)}.values())


def _num_chars(value: Any) -> int:
    if isinstance(value, list):
        return sum(_num_chars(field) for inside in value for field in inside.values())
    return len(value) if isinstance(value, str) else 0


def _batch(columns: Sequence[Column], kept: list[list[Any]]) -> pa.RecordBatch:
    """Texts with bytes that are no UTF-8, or half a character, as binary: the decoder reports them."""
    arrays = []
    for column, values in zip(columns, kept, strict=True):
        try:
            arrays.append(pa.array(values, _read_type(column, pa.string())))
        except UnicodeEncodeError:
            arrays.append(pa.array(_as_bytes(values), _read_type(column, pa.binary())))
    return pa.RecordBatch.from_arrays(arrays, names=[column.file_name for column in columns])


def _read_type(column: Column, text: pa.DataType) -> pa.DataType:
    if column.kind == "nested":
        return pa.list_(pa.struct([(field.file_name, _read_type(field, text)) for field in _inner(column)]))
    return text if column.kind in WRITTEN else pa.float64()


def _as_bytes(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _as_bytes(inside) for name, inside in value.items()}
    if isinstance(value, list):
        return [_as_bytes(inside) for inside in value]
    return value.encode("utf-8", "surrogatepass") if isinstance(value, str) else value
