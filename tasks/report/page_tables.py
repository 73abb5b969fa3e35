"""The tables of a run's page: cells as text, from rows."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from tasks.report.drawing import Chart
from tasks.report.summary_tables import value_text
from tasks.system.redaction import hide_setting_secrets, hide_url_secrets

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Cell:
    """A value on the page; `key` names where it comes from, `raw` is the value unrounded."""

    text: str
    key: str | None = None
    raw: str | None = None
    note: str | None = None  # below it, smaller


@dataclass(frozen=True, slots=True)
class Table:
    """A table; without columns it is one of names and values."""

    title: str
    columns: tuple[str, ...]
    rows: list[list[Cell]]
    is_wide: bool = False  # over all columns of the page


@dataclass(frozen=True, slots=True)
class PageSection:
    """One heading's content; what is missing is said in `notes`."""

    anchor: str
    title: str
    notes: tuple[str, ...]
    charts: list[Chart]
    tables: list[Table]


def flat_table(title: str, source: str, text: str) -> Table:
    """A JSON object as names and values; secrets in it are hidden."""
    flat = _flattened(hide_setting_secrets(json.loads(text)))  # older databases hold them
    return Table(title, (), [[Cell(name), Cell(shown, f"{source}.{name}")] for name, shown in flat])


def _flattened(value: Any, name: str = "") -> Iterable[tuple[str, str]]:
    """JSON as dotted names and texts."""
    if isinstance(value, dict) and value:
        for key, inner in value.items():
            yield from _flattened(inner, f"{name}.{key}" if name else key)
    else:
        yield name, value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def pair_table(source: str, labelled: Sequence[tuple[str, str]], row: Row) -> list[list[Cell]]:
    """Labels and the values of a row's columns."""
    return [[Cell(label), text_cell(source, column, row)] for label, column in labelled]


def row_table(title: str, source: str, key: str, rows: Sequence[Row]) -> Table:
    """Rows with equal keys; a value's key on the page is source, value of the row's `key`, column."""
    cells = [[text_cell(f"{source}.{row[key]}", column, row) for column in row] for row in rows]
    return Table(title, tuple(name.removeprefix("num_").replace("_", " ") for name in rows[0]) if rows else (), cells)


def measured_cell(row: Row, ranking: str) -> Cell:
    """The value of a measure for one of the rankings."""
    return text_cell(f"metrics.{row['measure']}", ranking, row)


def text_cell(source: str, column: str, row: Row, text: str | None = None) -> Cell:
    """A value of a row; its key on the page is source and column."""
    value = row[column]
    raw = repr(value) if isinstance(value, float) else "" if value is None else hide_url_secrets(str(value))
    return Cell(value_text(value) if text is None else text, f"{source}.{column}", raw)


def difference_text(before: float | None, after: float | None) -> str:
    """With its sign, to four digits."""
    return "-" if before is None or after is None else f"{after - before:+.4f}"


def scaled_text(value: float | None, factor: float) -> str:
    """A number in another unit."""
    return "n/a" if value is None else value_text(value * factor)
