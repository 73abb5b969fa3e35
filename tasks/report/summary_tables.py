"""One model of a table, and how a terminal shows it; `table_formats` has its other forms.

Cells are values, not texts: each rendering makes its own of them. Knows nothing of where the rows come from.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, is_dataclass, replace
from datetime import UTC, datetime
from numbers import Integral
from typing import Any, Literal

from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.console import Console, RenderableType
from rich.markup import escape
from rich.panel import Panel
from rich.table import Table

from tasks.system.redaction import hide_url_secrets, printable

Level = Literal["bad", "caution"]

LEAST_WIDTH = 80  # of a terminal: on a narrower one lines wrap
TEXT_WIDTH = 100  # of sentences where nobody says how wide lines are
UNFOLDED_WIDTH = 10_000
LONGEST_WORD = 60  # an id or a path of so many characters is never cut
FEW_ROWS = 3  # are printed row by row where their columns do not fit
GAP = 2  # between two columns
HEADING_PART = re.compile(r"[^\s_]*[\s_]?")
LINE_END = re.compile(r"(?: |\x1b\[[0-9;]*m)+$")  # blanks, among what begins and ends styles
NUMBER = re.compile(r"[<+-]?\d[\d,.]*(%|\s.*)?")


@dataclass(frozen=True, slots=True)
class Notice:
    """What everybody who looks at a run has to see, even if it is published: a box wherever the run is shown."""

    level: Level  # bad: red, caution: yellow
    title: str
    text: str


@dataclass(frozen=True, slots=True)
class Worded:
    """A cell that people read in other words than programs do, such as a range of seconds."""

    value: object
    text: str


@dataclass(frozen=True, slots=True)
class SummaryTable:
    """A titled table; `note` says what a reader may miss. One with an alarm is a box of one sentence."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[object, ...], ...]
    note: str | None = None
    wraps: bool = False  # sentences: folded also where nobody says how wide lines are
    alarm: Level | None = None
    is_raw: bool = False  # one text, printed line by line as it is
    name: str | None = None  # what programs know it by; the title up to its first comma if not given

    @property
    def key(self) -> str:
        """The table's key in JSON and CSV."""
        return self.name or key_of(self.title.partition(",")[0])

    @property
    def texts(self) -> tuple[tuple[str, ...], ...]:
        """The rows as people read them."""
        return tuple(tuple(map(_text, row)) for row in self.rows)

    @property
    def is_pairs(self) -> bool:
        """Whether its rows are names and values."""
        return self.columns == ("", "value")


def pairs(
    title: str, figures: Sequence[tuple[str, object]], note: str | None = None, name: str | None = None
) -> SummaryTable:
    """A table of names and values."""
    return SummaryTable(title, ("", "value"), tuple(figures), note, name=name)


def listing(title: str, rows: Sequence[Mapping[str, object]], note: str | None = None) -> SummaryTable | None:
    """A table of rows with equal keys; None if there are none."""
    return SummaryTable(title, tuple(rows[0]), tuple(tuple(row.values()) for row in rows), note) if rows else None


def boxed(notice: Notice) -> SummaryTable:
    """A notice as a box."""
    return SummaryTable(notice.title, ("",), ((notice.text,),), alarm=notice.level)


def print_tables(tables: Sequence[SummaryTable], console: Console) -> None:
    """The tables for people, boxes last: what stands at the end is what people see.

    On a terminal they fold at its width. Of a table with more columns than fit there some are left out, and named; a
    few rows are printed one by one instead. In a pipe a row is a line.
    """
    for table in (each for each in tables if not each.alarm):
        if table.is_raw:
            console.rule(_plain(table.title), align="left", style="none")
            raw = hide_url_secrets(str(table.rows[0][0]))
            console.print(raw, markup=False, highlight=False, soft_wrap=True)
            continue
        sentences = max(console.width, LEAST_WIDTH) if console.is_terminal else TEXT_WIDTH
        width = sentences if console.is_terminal or table.wraps else UNFOLDED_WIDTH
        _emit(console, f"\n[bold]{_plain(table.title)}[/bold]", sentences)
        shown, left_out = _fitting(table, width)
        drawn = _grid(shown, width)
        for part in _records(shown) if drawn is None else [drawn]:
            _emit(console, part, width)
        narrow = f"Left out at {width} columns: {', '.join(left_out)}." if left_out else None
        for note in filter(None, (narrow, table.note)):
            _emit(console, f"[dim italic]{_plain(note)}[/dim italic]", sentences)
    for table in (each for each in tables if each.alarm):
        style = "red" if table.alarm == "bad" else "yellow"
        text = Panel(_plain(table.texts[0][0]), title=_plain(table.title), border_style=style, title_align="left")
        _emit(console, text, min(TEXT_WIDTH, max(console.width, LEAST_WIDTH)))


def value_text(value: object) -> str:
    """A value as people read it: numbers grouped, four places below 100, times to the second, '-' for none.

    >>> value_text(12345), value_text([1, 2]), value_text({"name": "cascade", "keep": 30, "then": {"name": "single"}})
    ('12,345', '1, 2', 'cascade (keep 30, then single)')
    """
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:,.2f}" if abs(value) >= 100 else f"{value:.4f}"
    if isinstance(value, datetime):
        return f"{value.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC" if value.tzinfo else f"{value:%Y-%m-%d %H:%M:%S}"
    if isinstance(value, Integral):
        return f"{int(value):,}"
    if isinstance(value, Worded):
        return safe_text(value.text)
    if is_dataclass(value) and not isinstance(value, type):
        value = asdict(value)
    if isinstance(value, Mapping):
        return _mapping_text(value)
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return ", ".join(map(value_text, value))
    return safe_text(str(value))


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


