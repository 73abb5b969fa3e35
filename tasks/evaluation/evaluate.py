"""Quality against judgments with ir-measures: trec_eval's formulas, over all judged queries; and two runs compared.

nDCG@10 has a linear gain and its ideal list comes from all judgments; a judged query without results counts as 0, but a
trial is measured over the queries that it ran; a query without a relevant document is left out and counted. Knows
nothing of how a run was made.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from pathlib import Path

import pandas as pd

from tasks.evaluation.measures import (
    DEFAULT_MEASURES,
    FEW_QUERIES,
    FIRST_STAGE,
    RANKINGS,
    TIE,
    Comparison,
    Qrels,
    RunOrders,
    check_measures,
    check_overlap,
    compare,
    evaluate,
    measure_run,
    metric_rows,
)
from tasks.inputs.locations import resolve_path
from tasks.inputs.qrels import read_qrels
from tasks.report.run_lookup import find_newest_run, find_ranked_run
from tasks.report.sql_shell import read_rows
from tasks.report.summary_tables import SummaryTable, Worded, listing, pairs, value_text
from tasks.settings import InputSettings, StoreSettings, load_settings, stored_inputs
from tasks.store.night_store import Store, store_at
from tasks.store.runs import Run
from tasks.system.database import read_sql
from tasks.system.environment import checkout_path
from tasks.system.errors import ConfigError, InputError

MAX_MOVERS = 10


@dataclass(frozen=True, slots=True)
class EvaluationRequest:
    """What `packrank evaluate` is asked for."""

    target: str  # a run_id, or a settings file: then the newest finished run of these settings, trials passed over
    qrels: str | None = None  # file or URL; what the run's settings name if not given
    measures: tuple[str, ...] = ()  # as ir-measures writes them; DEFAULT_MEASURES if none
    against: str | None = None  # a run_id, or 'first_stage'
    database: Path | None = None
    overrides: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Target:
    """The run to evaluate, where it lies, and the inputs that name its judgments."""

    run: Run
    store: Store
    inputs: InputSettings | None  # None: those that the run has stored


def evaluate_run(request: EvaluationRequest) -> list[SummaryTable]:
    """Measures a finished run, stores the values in `metrics`, and returns the tables to show.

    The run's values of the same measures are replaced, and those against other judgments.

    Raises:
        ConfigError: an unknown measure, no judgments named, or --set without a settings file.
        InputError: unreadable judgments, or none of a query of the run.
        PackrankError: no such run, or an unfinished one.
    """
    measures = check_measures(request.measures or DEFAULT_MEASURES)
    target = _find_target(request)
    path, qrels = _find_qrels(request, target)
    orders = replace(read_orders(target.store.path, target.run.run_id), is_limited=target.run.is_limited)
    check_overlap(qrels, orders.queries, path, orders.run_id)
    other = _orders_against(request.against, target)
    measured = measure_run(orders, qrels, measures)
    tables = [_counts_table(path, qrels, orders), _quality_table(measured, measures)]
    if other is not None:
        tables += _compare_runs(orders, other, qrels, measures)
    replaced = listing(
        "Replaced in metrics, measured by another rule",
        target.store.replace_metrics(orders.run_id, metric_rows(measured)),
    )
    return tables + ([] if replaced is None else [replaced])


def qrels_of(settings: InputSettings, night: date) -> Qrels:
    """`[inputs] qrels` as evaluators take them.

    Raises:
        InputError: see `read_qrels`.
    """
    judgments = read_qrels(settings, night)
    return Qrels(judgments.rows.to_pandas(), judgments.digest)


def read_orders(database: Path, run_id: str) -> RunOrders:
    """A run's queries and rows, read without keeping the database.

    Raises:
        StoreError: see `read_rows`.
    """
    queries = read_rows(database, read_sql("evaluation/list_queries"), {"run_id": run_id})
    rows = read_rows(database, read_sql("evaluation/list_orders"), {"run_id": run_id})
    return RunOrders(run_id, frozenset(queries.column("query_id").to_pylist()), rows.to_pandas())


def _find_target(request: EvaluationRequest) -> _Target:
    path = Path(request.target)
    if path.suffix == ".toml" or path.is_file():
        settings = load_settings(path, request.overrides)
        database = request.database or settings.database_path
        run = find_newest_run(database, settings)
        return _Target(run, store_at(database, settings.store), settings.inputs)
    if request.overrides:
        raise ConfigError(f"--set needs a settings file, but {request.target!r} is a run. Leave --set out.")
    store = StoreSettings()
    database = request.database or checkout_path(store.database)
    return _Target(find_ranked_run(database, request.target), store_at(database, store), None)


def _find_qrels(request: EvaluationRequest, target: _Target) -> tuple[str, Qrels]:
    """Where the judgments lie, and themselves."""
    if request.qrels is not None:
        path = request.qrels if "://" in request.qrels else str(Path.cwd() / request.qrels)
        inputs = InputSettings(nested="-", qrels=path)
    else:
        inputs = target.inputs or _stored_inputs(target.run)
    if inputs.qrels is None:
        raise ConfigError(f"run {target.run.run_id}: its settings name no [inputs] qrels. Give --qrels FILE.")
    return resolve_path(inputs.qrels), qrels_of(inputs, target.run.night)


def _stored_inputs(run: Run) -> InputSettings:
    try:
        return stored_inputs(run.run_id, run.stored_settings, ["qrels"])
    except ConfigError as error:
        raise ConfigError(f"{error} Give --qrels FILE, or the settings file in place of the run.") from error


def _orders_against(against: str | None, target: _Target) -> RunOrders | str | None:
    """The other run's orders; a ranking's name stands for this run's own."""
    if against is None or against == FIRST_STAGE:
        return against
    return read_orders(target.store.path, find_ranked_run(target.store.path, against).run_id)


