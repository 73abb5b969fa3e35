"""One run as one page: a single HTML file that opens from disk anywhere and asks the network for nothing.

Figures come from the views, so that page, log and query cannot disagree; each stands on the page with its column
(`data-key`) and its unrounded value (`data-value`). Texts of queries and passages are no part of the database: they are
read again from the run's inputs, as long as those are what they were. Knows nothing of how a run was made.
"""

import json
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from tasks.database import read_sql
from tasks.errors import PackrankError, first_line
from tasks.judge import charts
from tasks.judge.queries import read_rows
from tasks.judge.summary import SERVING_ROWS, duration_text, value_text
from tasks.judge.trec_files import whole_file
from tasks.keep.store import Store
from tasks.read.documents import find_passages
from tasks.read.queries import find_query_texts
from tasks.read.staging import open_night_input
from tasks.redaction import hide_setting_secrets, hide_url_secrets, printable
from tasks.settings import InputName, InputSettings, stored_inputs

logger = logging.getLogger(__name__)

Row = dict[str, Any]
Query = Callable[[str, Mapping[str, object]], pa.Table]  # an SQL file's name and its parameters

MEASURE = "nDCG@10"
MAX_POINTS = {"report/engine_steps": 2_000, "report/batches": 400}  # of a chart
TEXT_INPUTS: tuple[InputName, ...] = ("queries", "documents", "candidates", "nested")
QUERY_CHARS, PASSAGE_CHARS = 300, 160  # of a text; the rest is in the inputs

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
    ("Mean probability of all identifiers", "mean_id_mass"),
    ("Queries ranked", "num_ranked_queries"),
    ("Queries with one candidate", "num_single_queries"),
    ("Queries of which windows fell back", "num_partial_queries"),
    ("Queries that the model did not rank", "num_fallback_queries"),
    ("Queries reused from an earlier run", "num_reused_queries"),
    ("Queries without candidates or set aside", "num_unranked_queries"),
    ("Candidate rows set aside", "num_quarantined_candidates"),
)
BUDGET_ROWS = (  # label, column of summary/budget
    ("Batches", "num_batches"),
    ("KV-cache blocks of the engine", "num_gpu_blocks"),
    ("Tokens a block", "block_size"),
    ("Sequences at once", "max_num_seqs"),
    ("Block budget of a batch", "block_budget"),
    ("Share of the budget used, mean", "mean_used_share"),
    ("Share of the budget used, largest", "max_used_share"),
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
class Cell:
    """A value on the page; `key` names where it comes from, `raw` is the value unrounded."""

    text: str
    key: str | None = None
    raw: str | None = None


@dataclass(frozen=True, slots=True)
class Table:
    """A table; without columns it is one of names and values."""

    title: str
    columns: tuple[str, ...]
    rows: list[list[Cell]]


@dataclass(frozen=True, slots=True)
class Section:
    """One heading's content; what is missing is said in `notes`."""

    anchor: str
    title: str
    notes: tuple[str, ...]
    charts: list[charts.Chart]
    tables: list[Table]


@dataclass(frozen=True, slots=True)
class RunFacts:
    """All that the page takes from the database, read at once."""

    run: Row  # of runs
    summary: Row  # of run_summary
    tables: Mapping[str, list[Row]]  # by SQL file

    def one(self, name: str) -> Row | None:
        """The only row of a file's rows, None if there is none."""
        rows = self.tables[name]
        return rows[0] if rows else None


@dataclass(frozen=True, slots=True)
class RunTexts:
    """The beginnings of the texts that the page shows; `note` says why they are missing."""

    queries: Mapping[str, str]
    passages: Mapping[tuple[str, str], str]  # by (query_id, doc_id)
    note: str | None = None


def report_run(database: Path, run_id: str | None, output: Path | None, inputs: InputSettings | None = None) -> Path:
    """Writes a run's page and returns its path; the database is open, read-only, for one statement at a time.

    Args:
        database: where the run lies.
        run_id: the newest finished run if not given.
        output: `report_path` if not given; replaced when the new page is complete.
        inputs: where the texts are; as the run's settings say if not given, which hold no secrets of URLs.

    Raises:
        StoreError: no such database, or a writer holds it for longer than a second.
        PackrankError: no such run, or the page cannot be written.
    """

    def query(name: str, parameters: Mapping[str, object]) -> pa.Table:
        return read_rows(database, read_sql(name), parameters)

    facts = read_facts(query, run_id or _newest_run_id(query, database))
    return _write_page(facts, inputs, output or report_path(database, facts.run["run_id"]))


def report_night(store: Store, run_id: str, inputs: InputSettings | None = None) -> Path | None:
    """A night's page in its place; a page that cannot be made is a warning, not the end of the night."""
    try:
        return _write_page(read_facts(store.query, run_id), inputs, report_path(store.path, run_id))
    except Exception as error:  # whatever it is: the night itself went through
        logger.warning(
            "run_id=%s has no report page: %s: %s", run_id, type(error).__name__, hide_url_secrets(first_line(error))
        )
        return None


def report_path(database: Path, run_id: str) -> Path:
    """Where a run's page lies if nobody says otherwise."""
    return database.parent / "reports" / f"{run_id}.html"


def read_facts(query: Query, run_id: str) -> RunFacts:
    """Everything on the page but texts.

    Args:
        query: runs an SQL file by a connection of its own, so that nobody waits for all of them.
        run_id: the run.

    Raises:
        PackrankError: no such run.
    """
    tables: dict[str, list[Row]] = {}

    def read(name: str, **parameters: object) -> list[Row]:
        tables[name] = query(name, {"run_id": run_id} | parameters).to_pylist()
        return tables[name]

    if not read("run/find_run"):
        raise PackrankError(f"no run {run_id!r} in the database. `packrank runs` lists them.")
    for name in ("run", "quality", "serving", "budget", "quarantine", "checks", "churn"):
        read(f"summary/{name}")
    for name in ("latency_quantiles", "gap_histogram", "parse_statuses"):
        read(f"report/{name}")
    for name, max_points in MAX_POINTS.items():
        read(name, max_points=max_points)
    tables["report/churn"] = []
    for previous in read("report/find_previous_run"):
        read("report/churn", previous_run_id=previous["run_id"])
    read("report/quality_by_query", measure=MEASURE)
    movers = read("report/movers_by_quality", measure=MEASURE) or read("report/movers_by_rank")
    read("report/first_tens", query_ids=[row["query_id"] for row in movers])
    tables["movers"] = movers
    return RunFacts(tables["run/find_run"][0], tables["summary/run"][0], tables)


def read_texts(facts: RunFacts, given: InputSettings | None) -> RunTexts:
    """The texts of the page's movers from the run's inputs; whatever goes wrong there, the page has ids."""
    wanted: dict[str, list[str]] = {}
    for row in facts.tables["report/first_tens"]:
        wanted.setdefault(row["query_id"], []).append(row["doc_id"])
    try:
        inputs = given or stored_inputs(facts.run["run_id"], json.loads(facts.run["settings"]), TEXT_INPUTS)
        found = open_night_input(inputs, facts.run["night"])
        if found.digest != facts.run["input_digest"]:
            return RunTexts({}, {}, "The run's inputs have changed since: ids only, no texts.")
        of_queries = found.inputs.get("queries") or found.inputs["nested"]
        of_documents = found.inputs.get("documents") or found.inputs["nested"]
        queries = find_query_texts(of_queries, wanted, QUERY_CHARS + 1)
        return RunTexts(queries, find_passages(of_documents, wanted, PASSAGE_CHARS + 1))
    except Exception as error:  # other people's files and file systems
        return RunTexts(
            {}, {}, f"The run's inputs cannot be read again, so ids only: {hide_url_secrets(first_line(error))}"
        )


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
        "status": STATUS_WORDS.get(facts.run["status"], ("plain", facts.run["status"])),
        "trouble": _trouble(facts.run),
        "headline": _headline(facts),
        "sections": [section(facts) for section in sections],
        "movers": _movers(facts, texts),
        "movers_note": texts.note if facts.tables["movers"] else "No query of this run has moved.",
        "movers_by": f"{MEASURE} difference" if facts.tables["report/movers_by_quality"] else "places in the first ten",
        "provenance": _provenance(facts.run),
        "settings": _flat_table("All settings, defaults filled in", "settings", facts.run["settings"]),
    }
    text = environment.get_template("report.html.jinja").render(page)
    return "\n".join(map(printable, text.split("\n")))  # ids stand in attributes too, and a page may be shown by cat


