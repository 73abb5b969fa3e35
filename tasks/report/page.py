"""A run's page: its head, its sections, the queries that moved most, and the HTML around them."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from tasks.report.page_sections import MEASURE, RunFacts, sections_of
from tasks.report.page_tables import Cell, Row, Table, difference_text, flat_table, measured_cell, text_cell
from tasks.report.run_texts import PASSAGE_CHARS, QUERY_CHARS, RunTexts, beginning
from tasks.report.summary import notices_of
from tasks.report.summary_tables import duration_text, value_text
from tasks.store.runs import Run
from tasks.system.redaction import hide_url_secrets, printable

STATUS_WORDS = {
    "published": ("good", "Published: latest_scores has these scores for its night"),
    "complete": ("plain", "Complete: every query has a row; not published"),
    "running": ("plain", "Running: the figures are of what was loaded so far"),
    "failed": ("bad", "Failed"),
    "cancelled": ("bad", "Cancelled: the same command continues from what was committed"),
    "superseded": ("plain", "Superseded: another run of the night took its place"),
}
PROVENANCE = (
    *("model", "model_identity", "device", "dtype", "enable_prefix_caching", "host"),
    *("num_gpu_blocks", "block_size", "max_num_seqs"),
    *("max_num_batched_tokens", "input_digest", "input_partition", "input_notes", "git_commit", "flow_run_id"),
    *("started_at", "finished_at", "published_at"),
)


@dataclass(frozen=True, slots=True)
class HeadLine:
    """One line of the head: a label, and cells that belong together."""

    label: str
    cells: list[Cell]
    is_wide: bool = False


@dataclass(frozen=True, slots=True)
class MoverGroup:
    """Queries with their first tens, below one heading."""

    title: str
    note: str
    movers: list[Row]


def render_page(facts: RunFacts, texts: RunTexts) -> str:
    """The page's HTML; everything from data is escaped."""
    environment = Environment(
        autoescape=True,
        undefined=StrictUndefined,
        loader=FileSystemLoader(Path(__file__).parent),
        trim_blocks=True,
        lstrip_blocks=True,
    )
    sections, absent = sections_of(facts)
    page = {
        "run": facts.run,
        "status": STATUS_WORDS.get(facts.run.status, ("plain", facts.run.status)),
        "trouble": _trouble(facts.run),
        "notices": notices_of(facts.tables),
        "headline": _headline(facts),
        "sections": sections,
        "absent": absent if facts.tables["movers"] else [*absent, "Queries before and after: none has moved."],
        "movers": _movers(facts, texts),
        "movers_note": texts.note,
        "provenance": _provenance(facts.run),
        "settings": flat_table("All settings, defaults filled in", "settings", facts.run.settings),
    }
    text = environment.get_template("report.html.jinja").render(page)
    return "\n".join(map(printable, text.split("\n")))  # ids stand in attributes too, and a page may be shown by cat


def _trouble(run: Run) -> str | None:
    """What the person on call needs to know first."""
    told = []
    if run.error:
        told.append(hide_url_secrets(run.error))
    if run.is_degraded:
        told.append(f"Degraded: checks failed: {', '.join(run.failed_checks or []) or 'see below'}.")
    return " ".join(told) or None


def _headline(facts: RunFacts) -> list[HeadLine]:
    """The headline figures, the widest lines on top."""
    summary = facts.summary
    return [
        *_gains(facts),
        HeadLine("Ranked by", [text_cell("run_summary", "ranked_by", summary)], is_wide=True),
        *_reordering(facts),
        HeadLine("Night", [text_cell("run_summary", "night", summary)]),
        HeadLine("Model", [Cell(hide_url_secrets(summary["model"]), "run_summary.model")]),
        HeadLine("Queries", [text_cell("run_summary", "num_queries", summary)]),
        HeadLine("Candidates", [text_cell("run_summary", "num_candidates", summary)]),
        HeadLine("Elapsed", [text_cell("run_summary", "elapsed_s", summary, duration_text(summary["elapsed_s"]))]),
        HeadLine("Preemptions", [text_cell("run_summary", "num_preemptions", summary)]),
        HeadLine("Fallback queries", [_fallback_cell(summary)]),
    ]


