"""Tables as JSON or CSV, with values where people read words, and as Markdown; of whatever they are."""

import csv
import io
import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, is_dataclass
from datetime import date
from math import isfinite
from numbers import Integral, Real
from typing import Literal

from rich.console import Console
from tabulate import tabulate

from tasks.report.summary_tables import SummaryTable, Worded, key_of, print_tables, safe_text
from tasks.system.redaction import hide_url_secrets, printable

RowForm = Literal["table", "json", "csv"]


def write_tables(tables: Sequence[SummaryTable], form: RowForm, console: Console | None = None) -> None:
    """The tables on stdout: for people as `print_tables` has them, for programs by `tables_json` or `tables_csv`.

    Boxes are for people alone.
    """
    if form == "table":
        print_tables(tables, console or Console())
        return
    shown = [table for table in tables if not table.alarm]
    sys.stdout.write(tables_json(shown) if form == "json" else tables_csv(shown))


def to_markdown(tables: Sequence[SummaryTable]) -> str:
    """The tables as GitHub-style Markdown; what Markdown or HTML would take for markup is escaped."""
    parts = []
    for table in tables:
        if table.alarm:
            parts.append(f"> **{_plain_markdown(table.title)}.** {_plain_markdown(table.texts[0][0])}\n")
            continue
        rows = [list(map(_plain_markdown, row)) for row in table.texts]
        headers = list(map(_plain_markdown, table.columns))
        drawn = tabulate(rows, headers=headers, tablefmt="github", disable_numparse=True)
        parts.append(f"## {_plain_markdown(table.title)}\n\n{drawn}\n")
        if table.note:
            parts.append(f"{_plain_markdown(table.note)}\n")
    return "\n".join(parts)


def tables_json(tables: Sequence[SummaryTable]) -> str:
    """One object, a key a table: of names and values an object, of any other table a list of objects."""
    written = {table.key: _values(table) if table.is_pairs else list(_objects(table)) for table in tables}
    return f"{harmless(json.dumps(written, ensure_ascii=False, indent=2, allow_nan=False))}\n"


def tables_csv(tables: Sequence[SummaryTable]) -> str:
    """One table by its columns; several, or names and values, as table, row, column and value: a line a value."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    if len(tables) == 1 and not tables[0].is_pairs:
        writer.writerow(map(key_of, tables[0].columns))
        writer.writerows(map(_csv_cell, row.values()) for row in _objects(tables[0]))
        return text.getvalue()
    writer.writerow(("table", "row", "column", "value"))
    for table in tables:
        rows = [_values(table)] if table.is_pairs else _objects(table)
        for number, row in enumerate(rows, 1):
            writer.writerows((table.key, number, column, _csv_cell(value)) for column, value in row.items())
    return text.getvalue()


def harmless(text: str) -> str:
    """JSON with control and format characters by their numbers: the same values, and no harm on a terminal."""
    if text.replace("\n", "").isprintable():
        return text
    return "".join(each if each == "\n" or printable(each) == each else json.dumps(each)[1:-1] for each in text)


def _values(table: SummaryTable) -> dict[str, object]:
    return {key_of(str(name)): _plain_value(value) for name, value in table.rows}


def _objects(table: SummaryTable) -> Iterator[dict[str, object]]:
    names = list(map(key_of, table.columns))
    return (dict(zip(names, map(_plain_value, row), strict=True)) for row in table.rows)


def _plain_value(value: object) -> object:
    """A value of JSON's types; a number that is none is a text."""
    if isinstance(value, Worded):
        return _plain_value(value.value)
    if is_dataclass(value) and not isinstance(value, type):
        value = asdict(value)
    if isinstance(value, Mapping):
        return {str(key): _plain_value(inner) for key, inner in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return list(map(_plain_value, value))
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real) and isfinite(value):
        return float(value)
    return value.isoformat() if isinstance(value, date) else hide_url_secrets(str(value))


def _csv_cell(value: object) -> object:
    if isinstance(value, dict | list | bool):
        return json.dumps(value, ensure_ascii=False)
    return printable(value) if isinstance(value, str) and sys.stdout.isatty() else value


def _plain_markdown(text: str) -> str:
    return re.sub(r"([\\|\[\]<`])", r"\\\1", safe_text(text))