def _write_page(facts: RunFacts, inputs: InputSettings | None, output: Path) -> Path:
    page = render_page(facts, read_texts(facts, inputs))
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise PackrankError(f"{output}: its folder cannot be made: {first_line(error)}. Give --output.") from error
    with whole_file(output) as stream:
        stream.write(page.encode("utf-8", "replace"))
    return output


def _newest_run_id(query: Query, path: Path) -> str:
    rows = query("report/find_newest_run", {}).to_pylist()
    if not rows:
        raise PackrankError(f"{path}: no complete or published run. Name one: `packrank runs` lists them.")
    return str(rows[0]["run_id"])


def _trouble(run: Row) -> str | None:
    """What whoever is on call has to know first."""
    told = []
    if run["error"]:
        told.append(hide_url_secrets(run["error"]))
    if run["is_degraded"]:
        told.append(f"Degraded: checks failed: {', '.join(run['failed_checks'] or []) or 'see below'}.")
    return " ".join(told) or None


def _headline(facts: RunFacts) -> list[list[Cell]]:
    """Lines of (label, cells that belong together)."""
    summary = facts.summary
    lines = [
        [Cell("Night"), _cell("run_summary", "night", summary)],
        [Cell("Model"), Cell(hide_url_secrets(summary["model"]), "run_summary.model")],
        [Cell("Strategy"), _cell("run_summary", "strategy", summary)],
        [Cell("Decode mode"), _cell("run_summary", "decode_mode", summary)],
        [Cell("Queries"), _cell("run_summary", "num_queries", summary)],
        [Cell("Candidates"), _cell("run_summary", "num_candidates", summary)],
        [Cell("Elapsed"), _cell("run_summary", "elapsed_s", summary, duration_text(summary["elapsed_s"]))],
        [Cell("Preemptions"), _cell("run_summary", "num_preemptions", summary)],
        [Cell("Fallback queries"), _fallback_cell(summary)],
    ]
    for row in facts.tables["summary/quality"]:
        if row["measure"] == MEASURE and None not in row.values():
            before, after = (_measured(row, ranking) for ranking in ("first_stage", "reranked"))
            change = Cell(f"({row['reranked'] - row['first_stage']:+.4f})")
            lines.insert(0, [Cell(f"{MEASURE}, before → after"), before, Cell("→"), after, change])
    return lines


