"""A run's page: its sections, from the rows that `report` reads, and the HTML around them."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from tasks.engine.benchmark_table import table_of_run
from tasks.report import charts
from tasks.report.page_tables import (
    Cell,
    PageSection,
    Row,
    Table,
    difference_text,
    flat_table,
    measured_cell,
    pair_table,
    row_table,
    scaled_text,
    text_cell,
)
from tasks.report.run_texts import PASSAGE_CHARS, QUERY_CHARS, RunTexts, beginning
from tasks.report.summary import SERVING_ROWS, notices_of
from tasks.report.summary_tables import duration_text, value_text
from tasks.store.runs import Run
from tasks.system.redaction import hide_url_secrets, printable

MEASURE = "nDCG@10"
MAX_POINTS = {"page/timeline": 2_000, "page/batches": 400}  # of a chart
STATUS_WORDS = {
    "published": ("good", "Published: latest_scores has these scores for its night"),
    "complete": ("plain", "Complete: every query has a row; not published"),
    "running": ("plain", "Running: the figures are of what was loaded so far"),
    "failed": ("bad", "Failed"),
    "cancelled": ("bad", "Cancelled: the same command goes on from what was committed"),
    "superseded": ("plain", "Superseded: another run of the night took its place"),
}
CUT_ROWS = (  # label, column of run_summary
    ("Passages shown, over all windows", "num_passages"),
    ("Passages cut", "truncated_passages"),
    ("Passage tokens left out", "truncated_tokens"),
    ("Windows asked", "num_windows"),
    ("Windows asked again", "num_repeated_windows"),
    ("Mean probability of all identifiers, or of yes and no", "mean_id_mass"),
    ("Queries ranked", "num_ranked_queries"),
    ("Queries with one candidate", "num_single_queries"),
    ("Queries of which windows fell back", "num_partial_queries"),
    ("Queries that the model did not rank", "num_fallback_queries"),
    ("Queries reused from an earlier run", "num_reused_queries"),
    ("Queries without candidates or set aside", "num_unranked_queries"),
    ("Candidate rows set aside", "num_quarantined_candidates"),
)
BUDGET_ROWS = (  # label, column of summary/budget
    ("KV-cache blocks of the engine", "num_gpu_blocks"),
    ("Tokens a block", "block_size"),
    ("Blocks in use at once, measured (needs [packing] timeline)", "most_blocks_in_use"),
    ("Blocks in use at once, estimated", "blocks_at_once"),
    ("Share of the cache, estimated", "cache_share"),
    ("Sequences at once, estimated", "seqs_at_once"),
    ("What allows no more", "limited_by"),
    ("max_num_seqs", "max_num_seqs"),
    ("max_num_batched_tokens", "max_num_batched_tokens"),
    ("Batches", "num_batches"),
    ("Blocks committed together, over several loads of the cache", "blocks_committed_together"),
    ("Empty token places in last blocks", "last_block_waste_tokens"),
)
TOKEN_ROWS = (
    ("Prompt tokens", "prompt_tokens"),
    ("Of these, found in the prefix cache", "cached_tokens"),
    ("Tokens generated", "output_tokens"),
    ("Preemptions", "num_preemptions"),
)
CHURN_ROWS = (
    ("Earlier run", "previous_run_id"),
    ("Queries of both nights", "num_common_queries"),
    ("Queries new", "num_new_queries"),
    ("Queries gone", "num_gone_queries"),
    ("Mean overlap of the first ten", "mean_overlap_at_10"),
    ("Mean rank-biased overlap, p = 0.9", "mean_rbo"),
    ("Queries with another first document", "num_new_firsts"),
)
PROVENANCE = (
    *("model", "model_identity", "device", "dtype", "enable_prefix_caching", "host"),
    *("num_gpu_blocks", "block_size", "max_num_seqs"),
    *("max_num_batched_tokens", "input_digest", "input_partition", "input_notes", "git_commit", "flow_run_id"),
    *("started_at", "finished_at", "published_at"),
)


@dataclass(frozen=True, slots=True)
class RunFacts:
    """All that the page takes from the database, read at once."""

    run: Run
    summary: Row  # of run_summary
    tables: Mapping[str, list[Row]]  # by SQL file

    def one(self, name: str) -> Row | None:
        """The only row of a file's rows, None if there is none."""
        rows = self.tables[name]
        return rows[0] if rows else None