def _counts_table(path: str, qrels: Qrels, orders: RunOrders) -> SummaryTable:
    judged = qrels.relevant_queries
    measured = orders.judged_by(qrels).relevant_queries
    return pairs(
        f"Judgments of run {orders.run_id}",
        [
            ("qrels", path),
            ("judged queries, each measure is over", len(measured)),
            ("of those not in the run, counted as 0", len(measured - orders.queries)),
            *([("judged queries that the trial did not rank, left out", len(judged - measured))] * orders.is_limited),
            ("judged without a relevant document, left out", len(qrels.queries - judged)),
            ("queries of the run", len(orders.queries)),
            ("of those not judged, not evaluated", len(orders.queries - qrels.queries)),
        ],
        name="judgments",
    )


def _quality_table(measured: pd.DataFrame, measures: Sequence[str]) -> SummaryTable:
    means = measured[measured["query_id"].isna()].set_index(["measure", "ranking"])
    rows = []
    for measure in measures:
        values = {ranking: float(means.loc[(measure, ranking), "value"]) for ranking in RANKINGS}
        rows.append({"measure": measure, "num_queries": int(means.loc[(measure, FIRST_STAGE), "num_queries"])} | values)
    return SummaryTable("Quality", tuple(rows[0]), tuple(tuple(row.values()) for row in rows))


def _compare_runs(
    orders: RunOrders, against: RunOrders | str, qrels: Qrels, measures: Sequence[str]
) -> list[SummaryTable]:
    """The tables of a comparison: measures, list lengths, and the queries that moved most in the first measure."""
    other, ranking = (against, "reranked") if isinstance(against, RunOrders) else (orders, against)
    name = other.run_id if other is not orders else ranking
    shared = qrels.relevant_queries & orders.queries & other.queries
    if not shared:
        raise InputError(f"runs {orders.run_id} and {name} share no judged query: there is nothing to compare.")
    judged = qrels.of_queries(set(shared))
    ours = evaluate(judged, _only(orders.scored("reranked"), shared), measures)
    theirs = evaluate(judged, _only(other.scored(ranking), shared), measures)
    comparisons = [compare(each, _by_query(ours, each), _by_query(theirs, each)) for each in measures]
    tables = [
        comparison_table(f"{orders.run_id} against {name}", comparisons),
        _orders_table(orders, other, ranking),
        _candidates_table([(orders.run_id, orders.num_candidates(shared)), (name, other.num_candidates(shared))]),
        _movers_table(measures[0], _by_query(ours, measures[0]), _by_query(theirs, measures[0])),
    ]
    return [table for table in tables if table is not None]


