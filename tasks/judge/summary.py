"""What a run did, as a few tables: read from the views, so that a log, an artifact and a query cannot disagree.

Knows nothing of Prefect or terminals beyond writing Markdown and rich tables.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console, JustifyMethod
from rich.markup import escape
from rich.measure import Measurement
from rich.table import Table
from tabulate import tabulate

from tasks.database import Database
from tasks.errors import PackrankError
from tasks.keep.store import Store
from tasks.redaction import hide_url_secrets, printable

MS = 1000.0
NATURAL_WIDTH = 10_000
TEXT_WIDTH = 100  # the least that a table of sentences gets

SERVING_ROWS = (  # label as `vllm bench serve` prints it, column, factor
    ("Successful requests", "successful_requests", 1),
    ("Benchmark duration (s)", "duration_s", 1),
    ("Total input tokens", "total_input_tokens", 1),
    ("Total generated tokens", "total_generated_tokens", 1),
    ("Request throughput (req/s)", "requests_per_s", 1),
    ("Output token throughput (tok/s)", "output_tokens_per_s", 1),
    ("Total token throughput (tok/s)", "total_tokens_per_s", 1),
    ("Mean TTFT (ms)", "mean_ttft_s", MS),
    ("Median TTFT (ms)", "median_ttft_s", MS),
    ("P99 TTFT (ms)", "p99_ttft_s", MS),
    ("Mean TPOT (ms)", "mean_tpot_s", MS),
    ("Median TPOT (ms)", "median_tpot_s", MS),
    ("P99 TPOT (ms)", "p99_tpot_s", MS),
    ("Mean ITL (ms)", "mean_itl_s", MS),
    ("Median ITL (ms)", "median_itl_s", MS),
    ("P99 ITL (ms)", "p99_itl_s", MS),
    ("Mean E2EL (ms)", "mean_e2el_s", MS),
    ("Median E2EL (ms)", "median_e2el_s", MS),
    ("P99 E2EL (ms)", "p99_e2el_s", MS),
    ("Mean queue time (ms)", "mean_queue_s", MS),
    ("Median queue time (ms)", "median_queue_s", MS),
    ("P99 queue time (ms)", "p99_queue_s", MS),
)

RUN_ROWS = (
    "run_id",
    "status",
    "night",
    "model",
    "device",
    "strategy",
    "decode_mode",
    "input_partition",
    "elapsed_s",
    "engine_s",
    "forecast_low_s",
    "forecast_high_s",
    "actual_s",
    "num_queries",
    "num_ranked_queries",
    "num_reused_queries",
    "num_single_queries",
    "num_partial_queries",
    "num_fallback_queries",
    "num_unranked_queries",
    "num_candidates",
    "num_quarantined_candidates",
    "num_windows",
    "num_repeated_windows",
    "mean_id_mass",
    "num_batches",
    "prompt_tokens",
    "cached_tokens",
    "output_tokens",
    "num_passages",
    "truncated_passages",
    "truncated_tokens",
    "num_preemptions",
    "error",
)


@dataclass(frozen=True, slots=True)
class SummaryTable:
    """A titled table of texts; `note` says what a reader may miss."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str | None = None
    wraps: bool = False  # sentences: broken over lines on a terminal


def summarise(store: Store, run_id: str) -> list[SummaryTable]:
    """The run's tables: itself, one query before and after, quality, serving figures, blocks, changes, checks, ...

    Raises:
        PackrankError: no such run.
    """
    with store.unit_of_work() as database:
        return _summarise(database, run_id)


def _summarise(database: Database, run_id: str) -> list[SummaryTable]:
    runs = _rows(database, "run", run_id)
    if not runs:
        raise PackrankError(f"no run {run_id!r} in the database. `packrank runs` lists them.")
    tables = [
        pairs("Run", [(name, runs[0][name]) for name in RUN_ROWS if runs[0][name] is not None]),
        listing("Ranked although an earlier night was there", _rows(database, "reuse_reasons", run_id)),
        listing("Set aside", _rows(database, "quarantine", run_id)),
        _before_after(_rows(database, "before_after", run_id)),
        listing("Quality", _rows(database, "quality", run_id)),
        _serving(_rows(database, "serving", run_id)),
        *[pairs("KV-cache budget", list(row.items())) for row in _rows(database, "budget", run_id)],
        listing("Changes since the published night before", _rows(database, "churn", run_id)),
        listing("Checks", _rows(database, "checks", run_id)),
    ]
    return [table for table in tables if table is not None]


def to_markdown(tables: list[SummaryTable]) -> str:
    """The tables as GitHub-style Markdown; what Markdown or HTML would take for markup is escaped."""
    parts = []
    for table in tables:
        rows = [list(map(_plain_markdown, row)) for row in table.rows]
        headers = list(map(_plain_markdown, table.columns))
        drawn = tabulate(rows, headers=headers, tablefmt="github", disable_numparse=True)
        parts.append(f"## {_plain_markdown(table.title)}\n\n{drawn}\n")
        if table.note:
            parts.append(f"{_plain_markdown(table.note)}\n")
    return "\n".join(parts)


def print_tables(tables: list[SummaryTable], console: Console) -> None:
    """The tables on a terminal."""
    terminal_width = console.width
    for table in tables:
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


def _rows(database: Database, name: str, run_id: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = database.query(f"summary/{name}", {"run_id": run_id}).to_pylist()
    return rows


def pairs(title: str, figures: Sequence[tuple[str, object]], note: str | None = None) -> SummaryTable:
    """A table of names and values."""
    return SummaryTable(title, ("", "value"), tuple((name, value_text(value)) for name, value in figures), note)


def listing(title: str, rows: list[dict[str, Any]]) -> SummaryTable | None:
    """A table of rows with equal keys; None if there are none."""
    if not rows:
        return None
    return SummaryTable(title, tuple(rows[0]), tuple(tuple(map(value_text, row.values())) for row in rows))


def _before_after(rows: list[dict[str, Any]]) -> SummaryTable | None:
    shown = [{name: value for name, value in row.items() if name != "query_id"} for row in rows]
    return listing(f"Query {rows[0]['query_id']}: first ten before and after", shown) if rows else None


def _serving(rows: list[dict[str, Any]]) -> SummaryTable | None:
    if not rows:
        return None
    figures = rows[0]
    note = "One-token answers have no TPOT and no ITL." if figures["mean_tpot_s"] is None else None
    shown = [
        (label, "n/a" if figures[column] is None else figures[column] * factor)
        for label, column, factor in SERVING_ROWS
    ]
    return pairs("Serving benchmark", shown, note)
