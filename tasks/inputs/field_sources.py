"""Which input has each of `[prompt] fields`, or what to write where none has it, or both. Reads footers only."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from tasks.inputs.fields import PassageFields, WantedFields, split_field
from tasks.inputs.footers import InputFile
from tasks.inputs.missing_columns import UNKNOWN, MissingColumns, names_for, paths_told
from tasks.inputs.parquet_files import ParquetInput
from tasks.inputs.parquet_schema import Column, inner_struct, type_at
from tasks.system.errors import InputError

Looked = Mapping[str, tuple[InputFile, tuple[Column, ...]]]  # by source: a file with rows, and what is read of it


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
