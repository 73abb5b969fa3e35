"""SQL for analysts, read-only and also while a run writes.

A reader opens, retries a held lock every 10 ms up to a second, and closes after its statement. Knows nothing of how
rows came to be.
"""

import io
import json
import os
import re
import shutil
import sys
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Literal, TypeVar

import pyarrow as pa
import pyarrow.csv as csv
import pyarrow.parquet as pq
from rich.console import Console

from tasks.report.summary_tables import SummaryTable, listing, print_tables
from tasks.report.table_formats import harmless
from tasks.settings import StoreSettings
from tasks.store.schema import has_schema
from tasks.system.atomic_files import whole_file
from tasks.system.database import SQL_FOLDER, DatabaseLimits, KeptDatabase, open_database, read_sql
from tasks.system.errors import ConfigError, StoreError, first_line
from tasks.system.redaction import printable

MAX_TABLE_ROWS = 1_000

Form = Literal["table", "csv", "json", "parquet"]
Answer = TypeVar("Answer")

INTEGER_TYPES = frozenset(
    f"{sign}{size}" for sign in ("", "u") for size in ("tinyint", "smallint", "integer", "bigint")
)
PLAIN_TYPES = INTEGER_TYPES | {"boolean", "hugeint", "float", "double", "decimal", "varchar"}
PARQUET_NESTING = frozenset({"list", "array", "struct", "tuple", "map"})
PARQUET_TYPES = (
    PLAIN_TYPES
    | PARQUET_NESTING
    | {"blob", "date", "time", "time_ns", "timestamp", "timestamp_s", "timestamp_ms", "timestamp_ns"}
    | {"timestamp with time zone"}
)
PARQUET_NEEDS_A_FILE = "--format parquet needs --output FILE."

JSON_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|-?Infinity|NaN')  # a text whole, so that none is looked for inside
NOT_NUMBERS = {"NaN": '"nan"', "Infinity": '"inf"', "-Infinity": '"-inf"'}


def run_statement(database: Path, statement: str) -> pa.Table:
    """The rows of a statement, or of the file of sql/reports with that name, as a table or CSV can hold them.

    Raises:
        StoreError: no such database, another packrank's, or a writer holds it for longer than a second.
        ConfigError: DuckDB cannot run the statement; its own words, which point at the place.
    """
    text = _named(statement)
    return read_database(database, lambda opened: opened.query_as(text, _text_of_column))


def write_answer(database: Path, statement: str, form: Form, output: Path | None) -> None:
    """Runs a statement as `run_statement` does, and writes its rows to a file or to stdout.

    No value passes through Python's types: what a format has no type for is the text that DuckDB prints. In JSON, NaN
    and the infinities are such texts; in CSV and tables, lists and structs are JSON.

    Raises:
        ConfigError: Parquet without a file, a file that is the database; or see `run_statement`.
        PackrankError: the file cannot be written.
    """
    if output is not None and output.exists() and database.exists() and output.samefile(database):
        raise ConfigError(f"--output {output}: that is the database itself. Name another file.")
    text = _named(statement)
    if form == "json":
        lines = read_database(database, lambda opened: opened.query_json(text))
        _write_json(list(map(_strict, lines)), output)
    elif form == "parquet":
        if output is None:  # before the statement takes its time
            raise ConfigError(PARQUET_NEEDS_A_FILE)
        rows = read_database(database, lambda opened: opened.query_as(text, _parquet_column))
        write_result(rows, form, output)
    else:
        write_result(run_statement(database, statement), form, output)


def list_reports() -> pa.Table:
    """The files of sql/reports by name, each with its header comment: what it shows, units included."""
    names = _report_names()
    headers = [read_sql(f"reports/{name}").splitlines()[0].removeprefix("-- ") for name in names]
    return pa.table({"report": names, "shows": headers})


def write_result(rows: pa.Table, form: Form, output: Path | None) -> None:
    """Writes rows of numbers, truth values and texts to a file or to stdout; in Parquet also of Parquet's other types.

    Raises:
        ConfigError: Parquet without a file.
        PackrankError: the file cannot be written.
    """
    if form == "parquet":
        if output is None:
            raise ConfigError(PARQUET_NEEDS_A_FILE)
        with whole_file(output) as stream:
            pq.write_table(rows, stream)
    elif form == "csv":
        _write_csv(rows, output)
    elif form == "json":
        lines = [json.dumps(row, ensure_ascii=False, allow_nan=False) for row in rows.to_pylist()]
        _write_json(lines, output)
    else:
        shown = listing(_rows_title(rows), rows.slice(0, MAX_TABLE_ROWS).to_pylist())
        tables = [shown] if shown is not None else [SummaryTable("0 rows", tuple(rows.column_names), ())]
        if output is None:
            print_tables(tables, Console())
        else:
            text = io.StringIO()
            print_tables(tables, Console(file=text, width=200))
            _write_text(text.getvalue(), output)