def _fallback_cell(summary: Row) -> Cell:
    num, total = summary["num_fallback_queries"], summary["num_queries"]
    share = f" ({num / total:.1%})" if total else ""
    return _cell("run_summary", "num_fallback_queries", summary, f"{num:,}{share}")


def _quality(facts: RunFacts) -> Section:
    means = facts.tables["summary/quality"]
    by_query = facts.tables["report/quality_by_query"]
    if not means:
        run_id = facts.run["run_id"]
        note = f"No judgments, nothing was measured: name [inputs] qrels, or packrank evaluate {run_id} --qrels FILE."
        return Section("quality", "Quality", (note,), [], [])
    rows = [
        [
            Cell(row["measure"]),
            _measured(row, "first_stage"),
            _measured(row, "reranked"),
            Cell(_difference(row["first_stage"], row["reranked"])),
            Cell(value_text(row["num_queries"])),
        ]
        for row in means
    ]
    table = Table("Mean over the judged queries", ("", "first stage", "reranked", "difference", "queries"), rows)
    drawn = [charts.difference_chart(by_query, MEASURE)] if by_query else []
    note = "Judged queries that the run lacks count as 0, unless it was limited."
    return Section("quality", "Quality", (note,), drawn, [table])


def _latency(facts: RunFacts) -> Section:
    serving = facts.one("summary/serving")
    if serving is None:
        return Section("latency", "Latency", ("The engine was asked nothing.",), [], [])
    quantiles, gaps = facts.tables["report/latency_quantiles"][0], facts.tables["report/gap_histogram"]
    notes = ["Of requests, one a window; arrival is the hand-over of the batch, so TTFT holds the wait for the others."]
    if serving["mean_tpot_s"] is None:
        notes.append("One-token answers have no TPOT and no ITL.")
    rows = [
        [Cell(label), _cell("serving_benchmark", column, serving, _scaled(serving[column], factor))]
        for label, column, factor in SERVING_ROWS
    ]
    drawn = charts.latency_charts(quantiles, gaps, serving)
    return Section("latency", "Latency", tuple(notes), drawn, [Table("Serving benchmark", (), rows)])


