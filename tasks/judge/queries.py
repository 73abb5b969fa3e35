"""SQL for analysts, read-only and also while a run writes; and one query of one run, explained.

A reader opens, retries a held lock every 10 ms up to a second, and closes after its statement. Knows nothing of how
rows came to be.
"""

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pyarrow.csv as csv
import pyarrow.parquet as pq
from rich.console import Console

from tasks.database import SQL_FOLDER, DatabaseLimits, open_database, read_sql
from tasks.errors import ConfigError, PackrankError, StoreError
from tasks.judge.summary import SummaryTable, listing, pairs, print_tables
from tasks.redaction import printable
from tasks.settings import StoreSettings

MAX_TABLE_ROWS = 1_000
RANKED = ("complete", "published")


@dataclass(frozen=True, slots=True)
class RankedRun:
    """A run of which every query has its row."""

    run_id: str
    name: str
    night: date
    settings: dict[str, Any]  # as given, defaults filled in


def run_statement(database: Path, statement: str) -> pa.Table:
    """The rows of a statement, or of the file of sql/reports with that name.

    Raises:
        StoreError: no such database, or a writer holds it for longer than a second.
        ConfigError: DuckDB cannot run the statement; its own words, which point at the place.
    """
    if (SQL_FOLDER / "reports" / f"{statement}.sql").is_file():
        statement = read_sql(f"reports/{statement}")
    return read_rows(database, statement, {})


def list_reports() -> pa.Table:
    """The files of sql/reports by name, each with its header comment: what it shows, units included."""
    paths = sorted((SQL_FOLDER / "reports").glob("*.sql"))
    headers = [read_sql(f"reports/{path.stem}").splitlines()[0].removeprefix("-- ") for path in paths]
    return pa.table({"report": [path.stem for path in paths], "shows": headers})


def write_result(rows: pa.Table, form: Literal["table", "csv", "json", "parquet"], output: Path | None) -> None:
    """Writes rows to a file or to stdout.

    Raises:
        ConfigError: Parquet without a file.
    """
    if form == "parquet":
        if output is None:
            raise ConfigError("--format parquet needs --output FILE.")
        pq.write_table(rows, output)
    elif form == "csv":
        flat = _flat(rows)
        if output is None and sys.stdout.isatty():  # a file or a pipe gets the data as it is
            flat = pa.table(
                {name: _shown(column) for name, column in zip(flat.column_names, flat.columns, strict=True)}
            )
        csv.write_csv(flat, output if output is not None else sys.stdout.buffer)
    elif form == "json":
        text = json.dumps(rows.to_pylist(), default=str, ensure_ascii=False, indent=1)
        _write_text(_escaped(text), output)
    else:
        shown = listing(_rows_title(rows), rows.slice(0, MAX_TABLE_ROWS).to_pylist())
        tables = [shown] if shown is not None else [SummaryTable("0 rows", tuple(rows.column_names), ())]
        if output is None:
            print_tables(tables, Console())
        else:
            with output.open("w", encoding="utf-8") as stream:
                print_tables(tables, Console(file=stream, width=200))


def explain_query(database: Path, run_id: str, query_id: str) -> list[SummaryTable]:
    """One query of a run: its row, its windows with answers and cuts, and its order before and after.

    Raises:
        PackrankError: the run has no such query.
    """
    names = {"run_id": run_id, "query_id": query_id}
    (ranking,) = read_rows(database, read_sql("explain/ranking"), names).to_pylist() or [None]
    if ranking is None:
        raise PackrankError(f"{database}: run {run_id!r} has no query {query_id!r}. `packrank runs` lists the runs.")
    windows = read_rows(database, read_sql("explain/windows"), names).to_pylist()
    outcomes = read_rows(database, read_sql("explain/outcomes"), names).to_pylist()
    note = "The run is published: what each window answered was dropped." if windows and not outcomes else None
    aside = read_rows(database, read_sql("explain/quarantine"), names).to_pylist()
    order = read_rows(database, read_sql("explain/order"), names).to_pylist()
    tables = [
        pairs(f"Query {query_id} of run {run_id}", [(name, value) for name, value in ranking.items()], note),
        listing("Windows, candidates in prompt order", windows),
        listing("Answers, candidates best first", outcomes),
        listing("Set aside", aside),
        listing("Order before and after", order),
    ]
    return [table for table in tables if table is not None]


