"""The reference pages, made of the code: `python -m tests.reference` writes all that are stale.

Commands come from the command line itself, tables from the comments of a fresh database, errors from their
classes, decisions from their titles.
"""

import inspect
import re
import signal
import tempfile
from collections.abc import Callable, Iterator
from itertools import groupby
from pathlib import Path

from flows.cli import app
from tasks.store.night_store import Store
from tasks.system import errors
from tasks.system.database import DatabaseLimits, open_database
from tests import faults

ROOT = Path(__file__).resolve().parent.parent
REFERENCE = ROOT / "docs" / "reference"
DECISIONS = ROOT / "docs" / "adr"
MADE = "Generated from {source} by `make reference`; `make check` fails when this page is stale."
SIGNALS = {
    128 + signal.SIGINT: "Ctrl-C. What was committed is kept, and the same command continues from there.",
    128 + signal.SIGPIPE: "The reader of a pipe left, as in `packrank runs \\| head`.",
    128 + signal.SIGTERM: "SIGTERM. What was committed is kept, and the same command continues from there.",
}


def render_commands() -> str:
    """Every command with its options, as cyclopts documents them."""
    # Under `python -m` cyclopts puts the module into each command's usage.
    page = re.sub(r"^(packrank [\w-]+) -m \S+", r"\1", app.generate_docs(), flags=re.MULTILINE)
    usage, _, commands = page.partition("\n**Commands**:\n")
    head = usage.split("## Table of Contents")[0].replace("# packrank", "# Commands", 1).rstrip()
    made = MADE.format(source="`flows/cli.py`")
    return f"{head}\n\n{made} Exit codes are in [Errors and exit codes](errors.md).\n{commands.rstrip()}\n"


def render_tables() -> str:
    """Every table and view with its columns, types and comments."""
    with tempfile.TemporaryDirectory() as folder:
        store = Store(Path(folder) / "x.duckdb", DatabaseLimits("200MB", 1, Path(folder) / "spill"))
        store.prepare()
        with open_database(store.path, store.limits) as database:
            relations = database.query_text(
                "select table_name as name, comment, 'table' as kind from duckdb_tables() where not internal union all "
                "select view_name, comment, 'view' from duckdb_views() where not internal order by kind, name"
            ).to_pylist()
            columns = database.query_text(
                "select table_name, column_name, data_type, comment from duckdb_columns() where not internal "
                "order by table_name, column_index"
            ).to_pylist()
    columns_of = {name: list(rows) for name, rows in groupby(columns, key=lambda row: row["table_name"])}
    return "\n".join(_table_lines(relations, columns_of)) + "\n"


def _table_lines(relations: list[dict], columns_of: dict[str, list[dict]]) -> Iterator[str]:
    yield "# Tables and views\n"
    yield MADE.format(source="the comments in `sql/schema` and `sql/views`")
    yield "\nAll times are UTC. A name that ends in `_s` is in seconds. The same comments are in the database itself:"
    yield "\n    select table_name, column_name, comment from duckdb_columns()\n"
    yield "| name | kind | what it holds |\n| --- | --- | --- |"
    for each in relations:
        yield f"| [`{each['name']}`](#{each['name']}) | {each['kind']} | {_cell(each['comment'])} |"
    for each in relations:
        yield f"\n## {each['name']}\n\n{each['comment']}\n\n| column | type | meaning |\n| --- | --- | --- |"
        for row in columns_of[each["name"]]:
            yield f"| `{row['column_name']}` | {_cell(row['data_type'])} | {_cell(row['comment'])} |"


def render_errors() -> str:
    """Every exit code, and the errors that end a command with it."""
    classes = [
        each
        for _, each in inspect.getmembers(errors, inspect.isclass)
        if issubclass(each, errors.PackrankError) and each.__module__ == errors.__name__
    ]
    classes.sort(key=lambda each: (each.exit_code, inspect.getsourcelines(each)[1]))
    lines = [
        "# Errors and exit codes\n",
        MADE.format(source="`tasks/system/errors.py`"),
        "\nA command that fails prints one line on stderr: where, what was found, what is allowed, what to do. "
        "[Operations](../operations.md#exit-codes) says how each code appears in `runs.status` and in Prefect.\n",
        "| exit code | error | meaning |\n| --- | --- | --- |",
        "| 0 | | The command did what it was asked to, or found it already done. |",
    ]
    lines += [f"| {each.exit_code} | `{each.__name__}` | {_cell(inspect.getdoc(each) or '')} |" for each in classes]
    lines += [f"| {code} | | {meaning} |" for code, meaning in SIGNALS.items()]
    return "\n".join(lines) + "\n"


def render_decisions() -> str:
    """The pages of docs/adr by number and title."""
    titles = {path.name: path.read_text(encoding="utf-8").splitlines()[0] for path in sorted(DECISIONS.glob("0*.md"))}
    rows = [f"- [{title.removeprefix('# ')}]({name})" for name, title in titles.items()]
    return "# Decisions\n\n" + MADE.format(source="`docs/adr`") + "\n\n" + "\n".join(rows) + "\n"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


PAGES: dict[Path, Callable[[], str]] = {
    REFERENCE / "commands.md": render_commands,
    REFERENCE / "tables.md": render_tables,
    REFERENCE / "errors.md": render_errors,
    DECISIONS / "index.md": render_decisions,
    faults.PAGE: faults.render_page,
}


if __name__ == "__main__":
    for page, render in PAGES.items():
        page.write_text(render(), encoding="utf-8")