def render_page(facts: RunFacts, texts: RunTexts) -> str:
    """The page's HTML; everything from data is escaped."""
    environment = Environment(
        autoescape=True,
        undefined=StrictUndefined,
        loader=FileSystemLoader(Path(__file__).parent),
        trim_blocks=True,
        lstrip_blocks=True,
    )
    sections = [_quality, _latency, _timeline, _budget, _cuts, _churn]
    page = {
        "run": facts.run,
        "status": STATUS_WORDS.get(facts.run.status, ("plain", facts.run.status)),
        "trouble": _trouble(facts.run),
        "notices": notices_of(facts.tables),
        "headline": _headline(facts),
        "sections": [section(facts) for section in sections],
        "movers": _movers(facts, texts),
        "movers_note": texts.note if facts.tables["movers"] else "No query of this run has moved.",
        "movers_by": f"{MEASURE} difference" if facts.tables["page/movers_by_quality"] else "places in the first ten",
        "provenance": _provenance(facts.run),
        "settings": flat_table("All settings, defaults filled in", "settings", facts.run.settings),
    }
    text = environment.get_template("report.html.jinja").render(page)
    return "\n".join(map(printable, text.split("\n")))  # ids stand in attributes too, and a page may be shown by cat


def _trouble(run: Run) -> str | None:
    """What whoever is on call has to know first."""
    told = []
    if run.error:
        told.append(hide_url_secrets(run.error))
    if run.is_degraded:
        told.append(f"Degraded: checks failed: {', '.join(run.failed_checks or []) or 'see below'}.")
    return " ".join(told) or None


def _headline(facts: RunFacts) -> list[list[Cell]]:
    """Lines of (label, cells that belong together)."""
    summary = facts.summary
    lines = [
        [Cell("Night"), text_cell("run_summary", "night", summary)],
        [Cell("Model"), Cell(hide_url_secrets(summary["model"]), "run_summary.model")],
        [Cell("Strategy"), text_cell("run_summary", "strategy", summary)],
        [Cell("Decode mode"), text_cell("run_summary", "decode_mode", summary)],
        [Cell("Queries"), text_cell("run_summary", "num_queries", summary)],
        [Cell("Candidates"), text_cell("run_summary", "num_candidates", summary)],
        [Cell("Elapsed"), text_cell("run_summary", "elapsed_s", summary, duration_text(summary["elapsed_s"]))],
        [Cell("Preemptions"), text_cell("run_summary", "num_preemptions", summary)],
        [Cell("Fallback queries"), _fallback_cell(summary)],
    ]
    for row in facts.tables["summary/quality"]:
        if row["measure"] == MEASURE and None not in row.values():
            before, after = (measured_cell(row, ranking) for ranking in ("first_stage", "reranked"))
            change = Cell(f"({row['reranked'] - row['first_stage']:+.4f})")
            lines.insert(0, [Cell(f"{MEASURE}, before → after"), before, Cell("→"), after, change])
    return lines


def _fallback_cell(summary: Row) -> Cell:
    num, total = summary["num_fallback_queries"], summary["num_queries"]
    share = f" ({num / total:.1%})" if total else ""
    return text_cell("run_summary", "num_fallback_queries", summary, f"{num:,}{share}")


def _quality(facts: RunFacts) -> PageSection:
    means = facts.tables["summary/quality"]
    by_query = facts.tables["page/quality_by_query"]
    if not means:
        run_id = facts.run.run_id
        note = f"No judgments, nothing was measured: name [inputs] qrels, or packrank evaluate {run_id} --qrels FILE."
        return PageSection("quality", "Quality", (note,), [], [])
    rows = [
        [
            Cell(row["measure"]),
            measured_cell(row, "first_stage"),
            measured_cell(row, "reranked"),
            Cell(difference_text(row["first_stage"], row["reranked"])),
            Cell(value_text(row["num_queries"])),
        ]
        for row in means
    ]
    table = Table("Mean over the judged queries", ("", "first stage", "reranked", "difference", "queries"), rows)
    drawn = [charts.difference_chart(by_query, MEASURE)] if by_query else []
    note = "Judged queries that the run lacks count as 0, unless it was limited."
    return PageSection("quality", "Quality", (note,), drawn, [table])


