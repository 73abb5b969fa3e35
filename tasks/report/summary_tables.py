"""One model of a table for the terminal, Markdown and the page."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from rich.box import SIMPLE_HEAD
from rich.console import Console, JustifyMethod
from rich.markup import escape
from rich.measure import Measurement
from rich.panel import Panel
from rich.table import Table
from tabulate import tabulate

from tasks.system.redaction import hide_url_secrets, printable

Level = Literal["bad", "caution"]
NATURAL_WIDTH = 10_000
TEXT_WIDTH = 100  # the least that a table of sentences gets


@dataclass(frozen=True, slots=True)
class Notice:
    """What whoever looks at a run has to see, although it may be published: a box wherever the run is shown."""

    level: Level  # bad: red, caution: yellow
    title: str
    text: str


@dataclass(frozen=True, slots=True)
class SummaryTable:
    """A titled table of texts; `note` says what a reader may miss. One with an alarm is a box of one sentence."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str | None = None
    wraps: bool = False  # sentences: broken over lines on a terminal
    alarm: Level | None = None
    is_raw: bool = False  # one text, printed line by line as it is


def to_markdown(tables: list[SummaryTable]) -> str:
    """The tables as GitHub-style Markdown; what Markdown or HTML would take for markup is escaped."""
    parts = []
    for table in tables:
        if table.alarm:
            parts.append(f"> **{_plain_markdown(table.title)}.** {_plain_markdown(table.rows[0][0])}\n")
            continue
        rows = [list(map(_plain_markdown, row)) for row in table.rows]
        headers = list(map(_plain_markdown, table.columns))
        drawn = tabulate(rows, headers=headers, tablefmt="github", disable_numparse=True)
        parts.append(f"## {_plain_markdown(table.title)}\n\n{drawn}\n")
        if table.note:
            parts.append(f"{_plain_markdown(table.note)}\n")
    return "\n".join(parts)


def print_tables(tables: list[SummaryTable], console: Console) -> None:
    """The tables on a terminal, boxes last: what stands at the end is what people see."""
    terminal_width = console.width
    for table in (each for each in tables if not each.alarm):
        if table.is_raw:
            console.rule(_plain(table.title), align="left", style="none")
            console.print(hide_url_secrets(table.rows[0][0]), markup=False, highlight=False, soft_wrap=True)
            continue
        title, note = _plain(table.title), None if table.note is None else _plain(table.note)
        drawn = Table(title=title, title_justify="left", title_style="bold", caption=note, box=SIMPLE_HEAD)
        for number, column in enumerate(table.columns):
            justify: JustifyMethod = "left" if number == 0 or table.wraps else "right"
            drawn.add_column(_plain(column), justify=justify, no_wrap=not table.wraps, overflow="fold")
        for row in table.rows:
            drawn.add_row(*map(_plain, row))
        natural = Measurement.get(console, console.options.update(max_width=NATURAL_WIDTH), drawn).maximum
        if not table.wraps:
            console.width = max(console.width, natural)  # a cut id is of no use: the terminal may wrap
        console.print(drawn, width=min(natural, max(TEXT_WIDTH, terminal_width)) if table.wraps else None)
    for table in (each for each in tables if each.alarm):
        style = "red" if table.alarm == "bad" else "yellow"
        panel = Panel(_plain(table.rows[0][0]), title=_plain(table.title), border_style=style, title_align="left")
        console.print(panel, width=min(TEXT_WIDTH, terminal_width))


def value_text(value: object) -> str:
    """A value as people read it: numbers grouped, four places below 100, times to the second, '-' for none."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:,.2f}" if abs(value) >= 100 else f"{value:.4f}"
    if isinstance(value, datetime):
        return f"{value:%Y-%m-%d %H:%M:%S}"
    return f"{value:,}" if isinstance(value, int) else hide_url_secrets(printable(str(value)))


def duration_text(seconds: float | None) -> str:
    """A duration as people read it.

    >>> duration_text(3.25), duration_text(125), duration_text(3725)
    ('3.2 s', '2 min 05 s', '1 h 02 min')
    """
    if seconds is None:
        return "-"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"


def _plain(text: str) -> str:
    """A text that neither terminal nor rich takes for anything else; whatever table it comes from."""
    return escape(hide_url_secrets(printable(text)))


def _plain_markdown(text: str) -> str:
    return re.sub(r"([\\|\[\]<`])", r"\\\1", hide_url_secrets(printable(text)))


def pairs(title: str, figures: Sequence[tuple[str, object]], note: str | None = None) -> SummaryTable:
    """A table of names and values."""
    return SummaryTable(title, ("", "value"), tuple((name, value_text(value)) for name, value in figures), note)


def listing(title: str, rows: list[dict[str, Any]]) -> SummaryTable | None:
    """A table of rows with equal keys; None if there are none."""
    if not rows:
        return None
    return SummaryTable(title, tuple(rows[0]), tuple(tuple(map(value_text, row.values())) for row in rows))


def _box(notice: Notice) -> SummaryTable:
    return SummaryTable(notice.title, ("",), ((notice.text,),), alarm=notice.level)
