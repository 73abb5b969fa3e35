"""A run's result in at most twelve lines: for the end of a command, and for the top of Prefect's artifacts.

Knows nothing of how the run's tables look; `summary` has those.
"""

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.cells import set_cell_size
from rich.console import Console
from rich.panel import Panel
from rich.text import Text

from tasks.inputs.excerpts import find_query_texts, find_titles
from tasks.inputs.parquet_files import ParquetInput
from tasks.report.summary import notices_of
from tasks.report.summary_tables import Notice, SummaryTable, duration_text
from tasks.report.table_formats import to_markdown
from tasks.store.night_store import Store
from tasks.system.errors import PackrankError, first_line
from tasks.system.redaction import hide_url_secrets, printable

TEXTS_S = 2.0  # for reading the example's texts again: a corpus of millions is not searched for six titles
WAIT_S = 10.0  # for the database's lock: nobody waits longer for what is only looked at
STATUS_WORDS = {"complete": "complete, not published"}

Row = Mapping[str, Any]
logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Example:
    """One query in words, with its first three before and after; ids where texts were not found in time."""

    query: str
    gain: tuple[float, float] | None  # nDCG@10 before and after; None without judgments
    firsts: tuple[tuple[str, str], ...]  # titles before and after, by rank


@dataclass(frozen=True, slots=True)
class Headline:
    """What the user who started a run needs to know first."""

    run: Row  # of run_summary
    gains: Row | None  # None without judgments
    reordering: Row
    checks: Sequence[Row]
    notices: Sequence[Notice]
    example: Example | None  # None where no query has two candidates

    @property
    def status(self) -> str:
        """In a word or two."""
        return STATUS_WORDS.get(self.run["status"], str(self.run["status"]))

    @property
    def size(self) -> str:
        """How much was ranked, and how long it took."""
        run = self.run
        left_out = [("reused", "num_reused_queries"), ("not ranked", "num_unranked_queries")]
        told = ", ".join(f"{run[column]:,} {word}" for word, column in left_out if run[column])
        return (
            f"{run['num_queries'] or 0:,} queries{f' ({told})' if told else ''}, "
            f"{run['num_candidates'] or 0:,} candidates, {duration_text(run['elapsed_s'])}"
        )

    @property
    def effect(self) -> str:
        """Quality before and after, or what moved where nobody judged."""
        if self.gains is None:
            moved = self.reordering
            if not moved["num_queries"]:
                return "no query has two candidates to order"
            return (
                f"no judgments; another first document in {moved['num_new_firsts']:,} of {moved['num_queries']:,} "
                f"queries, overlap@10 {moved['mean_overlap_at_10']:.2f}"
            )
        gains = self.gains
        return (
            f"{gains['measure']} {gains['first_stage']:.4f} -> {gains['reranked']:.4f}: "
            f"{gains['num_better']:,} queries better, {gains['num_worse']:,} worse, {gains['num_equal']:,} equal"
        )

    @property
    def verdict(self) -> str:
        """The checks in one line."""
        failed = [check["check_name"] for check in self.checks if not check["passed"]]
        if not self.checks:
            return "not checked"
        if not failed:
            return f"all {len(self.checks)} checks hold"
        return f"{len(failed)} of {len(self.checks)} checks failed: {', '.join(failed)}"

    @property
    def sentence(self) -> str:
        """All of it in one line, for lists of runs."""
        return f"{self.status}; {self.effect}; {self.size}; {self.verdict}"

    def to_markdown(self) -> str:
        """The result as Markdown, for the beginning of an artifact."""
        example = "" if self.example is None else f"{_example_markdown(self.example)}\n\n"
        boxes = [SummaryTable(each.title, ("",), ((each.text,),), alarm=each.level) for each in self.notices]
        head = f"**{self.run['run_id']}: {self.status}.** {self.size}; {self.verdict}.\n\n**{self.effect}.**\n\n"
        return f"{head}{to_markdown(boxes)}\n{example}"


def read_headline(store: Store, run_id: str, inputs: Mapping[str, ParquetInput]) -> Headline:
    """What came of a run.

    Args:
        store: its database.
        run_id: the run.
        inputs: its opened files by source, where the example's texts are; without them it has ids.

    Raises:
        PackrankError: no such run, or somebody else holds the database.
    """
    names = ("run", "canary_modes", "id_masses", "volumes", "checks", "gains", "reordering", "first_three")
    with store.reader(WAIT_S) as database:
        tables = {
            f"summary/{name}": database.query(f"summary/{name}", {"run_id": run_id}).to_pylist() for name in names
        }
    if not tables["summary/run"]:
        raise PackrankError(f"no run {run_id!r} in the database. `packrank runs` lists them.")
    return Headline(
        run=tables["summary/run"][0],
        gains=next(iter(tables["summary/gains"]), None),
        reordering=tables["summary/reordering"][0],
        checks=tables["summary/checks"],
        notices=notices_of(tables),
        example=_example(tables["summary/first_three"], inputs),
    )