def _timeline(facts: RunFacts) -> Section:
    steps = facts.tables["report/engine_steps"]
    if not steps:
        note = "The engine's steps were not recorded in this run: set [packing] timeline = true, or run packrank study."
        return Section("timeline", "Engine timeline", (note,), [], [])
    drawn = [
        charts.sequences_chart(steps, facts.run["max_num_seqs"]),
        charts.blocks_chart(steps, facts.run["num_gpu_blocks"]),
    ]
    return Section("timeline", "Engine timeline", (), drawn, [])


def _budget(facts: RunFacts) -> Section:
    batches, budget = facts.tables["report/batches"], facts.one("summary/budget")
    if not batches or budget is None:
        return Section("budget", "KV-cache use", ("No batch was asked.",), [], [])
    rows = _pairs("budget", BUDGET_ROWS, budget) + _pairs("run_summary", TOKEN_ROWS, facts.summary)
    drawn = [charts.budget_chart(batches), charts.waste_chart(batches)]
    return Section("budget", "KV-cache use", (), drawn, [Table("Blocks and tokens", (), rows)])


def _cuts(facts: RunFacts) -> Section:
    tables = [
        Table("Windows and queries", (), _pairs("run_summary", CUT_ROWS, facts.summary)),
        _listing("Checks", "check_results", "check_name", facts.tables["summary/checks"]),
        _listing("Answers", "parse_statuses", "parse_status", facts.tables["report/parse_statuses"]),
        _listing("Set aside", "quarantine", "reason", facts.tables["summary/quarantine"]),
    ]
    notes = () if facts.tables["summary/quarantine"] else ("No input row was set aside.",)
    return Section("cuts", "Truncation, fallback, checks", notes, [], [table for table in tables if table.rows])


def _churn(facts: RunFacts) -> Section:
    title = "Changes since the last published night"
    churn = facts.one("report/churn")
    if churn is None:
        finished = facts.run["status"] in ("complete", "published")
        why = "no earlier night of its name is published" if finished else "this run is not complete"
        return Section("churn", title, (f"Nothing to compare with: {why}.",), [], [])
    tables = [
        Table("Against the night before", (), _pairs("churn", CHURN_ROWS, churn)),
        _listing("By cause", "churn_by_cause", "change", facts.tables["summary/churn"]),
        _listing("Queries that changed most", "churn", "query_id", churn["changed_most"] or []),
    ]
    return Section("churn", title, (), [], [table for table in tables if table.rows])