def _orders_table(orders: RunOrders, other: RunOrders, ranking: str) -> SummaryTable:
    """How far the orders differ over all queries that have candidates in both, whatever judgments say."""
    theirs = other.rows.assign(other_rank=other.rows[RANKINGS[ranking]])[["query_id", "doc_id", "other_rank"]]
    rows = orders.rows[["query_id", "doc_id", "rank"]].merge(theirs, how="outer", on=["query_id", "doc_id"])
    in_both = rows.assign(
        moved=rows["rank"].ne(rows["other_rank"]),
        kept_first=rows["rank"].eq(1) & rows["other_rank"].eq(1),
        kept=rows["rank"].le(10) & rows["other_rank"].le(10),
    )[rows["query_id"].isin(set(orders.rows["query_id"]) & set(theirs["query_id"]))]
    by_query = in_both.groupby("query_id")
    overlap = by_query["kept"].sum() / by_query["rank"].count().clip(upper=10)
    figures = [
        ("queries with candidates in both", by_query.ngroups),
        ("of those in another order", int(by_query["moved"].any().sum())),
        ("of those with another first document", int((~by_query["kept_first"].any()).sum())),
        ("mean overlap of the first ten", float(overlap.mean()) if len(overlap) else None),
    ]
    return pairs("Orders", figures)


def _only(run: pd.DataFrame, queries: frozenset[str]) -> pd.DataFrame:
    return run[run["query_id"].isin(queries)]


def _by_query(measured: pd.DataFrame, measure: str) -> pd.Series:
    rows = measured[(measured["measure"] == measure) & measured["query_id"].notna()]
    return rows.set_index("query_id")["value"].sort_index()


def comparison_table(title: str, comparisons: Sequence[Comparison]) -> SummaryTable:
    """A row a measure; its note says how many tests that are."""
    few = any(each.sign_flip_p is not None for each in comparisons)
    tests = ("p_value", "sign_flip_p") if few else ("p_value",)
    columns = ("measure", "num_queries", "this", "against", "difference", "95 % interval", *tests)
    rows = tuple(
        (
            each.measure,
            each.num_queries,
            each.ours,
            each.theirs,
            Worded(each.difference, f"{each.difference:+.4f}"),
            None if each.interval is None else Worded(each.interval, "{:+.4f} to {:+.4f}".format(*each.interval)),
            _p_value(each.p_value),
            *([_p_value(each.sign_flip_p)] if few else []),
            *(each.wins, each.ties, each.losses),
        )
        for each in comparisons
    )
    note = "Over the judged queries that both have. Interval and p-value: paired t-test over queries, two-sided."
    if any(each.p_value is None for each in comparisons):
        note += " '-': fewer than two queries, or the same difference in all."
    if few:
        note += f" sign_flip_p: exact randomisation test, for fewer than {FEW_QUERIES} queries."
    if len(comparisons) > 1:
        note += f" {len(comparisons)} measures are {len(comparisons)} tests: settle on one before you look."
    return SummaryTable(title, (*columns, "wins", "ties", "losses"), rows, note, name="comparison")


def _p_value(p_value: float | None) -> Worded:
    return Worded(p_value, "<0.0001" if p_value is not None and p_value < 0.0001 else value_text(p_value))


def _candidates_table(lengths: Sequence[tuple[str, pd.Series]]) -> SummaryTable:
    rows = tuple((name, float(each.mean()), int(each.min()), int(each.max())) for name, each in lengths)
    ours, theirs = (each.to_numpy() for _, each in lengths)
    num_differing = int((ours != theirs).sum())
    note = (
        f"{num_differing} of {len(ours)} queries have lists of another length: depth is compared too, not only order."
        if num_differing
        else None
    )
    return SummaryTable("Candidates a query", ("run", "mean", "min", "max"), rows, note)


def _movers_table(measure: str, ours: pd.Series, theirs: pd.Series) -> SummaryTable | None:
    differences = ours - theirs
    moved = differences[differences.abs() > TIE]
    first = moved.abs().sort_values(ascending=False, kind="stable").index[:MAX_MOVERS]
    rows = [
        {"query_id": query, "this": float(ours[query]), "against": float(theirs[query]), "difference": moved[query]}
        for query in first
    ]
    return listing(f"Moved most, in {measure}", rows)