def _latency(facts: RunFacts) -> PageSection:
    serving = facts.one("summary/serving")
    if serving is None:
        return PageSection("latency", "Latency", ("The engine was asked nothing.",), [], [])
    quantiles, gaps = facts.tables["page/latency_quantiles"][0], facts.tables["page/gap_histogram"]
    notes = ["Of requests, one a window; arrival is the hand-over of the batch, so TTFT holds the wait for the others."]
    if serving["mean_tpot_s"] is None:
        notes.append("One-token answers have no TPOT and no ITL.")
    notes += [f"The table below cannot be true. {each}" for each in table_of_run(serving).broken_rules()]
    rows = [
        [Cell(label), text_cell("serving_benchmark", column, serving, scaled_text(serving[column], factor))]
        for label, column, factor in SERVING_ROWS
    ]
    drawn = charts.latency_charts(quantiles, gaps, serving)
    return PageSection("latency", "Latency", tuple(notes), drawn, [Table("Serving benchmark", (), rows)])


def _timeline(facts: RunFacts) -> PageSection:
    steps = facts.tables["page/timeline"]
    if not steps:
        note = "The engine's steps were not recorded in this run: set [packing] timeline = true, or run packrank study."
        return PageSection("timeline", "Engine timeline", (note,), [], [])
    drawn = [
        charts.sequences_chart(steps, facts.run.max_num_seqs),
        charts.blocks_chart(steps, facts.run.num_gpu_blocks),
    ]
    return PageSection("timeline", "Engine timeline", (), drawn, [])


def _budget(facts: RunFacts) -> PageSection:
    batches, budget = facts.tables["page/batches"], facts.one("summary/budget")
    if not batches or budget is None:
        return PageSection("budget", "KV-cache use", ("No batch was asked.",), [], [])
    rows = pair_table("budget", BUDGET_ROWS, budget) + pair_table("run_summary", TOKEN_ROWS, facts.summary)
    drawn = [charts.budget_chart(batches), charts.waste_chart(batches)]
    return PageSection("budget", "KV-cache use", (), drawn, [Table("Blocks and tokens", (), rows)])


def _cuts(facts: RunFacts) -> PageSection:
    tables = [
        Table("Windows and queries", (), pair_table("run_summary", CUT_ROWS, facts.summary)),
        row_table("Checks", "check_results", "check_name", facts.tables["summary/checks"]),
        row_table("Against earlier published nights", "volumes", "quantity", facts.tables["summary/volumes"]),
        row_table("Answers", "parse_statuses", "parse_status", facts.tables["page/parse_statuses"]),
        row_table("Set aside", "quarantine", "reason", facts.tables["summary/quarantine"]),
    ]
    notes = () if facts.tables["summary/quarantine"] else ("No input row was set aside.",)
    return PageSection("cuts", "Truncation, fallback, checks", notes, [], [table for table in tables if table.rows])


def _churn(facts: RunFacts) -> PageSection:
    title = "Changes since the last published night"
    churn = facts.one("page/churn")
    if churn is None:
        finished = facts.run.is_ranked
        why = "no earlier night of its name is published" if finished else "this run is not complete"
        return PageSection("churn", title, (f"Nothing to compare with: {why}.",), [], [])
    tables = [
        Table("Against the night before", (), pair_table("churn", CHURN_ROWS, churn)),
        row_table("By cause", "churn_by_cause", "change", facts.tables["summary/churn"]),
        row_table("Queries that changed most", "churn", "query_id", churn["changed_most"] or []),
    ]
    return PageSection("churn", title, (), [], [table for table in tables if table.rows])


def _movers(facts: RunFacts, texts: RunTexts) -> list[Row]:
    """The queries that moved most, each with its first ten before and after."""
    tens: dict[str, list[Row]] = {}
    for row in facts.tables["page/first_tens"]:
        text = texts.passages.get((row["query_id"], row["doc_id"]), "")
        tens.setdefault(row["query_id"], []).append(row | {"text": beginning(text, PASSAGE_CHARS)})
    return [
        {
            "query_id": printable(mover["query_id"]),
            "text": beginning(texts.queries.get(mover["query_id"], ""), QUERY_CHARS),
            "moved": _moved(mover),
            "before": _first_ten(tens.get(mover["query_id"], []), "first_stage_rank"),
            "after": _first_ten(tens.get(mover["query_id"], []), "rank"),
        }
        for mover in facts.tables["movers"]
    ]


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