def find_ranked_run(database: Path, run_id: str) -> RankedRun:
    """A finished run.

    Raises:
        PackrankError: there is none of that id, or it is unfinished: half a night is not taken for a whole one.
    """
    (run,) = read_rows(database, read_sql("run/find_run"), {"run_id": run_id}).to_pylist() or [None]
    if run is None:
        raise PackrankError(f"{database}: no run {run_id!r}. `packrank runs` lists them.")
    if run["status"] not in RANKED:
        raise PackrankError(
            f"{database}: run {run_id} is {run['status']!r}, wanted {' or '.join(RANKED)}. "
            "Run its command again, it goes on from what was committed."
        )
    return _ranked_run(run)


def find_newest_run(database: Path, name: str) -> RankedRun:
    """The finished run of the series that started last.

    Raises:
        PackrankError: the series has none.
    """
    (run,) = read_rows(database, read_sql("judge/find_newest_run"), {"name": name}).to_pylist() or [None]
    if run is None:
        raise PackrankError(f"{database}: no complete or published run of {name!r}. `packrank runs` lists them.")
    return _ranked_run(run)


def read_rows(database: Path, statement: str, parameters: Mapping[str, object]) -> pa.Table:
    """The rows of a statement, read-only; the database is open for that only.

    Raises:
        StoreError: no such database, or a writer holds it for longer than a second.
        ConfigError: DuckDB cannot run the statement.
    """
    if not database.exists():
        raise StoreError(f"{database}: no such database. Run a night first, or give --database.")
    store = StoreSettings()
    limits = DatabaseLimits(store.memory_limit, store.threads, database.parent / "tmp" / "readers")
    with open_database(database, limits, read_only=True) as opened:
        try:
            return opened.query_text(statement, parameters)
        except StoreError as error:
            raise ConfigError(f"SQL: {' '.join(str(error).split())}") from error


def _flat(rows: pa.Table) -> pa.Table:
    """CSV has no lists: they become JSON texts."""
    columns: dict[str, Any] = {}
    for name, column in zip(rows.column_names, rows.columns, strict=True):
        nested = pa.types.is_nested(column.type)
        columns[name] = (
            [None if value is None else json.dumps(value) for value in column.to_pylist()] if nested else column
        )
    return pa.table(columns)


def _shown(column: pa.ChunkedArray) -> pa.ChunkedArray | list[str | None]:
    """A column of texts as a terminal may see it."""
    if not pa.types.is_string(column.type):
        return column
    return [None if value is None else printable(value) for value in column.to_pylist()]


def _escaped(text: str) -> str:
    """JSON with control and format characters by their numbers: the same values, and no harm on a terminal."""
    return (
        "".join(each if each == "\n" or printable(each) == each else json.dumps(each)[1:-1] for each in text)
        if not text.replace("\n", "").isprintable()
        else text
    )


def _ranked_run(run: dict[str, Any]) -> RankedRun:
    return RankedRun(run["run_id"], run["name"], run["night"], json.loads(run["settings"]))


def _rows_title(rows: pa.Table) -> str:
    shown = min(rows.num_rows, MAX_TABLE_ROWS)
    return f"{rows.num_rows} rows" + (f", first {shown} shown" if shown < rows.num_rows else "")


def _write_text(text: str, output: Path | None) -> None:
    if output is None:
        print(text)
    else:
        output.write_text(text + "\n", encoding="utf-8")