def read_rows(database: Path, statement: str, parameters: Mapping[str, object]) -> pa.Table:
    """The rows of a statement of ours, read-only; the database is open for that only.

    Raises:
        StoreError: no such database, another packrank's, or a writer holds it for longer than a second.
        ConfigError: DuckDB cannot run the statement.
    """
    return read_database(database, lambda opened: opened.query_text(statement, parameters))


def read_database(database: Path, ask: Callable[[KeptDatabase], Answer]) -> Answer:
    """What `ask` finds in the database, read-only; it is open for that only.

    Raises:
        StoreError, ConfigError: see `read_rows`.
    """
    try:
        is_there = database.exists()
    except PermissionError as error:
        raise StoreError(f"{database}: no permission to open its folder. Ask its owner, or give --database.") from error
    if not is_there:
        raise StoreError(f"{database}: no such database. Run a night first, or give --database.")
    store = StoreSettings()
    spill = database.with_name(f".{database.name}.{os.getpid()}.spill")  # made by DuckDB, which makes no parents
    limits = DatabaseLimits(store.memory_limit, store.threads, spill)
    try:
        with open_database(database, limits, read_only=True) as opened:
            has_schema(opened, database)
            return _asked(opened, ask)
    finally:
        shutil.rmtree(spill, ignore_errors=True)  # the one folder that a statement could write to


def _asked(opened: KeptDatabase, ask: Callable[[KeptDatabase], Answer]) -> Answer:
    try:
        return ask(opened)
    except StoreError as error:
        raise ConfigError(f"SQL: {' '.join(str(error).split())}") from error


def _report_names() -> list[str]:
    return sorted(path.stem for path in (SQL_FOLDER / "reports").glob("*.sql"))


def _named(statement: str) -> str:
    """The text of the report that has this name, or of the file *.sql; or the statement itself.

    Raises:
        ConfigError: one word that is neither, or the file cannot be read.
    """
    if statement in _report_names():
        return read_sql(f"reports/{statement}")
    if re.fullmatch(r"\S+\.sql", statement):
        try:
            return Path(statement).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"sql: {statement}: cannot be read: {first_line(error)}") from error
    if re.fullmatch(r"\w+", statement):
        near = get_close_matches(statement, _report_names(), n=1)
        raise ConfigError(
            f"sql: no report {statement!r}.{f' Is it {near[0]}?' if near else ''} `packrank sql --list` lists them; a "
            f'table or view is queried by a statement, such as "from {statement}".'
        )
    return statement


def _text_of_column(column: str, type_names: frozenset[str]) -> str:
    if type_names <= PLAIN_TYPES:
        return column
    return f"cast({'to_json(' + column + ')' if type_names & PARQUET_NESTING else column} as varchar)"


def _parquet_column(column: str, type_names: frozenset[str]) -> str:
    return column if type_names <= PARQUET_TYPES else f"cast({column} as varchar)"


def _strict(text: str) -> str:
    """JSON as its standard has it: DuckDB writes NaN and Infinity, which few readers take, as bare words."""
    return JSON_TOKEN.sub(lambda found: NOT_NUMBERS.get(found[0], found[0]), text)


def _shown(column: pa.ChunkedArray) -> pa.ChunkedArray | list[str | None]:
    """A column of texts as a terminal may see it."""
    if not pa.types.is_string(column.type):
        return column
    return [None if value is None else printable(value) for value in column.to_pylist()]


def _rows_title(rows: pa.Table) -> str:
    shown = min(rows.num_rows, MAX_TABLE_ROWS)
    counted = "1 row" if rows.num_rows == 1 else f"{rows.num_rows:,} rows"
    return counted + (f", first {shown:,} shown" if shown < rows.num_rows else "")


def _write_csv(rows: pa.Table, output: Path | None) -> None:
    if output is not None:
        with whole_file(output) as stream:
            csv.write_csv(rows, stream)
        return
    if sys.stdout.isatty():  # a file or a pipe gets the data as it is
        shown = map(_shown, rows.columns)
        rows = pa.table(list(shown), names=rows.column_names)
    csv.write_csv(rows, sys.stdout.buffer)


def _write_json(lines: list[str], output: Path | None) -> None:
    """An array of objects, one a line."""
    text = ",\n".join(map(harmless, lines))
    _write_text(f"[\n{text}\n]\n" if lines else "[]\n", output)


def _write_text(text: str, output: Path | None) -> None:
    if output is None:
        print(text, end="")
        return
    with whole_file(output) as stream:
        stream.write(text.encode())