def _movers(facts: RunFacts, texts: RunTexts) -> list[Row]:
    """The queries that moved most, each with its first ten before and after."""
    tens: dict[str, list[Row]] = {}
    for row in facts.tables["report/first_tens"]:
        text = texts.passages.get((row["query_id"], row["doc_id"]), "")
        tens.setdefault(row["query_id"], []).append(row | {"text": _beginning(text, PASSAGE_CHARS)})
    return [
        {
            "query_id": printable(mover["query_id"]),
            "text": _beginning(texts.queries.get(mover["query_id"], ""), QUERY_CHARS),
            "moved": _moved(mover),
            "before": _first_ten(tens.get(mover["query_id"], []), "first_stage_rank"),
            "after": _first_ten(tens.get(mover["query_id"], []), "rank"),
        }
        for mover in facts.tables["movers"]
    ]


def _moved(mover: Row) -> str:
    if "distance" in mover:
        return f"{mover['distance']:,} places"
    change = _difference(mover["first_stage"], mover["reranked"])
    return f"{MEASURE} {mover['first_stage']:.4f} → {mover['reranked']:.4f} ({change})"


def _first_ten(rows: Sequence[Row], order: str) -> list[Row]:
    kept = [row | {"doc_id": printable(row["doc_id"])} for row in rows if row[order] <= 10]
    return sorted(kept, key=lambda row: int(row[order]))


def _provenance(run: Row) -> list[Table]:
    rows = [[Cell(name), _cell("runs", name, run, hide_url_secrets(value_text(run[name])))] for name in PROVENANCE]
    return [
        Table("The run", (), rows),
        _flat_table("Sizes as resolved before the first batch", "resolved", run["resolved"]),
        _flat_table("Versions", "versions", run["versions"]),
    ]


def _flat_table(title: str, source: str, text: str) -> Table:
    flat = _flattened(hide_setting_secrets(json.loads(text)))  # older databases hold them
    return Table(title, (), [[Cell(name), Cell(shown, f"{source}.{name}")] for name, shown in flat])


def _flattened(value: Any, name: str = "") -> Iterable[tuple[str, str]]:
    """JSON as dotted names and texts."""
    if isinstance(value, dict) and value:
        for key, inner in value.items():
            yield from _flattened(inner, f"{name}.{key}" if name else key)
    else:
        yield name, value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _pairs(source: str, labelled: Sequence[tuple[str, str]], row: Row) -> list[list[Cell]]:
    return [[Cell(label), _cell(source, column, row)] for label, column in labelled]


def _listing(title: str, source: str, key: str, rows: Sequence[Row]) -> Table:
    """Rows with equal keys; a value's key on the page is source, value of the row's `key`, column."""
    cells = [[_cell(f"{source}.{row[key]}", column, row) for column in row] for row in rows]
    return Table(title, tuple(name.removeprefix("num_").replace("_", " ") for name in rows[0]) if rows else (), cells)


def _measured(row: Row, ranking: str) -> Cell:
    return _cell(f"metrics.{row['measure']}", ranking, row)


def _cell(source: str, column: str, row: Row, text: str | None = None) -> Cell:
    value = row[column]
    raw = repr(value) if isinstance(value, float) else "" if value is None else hide_url_secrets(str(value))
    return Cell(value_text(value) if text is None else text, f"{source}.{column}", raw)


def _difference(before: float | None, after: float | None) -> str:
    return "-" if before is None or after is None else f"{after - before:+.4f}"


def _scaled(value: float | None, factor: float) -> str:
    return "n/a" if value is None else value_text(value * factor)


def _beginning(text: str, max_chars: int) -> str:
    """One line of a text's first characters."""
    line = " ".join(printable(text).split())
    return line if len(line) <= max_chars else line[:max_chars].rstrip() + "…"