def _gains(facts: RunFacts) -> list[HeadLine]:
    """The mean of the measure before and after, and how many queries gained and lost."""
    differences = [row["difference"] for row in facts.tables["page/quality_by_query"]]
    counts = f"{sum(each > 0 for each in differences)} better, {sum(each < 0 for each in differences)} worse"
    return [
        HeadLine(
            f"{MEASURE}, before → after",
            [
                measured_cell(row, "first_stage"),
                Cell("→"),
                measured_cell(row, "reranked"),
                Cell(f"({row['reranked'] - row['first_stage']:+.4f}; {counts})"),
            ],
            is_wide=True,
        )
        for row in facts.tables["summary/quality"]
        if row["measure"] == MEASURE and None not in row.values()
    ]


def _reordering(facts: RunFacts) -> list[HeadLine]:
    """What reranking changed, which needs no judgments."""
    row = facts.tables["page/reordering"][0]
    if not row["num_queries"]:
        return []
    firsts = f"{row['num_new_firsts']:,} of {row['num_queries']:,} ({row['num_new_firsts'] / row['num_queries']:.0%})"
    return [
        HeadLine("Queries with another first", [text_cell("reordering", "num_new_firsts", row, firsts)]),
        HeadLine(
            "First ten in common with the first stage",
            [text_cell("reordering", "mean_overlap_at_10", row, f"{row['mean_overlap_at_10']:.0%}")],
        ),
    ]


def _fallback_cell(summary: Row) -> Cell:
    num, total = summary["num_fallback_queries"], summary["num_queries"]
    share = f" ({num / total:.1%})" if total else ""
    return text_cell("run_summary", "num_fallback_queries", summary, f"{num:,}{share}")


def _movers(facts: RunFacts, texts: RunTexts) -> list[MoverGroup]:
    """The queries that moved most, each with its first ten before and after."""
    tens: dict[str, list[Row]] = {}
    for row in facts.tables["page/first_tens"]:
        name = (row["query_id"], row["doc_id"])
        text = beginning(texts.passages.get(name, ""), PASSAGE_CHARS)
        tens.setdefault(row["query_id"], []).append(row | {"text": text, "grade": texts.grades.get(name)})
    movers = [
        mover
        | {
            "query_id": printable(mover["query_id"]),
            "text": beginning(texts.queries.get(mover["query_id"], ""), QUERY_CHARS),
            "moved": _moved(mover),
            "before": _first_ten(tens.get(mover["query_id"], []), "first_stage_rank"),
            "after": _first_ten(tens.get(mover["query_id"], []), "rank"),
        }
        for mover in facts.tables["movers"]
    ]
    if not facts.tables["page/movers_by_quality"]:
        return (
            [MoverGroup("Queries that moved most", "By places, summed over the first ten.", movers)] if movers else []
        )
    by = f"By the difference of {MEASURE}. Judged documents have their grade."
    groups = [
        MoverGroup("Queries that gained most", by, [mover for mover in movers if mover["difference"] > 0]),
        MoverGroup("Queries that lost most", by, [mover for mover in movers[::-1] if mover["difference"] < 0]),
    ]
    return [group for group in groups if group.movers]


def _moved(mover: Row) -> str:
    if "distance" in mover:
        return f"{mover['distance']:,} places"
    change = difference_text(mover["first_stage"], mover["reranked"])
    return f"{MEASURE} {mover['first_stage']:.4f} → {mover['reranked']:.4f} ({change})"


def _first_ten(rows: Sequence[Row], order: str) -> list[Row]:
    kept = [row | {"doc_id": printable(row["doc_id"])} for row in rows if row[order] <= 10]
    return sorted(kept, key=lambda row: int(row[order]))


def _provenance(run: Run) -> list[Table]:
    row = asdict(run)
    rows = [[Cell(name), text_cell("runs", name, row, hide_url_secrets(value_text(row[name])))] for name in PROVENANCE]
    return [
        Table("The run", (), rows),
        flat_table("Sizes as resolved before the first batch", "resolved", run.resolved),
        flat_table("Versions", "versions", run.versions),
    ]