def print_headline(
    headline: Headline, places: Mapping[str, Path], console: Console, *, was_done: bool = False, with_box: bool = True
) -> None:
    """At most twelve lines on a terminal of 80 columns.

    Args:
        headline: of the run.
        places: what to look at further, by name; paths below the working directory are shown from there.
        console: where to.
        was_done: whether there was nothing to do.
        with_box: whether the worst notice has a box; false where all of them stand above.
    """
    done = "already done, " if was_done else ""
    lines = [
        f"run {headline.run['run_id']}: {done}{headline.status}",
        f"{headline.size}; {headline.verdict}",
        headline.effect,
    ]
    if headline.example is not None:
        lines += _example_lines(headline.example, console.width)
    _print_lines(lines, console)
    if with_box and headline.notices:
        _print_box(headline.notices, console)
    here = Path.cwd()
    shown = {name: path.relative_to(here) if path.is_relative_to(here) else path for name, path in places.items()}
    _print_lines([f"{name}: {path}" for name, path in shown.items()], console)


def _print_lines(lines: Sequence[str], console: Console) -> None:
    for line in lines:
        console.print(_plain(line), markup=False, highlight=False, soft_wrap=True)


def _print_box(notices: Sequence[Notice], console: Console) -> None:
    """The worst notice's beginning, in a line: `packrank run --verbose` and the page have the rest."""
    worst = notices[0]
    others = f"{len(notices) - 1} more: --verbose" if len(notices) > 1 else None
    console.print(
        Panel(
            Text(_plain(worst.text), no_wrap=True, overflow="ellipsis"),
            title=Text(_plain(worst.title)),
            subtitle=others,
            border_style="red" if worst.level == "bad" else "yellow",
            title_align="left",
            subtitle_align="right",
        )
    )


def _example(rows: Sequence[Row], inputs: Mapping[str, ParquetInput]) -> Example | None:
    if not rows:
        return None
    query_id = rows[0]["query_id"]
    doc_ids = {row[side] for row in rows for side in ("before", "after")}
    query, titles = _texts(query_id, doc_ids, inputs)
    gain = None if rows[0]["reranked"] is None else (rows[0]["first_stage"], rows[0]["reranked"])
    firsts = tuple((titles.get(row["before"], row["before"]), titles.get(row["after"], row["after"])) for row in rows)
    return Example(query or query_id, gain, firsts)


def _texts(
    query_id: str, doc_ids: set[str], inputs: Mapping[str, ParquetInput]
) -> tuple[str | None, Mapping[str, str]]:
    """The query's text and the documents' titles, as far as they are found in time; never a reason to fail."""
    if not inputs:
        return None, {}
    give_up_at = time.monotonic() + TEXTS_S
    try:
        of_queries, of_documents = (inputs.get(name) or inputs["nested"] for name in ("queries", "documents"))
        query = find_query_texts(of_queries, [query_id], give_up_at).get(query_id)
        return query, find_titles(of_documents, query_id, doc_ids, give_up_at)
    except Exception as error:  # other people's files and file systems
        logger.info("the example is shown by its ids: %s", hide_url_secrets(first_line(error)))
        return None, {}


def _example_lines(example: Example, width: int) -> Iterator[str]:
    gain = "" if example.gain is None else f" ({example.gain[0]:.2f} -> {example.gain[1]:.2f})"
    head = f'first three before | after, ""{gain}:'
    yield f'first three before | after, "{_cut(example.query, width - len(head))}"{gain}:'
    half = (width - len("  1  ") - len(" | ")) // 2
    for rank, (before, after) in enumerate(example.firsts, 1):
        yield f"  {rank}  {set_cell_size(_cut(before, half), half)} | {_cut(after, half)}"


def _example_markdown(example: Example) -> str:
    rows = tuple((str(rank), *titles) for rank, titles in enumerate(example.firsts, 1))
    gain = "" if example.gain is None else f", nDCG@10 {example.gain[0]:.4f} -> {example.gain[1]:.4f}"
    return to_markdown([SummaryTable(f"First three of {example.query}{gain}", ("", "before", "after"), rows)])


def _cut(text: str, width: int) -> str:
    """One line of at most `width` columns; Korean letters take two."""
    line = Text(" ".join(_plain(text).split()))
    line.truncate(max(width, 1), overflow="ellipsis")
    return line.plain


def _plain(text: str) -> str:
    return hide_url_secrets(printable(text))
