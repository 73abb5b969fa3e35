"""The sections of a run's page, from the rows that `run_report` reads; where one has nothing to show, why is told."""

from collections.abc import Mapping
from dataclasses import dataclass

from tasks.engine.benchmark_table import table_of_run
from tasks.report import charts
from tasks.report.page_tables import (
    Cell,
    PageSection,
    Row,
    Table,
    difference_text,
    measured_cell,
    pair_table,
    row_table,
    scaled_text,
    text_cell,
)
from tasks.report.summary import SERVING_ROWS
from tasks.report.summary_tables import value_text
from tasks.store.runs import Run
from tasks.system.database import read_sql

MEASURE = "nDCG@10"
CHECK_COLUMNS = ("what must not be", "found", "share", "allowed", "result")
MAX_POINTS = {"page/timeline": 2_000, "page/batches": 400}  # of a chart
CUT_ROWS = (  # label, column of run_summary
    ("Passages shown, over all windows", "num_passages"),
    ("Passages cut", "truncated_passages"),
    ("Passage tokens left out", "truncated_tokens"),
    ("Windows asked", "num_windows"),
    ("Windows asked again", "num_repeated_windows"),
    ("Mean probability of all identifiers, or of yes and no", "mean_id_mass"),
    ("Queries ranked", "num_ranked_queries"),
    ("Queries with one candidate", "num_single_queries"),
    ("Queries with windows that fell back", "num_partial_queries"),
    ("Queries that the model did not rank", "num_fallback_queries"),
    ("Queries reused from an earlier run", "num_reused_queries"),
    ("Queries without candidates or set aside", "num_unranked_queries"),
    ("Candidate rows set aside", "num_quarantined_candidates"),
)
BUDGET_ROWS = (  # label, column of summary/budget
    ("KV-cache blocks of the engine, null block included", "num_gpu_blocks"),
    ("Tokens a block", "block_size"),
    ("Blocks in use at once, measured (needs [packing] timeline)", "most_blocks_in_use"),
    ("Blocks in use at once, estimated", "blocks_at_once"),
    ("Share of the cache, estimated", "cache_share"),
    ("Sequences at once, estimated", "seqs_at_once"),
    ("Limited by", "limited_by"),
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


def sections_of(facts: RunFacts) -> tuple[list[PageSection], list[str]]:
    """The sections with something in them, in their order, and a sentence for each one that has nothing."""
    told = [section(facts) for section in (_quality, _latency, _timeline, _budget, _cuts, _churn)]
    return [each for each in told if isinstance(each, PageSection)], [each for each in told if isinstance(each, str)]


def _quality(facts: RunFacts) -> PageSection | str:
    means = facts.tables["summary/quality"]
    by_query = facts.tables["page/quality_by_query"]
    if not means:
        run_id = facts.run.run_id
        return f"Quality: no judgments. Name [inputs] qrels, or packrank evaluate {run_id} --qrels FILE."
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


def _latency(facts: RunFacts) -> PageSection | str:
    serving = facts.one("summary/serving")
    if serving is None:
        return "Latency: no requests were sent to the engine."
    notes = ["Of requests, one a window; arrival is the hand-over of the batch, so TTFT holds the wait for the others."]
    if serving["mean_tpot_s"] is None:
        notes.append("One-token answers have no TPOT and no ITL.")
    notes += [f"The table below cannot be true. {each}" for each in table_of_run(serving).broken_rules()]
    rows = [
        [Cell(label), text_cell("serving_benchmark", column, serving, scaled_text(serving[column], factor))]
        for label, column, factor in SERVING_ROWS
    ]
    drawn = charts.latency_chart(facts.tables["page/latency_quantiles"][0], serving)
    shown = [] if drawn is None else [drawn]
    return PageSection("latency", "Latency", tuple(notes), shown, [Table("Serving benchmark", (), rows)])


def _timeline(facts: RunFacts) -> PageSection | str:
    steps = facts.tables["page/timeline"]
    if not steps:
        return "Engine timeline: not recorded. Set [packing] timeline = true, or run packrank study."
    drawn = [
        charts.sequences_chart(steps, facts.run.max_num_seqs),
        charts.blocks_chart(steps, facts.run.num_gpu_blocks),
    ]
    return PageSection("timeline", "Engine timeline", (), drawn, [])


def _budget(facts: RunFacts) -> PageSection | str:
    batches, budget = facts.tables["page/batches"], facts.one("summary/budget")
    if not batches or budget is None:
        return "KV-cache use: no batch was asked."
    rows = pair_table("budget", BUDGET_ROWS, budget) + pair_table("run_summary", TOKEN_ROWS, facts.summary)
    drawn = [charts.budget_chart(batches), charts.waste_chart(batches)]
    return PageSection("budget", "KV-cache use", (_in_use(budget),), drawn, [Table("Blocks and tokens", (), rows)])


def _in_use(budget: Row) -> str:
    """What is in use at once against what the engine has, and what it is that allows no more."""
    measured = budget["most_blocks_in_use"]
    blocks, how = (budget["blocks_at_once"], "estimated") if measured is None else (measured, "measured")
    if blocks is None or not budget["num_gpu_blocks"]:
        return "The engine's number of blocks is unknown."
    usable = budget["num_gpu_blocks"] - 1
    return (
        f"At most {blocks:,} of the engine's {usable:,} blocks are in use at once ({blocks / usable:.0%}, {how}). "
        f"Limited by: {budget['limited_by']}."
    )


def _cuts(facts: RunFacts) -> PageSection:
    tables = [
        Table("Windows and queries", (), pair_table("run_summary", CUT_ROWS, facts.summary)),
        row_table("Against earlier published nights", "volumes", "quantity", facts.tables["summary/volumes"]),
        row_table("Answers", "parse_statuses", "parse_status", facts.tables["page/parse_statuses"]),
        row_table("Set aside", "quarantine", "reason", facts.tables["summary/quarantine"]),
        Table("Checks", CHECK_COLUMNS, list(map(_check, facts.tables["summary/checks"])), is_wide=True),
    ]
    notes = () if facts.tables["summary/quarantine"] else ("No input row was set aside.",)
    return PageSection("cuts", "Windows, answers, checks", notes, [], [table for table in tables if table.rows])


def _check(row: Row) -> list[Cell]:
    """A check as a sentence; what it looks for must not be there, or in so small a share."""
    source = f"check_results.{row['check_name']}"
    result = f"skipped: {row['skip_reason']}" if row["skip_reason"] else "passed" if row["passed"] else "failed"
    return [
        Cell(_told_of(row["check_name"]), f"{source}.check_name", row["check_name"], note=row["check_name"]),
        text_cell(source, "num_offending", row),
        text_cell(source, "share", row, f"{row['share']:.1%}"),
        text_cell(source, "max_share", row, f"{row['max_share']:.1%}"),
        text_cell(source, "passed", row, result),
    ]


def _told_of(check_name: str) -> str:
    """What a check looks for: the first sentence of its file, or its name where this packrank has no such check."""
    try:
        text = read_sql(f"checks/{check_name}")
    except FileNotFoundError:
        return check_name.replace("_", " ")
    comment = " ".join(line.removeprefix("-- ") for line in text.split("\n") if line.startswith("-- "))
    return comment.split(". ")[0]


def _churn(facts: RunFacts) -> PageSection | str:
    title = "Changes since the last published night"
    churn = facts.one("page/churn")
    if churn is None:
        why = "no earlier night of its name is published"
        if facts.run.is_limited or not facts.run.is_ranked:
            why = "this run is a trial" if facts.run.is_limited else "this run is not complete"
        return f"{title}: {why}."
    tables = [
        Table("Against the night before", (), pair_table("churn", CHURN_ROWS, churn)),
        row_table("By cause", "churn_by_cause", "change", facts.tables["summary/churn"]),
        row_table("Queries that changed most", "churn", "query_id", churn["changed_most"] or []),
    ]
    return PageSection("churn", title, (), [], [table for table in tables if table.rows])