def key_of(words: str) -> str:
    """Words as one name for programs: letters, digits and underscores.

    >>> key_of("Prompt tokens, cut"), key_of("simulated nDCG@10")
    ('prompt_tokens_cut', 'simulated_ndcg_10')
    """
    return re.sub(r"\W+", "_", words.lower()).strip("_") or "what"


def _mapping_text(values: Mapping[Any, object]) -> str:
    """What has a name is called by it."""
    told = ", ".join(f"{safe_text(str(key))} {value_text(value)}" for key, value in values.items() if key != "name")
    if "name" not in values:
        return told
    return f"{value_text(values['name'])} ({told})" if told else value_text(values["name"])


def _grid(table: SummaryTable, width: int) -> RenderableType | None:
    """The table in columns, cells folded; None where its words do not fit beside each other."""
    columns = list(zip(*table.texts, strict=True)) or [()] * len(table.columns)
    widths = _widths(table.columns, columns, width)
    if widths is None:
        return None
    drawn = Table(box=SIMPLE_HEAD, show_edge=False, padding=(0, GAP - 1, 0, 0), pad_edge=False)
    for heading, cells, chosen in zip(table.columns, columns, widths, strict=True):
        justify: Literal["left", "right"] = "right" if _is_numeric(cells) and not table.is_pairs else "left"
        drawn.add_column(_folded(heading, chosen), justify=justify, width=chosen, overflow="fold")
    for row in table.texts:
        drawn.add_row(*map(escape, row))
    return drawn


def _fitting(table: SummaryTable, width: int) -> tuple[SummaryTable, list[str]]:
    """The table with the columns that fit, and those that do not: empty ones go first, then ones of equal cells."""
    left_out: list[str] = []
    while len(table.rows) > FEW_ROWS and len(table.columns) > 1:
        columns = list(zip(*table.texts, strict=True))
        unfolded = _widths(table.columns, columns, UNFOLDED_WIDTH) or [UNFOLDED_WIDTH]
        same = [place for place, cells in enumerate(columns) if len(set(cells)) == 1]
        empty = [place for place in same if columns[place][0] == "-"]
        if (not empty and _widths(table.columns, columns, width)) or sum(unfolded) + GAP * (len(unfolded) - 1) <= width:
            break
        place = (empty or same or [len(columns) - 1])[-1]
        left_out.insert(0, f"{table.columns[place]} ({columns[place][0]})" if same else table.columns[place])
        rows = tuple(row[:place] + row[place + 1 :] for row in table.rows)
        table = replace(table, columns=table.columns[:place] + table.columns[place + 1 :], rows=rows)
    return table, left_out


def _widths(headings: Sequence[str], columns: Sequence[Sequence[str]], width: int) -> list[int] | None:
    """The columns' widths: the widest give way until all fit; None where that would cut a word."""
    both = [(heading, *cells) for heading, cells in zip(headings, columns, strict=True)]
    widths = [max(cell_len(line) for text in texts for line in text.split("\n")) for texts in both]
    words = [
        [*HEADING_PART.findall(heading), *(word for cell in cells for word in cell.split())] for heading, *cells in both
    ]
    least = [max((min(cell_len(word.strip()), LONGEST_WORD) for word in each), default=0) for each in words]
    excess = sum(widths) + GAP * (len(widths) - 1) - width
    while excess > 0:
        widest = max(range(len(widths)), key=lambda place: (widths[place] > least[place]) * widths[place])
        if widths[widest] <= least[widest]:
            return None
        widths[widest] -= 1
        excess -= 1
    return widths


def _folded(heading: str, width: int) -> str:
    """A heading in lines of so many characters: it may end one after a blank or an underscore."""
    lines = [""]
    for part in HEADING_PART.findall(heading):
        fits = cell_len(f"{lines[-1]}{part.strip()}") <= width
        lines = [*lines[:-1], lines[-1] + part] if fits else [*lines, part]
    return "\n".join(_plain(line.strip()) for line in lines if line)


def _records(table: SummaryTable) -> Iterator[RenderableType]:
    """The table row by row, a line a value."""
    for number, row in enumerate(table.texts, 1):
        drawn = Table.grid(padding=(0, GAP, 0, 0))
        drawn.add_column(style="bold")
        drawn.add_column(overflow="fold")
        for heading, cell in zip(table.columns, row, strict=True):
            drawn.add_row(_plain(heading), escape(cell))
        yield f"[dim]row {number}[/dim]"
        yield drawn


def _is_numeric(cells: Sequence[str]) -> bool:
    told = [cell for cell in cells if cell not in ("", "-")]
    return 2 * sum(NUMBER.fullmatch(cell) is not None for cell in told) > len(told)


def _emit(console: Console, part: RenderableType, width: int) -> None:
    """Prints it without the blanks that fill lines up; a reader that leaves ends the command."""
    narrow, console.width = console.width, width
    try:
        with console.capture() as drawn:
            console.print(part, highlight=False)
    finally:
        console.width = narrow
    console.file.write(
        "".join(LINE_END.sub(lambda end: end[0].replace(" ", ""), line) + "\n" for line in drawn.get().split("\n")[:-1])
    )


def _text(cell: object) -> str:
    """A cell's text; the lines of one that has several stay lines."""
    lines = cell.split("\n") if isinstance(cell, str) else [value_text(cell)]
    return "\n".join(map(safe_text, lines))


def safe_text(text: str) -> str:
    """A text without what a terminal would obey, and without URLs' secrets."""
    return hide_url_secrets(printable(text))


def _plain(text: str) -> str:
    """A text that neither terminal nor rich takes for anything else; whatever table it comes from."""
    return escape(safe_text(text))
