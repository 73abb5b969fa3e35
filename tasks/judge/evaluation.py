"""Quality against judgments with ir-measures: trec_eval's definitions, over all judged queries; and two runs compared.

nDCG@10 has a linear gain and its ideal list comes from all judgments; a judged query without results counts as 0; a
query without a relevant document is left out and counted. Knows nothing of how a run was made.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Any

import ir_measures
import numpy as np
import pandas as pd
import pyarrow as pa

from tasks.database import DatabaseLimits, read_sql
from tasks.environment import checkout_path
from tasks.errors import ConfigError, InputError, first_line
from tasks.judge.queries import RankedRun, find_newest_run, find_ranked_run, read_rows
from tasks.judge.summary import SummaryTable, listing, pairs, value_text
from tasks.judge.trec_files import read_judgments
from tasks.keep.store import Store
from tasks.read.parquet_files import input_digest, read_batches
from tasks.read.qrels import is_text_file, open_qrels
from tasks.read.staging import resolve_path
from tasks.settings import InputSettings, StoreSettings, load_settings, stored_inputs

NIGHT_MEASURES = ("nDCG@10",)
DEFAULT_MEASURES = ("nDCG@10", "AP", "RR", "R@100")
RANKINGS = {"first_stage": "first_stage_rank", "reranked": "rank"}  # the column that carries the order
FIRST_STAGE = "first_stage"  # also what --against calls the run's own first stage
CONFIDENCE = 0.95
TIE = 1e-9  # values closer than this are equal: providers sum in other orders
MAX_MOVERS = 10
QRELS_COLUMNS = ["query_id", "doc_id", "relevance"]


@dataclass(frozen=True, slots=True)
class Qrels:
    """Judgments: columns query_id, doc_id, relevance."""

    frame: pd.DataFrame
    digest: str

    @property
    def queries(self) -> frozenset[str]:
        """Every query with a judgment."""
        return frozenset(self.frame["query_id"])

    @property
    def relevant_queries(self) -> frozenset[str]:
        """The queries that a measure is defined for: those with a relevant document."""
        return frozenset(self.frame.loc[self.frame["relevance"] > 0, "query_id"])

    def of_queries(self, query_ids: set[str]) -> "Qrels":
        """Only those of the given queries: a limited run is judged on what it ran."""
        return Qrels(self.frame[self.frame["query_id"].isin(query_ids)], self.digest)


@dataclass(frozen=True, slots=True)
class RunOrders:
    """What a run made of its queries."""

    run_id: str
    queries: frozenset[str]  # all of the run, those without candidates included
    rows: pd.DataFrame  # query_id, doc_id, first_stage_rank, rank

    def scored(self, ranking: str) -> pd.DataFrame:
        """One of RANKINGS as evaluators read it: query_id, doc_id, score; the score is 1 / rank, so without ties."""
        scored = self.rows.assign(score=1.0 / self.rows[RANKINGS[ranking]])
        return scored[["query_id", "doc_id", "score"]]

    def num_candidates(self, queries: Iterable[str]) -> pd.Series:
        """How many candidates each of the queries has."""
        return self.rows.groupby("query_id").size().reindex(sorted(queries), fill_value=0)


@dataclass(frozen=True, slots=True)
class Comparison:
    """One measure of two rankings over the same queries; differences are ours less theirs."""

    measure: str
    num_queries: int
    ours: float  # mean
    theirs: float  # mean
    wins: int
    ties: int
    losses: int
    p_value: float | None  # paired t-test, two-sided; None: fewer than two queries, or differences without spread
    interval: tuple[float, float] | None  # of the mean difference, 95 %; None likewise

    @property
    def difference(self) -> float:
        """The mean difference."""
        return self.ours - self.theirs


@dataclass(frozen=True, slots=True)
class EvaluationRequest:
    """What `packrank evaluate` is asked for."""

    target: str  # a run_id, or a settings file: then the newest ranked run of its name
    qrels: str | None = None  # file or URL; what the run's settings name if not given
    measures: tuple[str, ...] = ()  # as ir-measures writes them; DEFAULT_MEASURES if none
    against: str | None = None  # a run_id, or 'first_stage'
    database: Path | None = None
    overrides: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Target:
    """The run to evaluate, where it lies, and the inputs that name its judgments."""

    run: RankedRun
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
    orders = read_orders(target.store.path, target.run.run_id)
    check_overlap(qrels, orders.queries, path, orders.run_id)
    other = _orders_against(request.against, target)
    measured = measure_run(orders, qrels, measures)
    tables = [_counts_table(path, qrels, orders), _quality_table(measured, measures)]
    if other is not None:
        tables += _compare_runs(orders, other, qrels, measures)
    target.store.replace_metrics(orders.run_id, metric_rows(measured))
    return tables


def read_qrels(settings: InputSettings, night: date) -> Qrels:
    """Reads `[inputs] qrels`: Parquet, a TREC qrels file, or BEIR's tsv.

    Raises:
        InputError: unreadable, or one pair judged twice with different relevance.
    """
    assert settings.qrels is not None, "no [inputs] qrels"
    path = resolve_path(settings.qrels)
    if is_text_file(path):
        rows, digest = read_judgments(path)
        where = path
    else:
        opened = open_qrels(settings, night)
        rows = pa.Table.from_batches([batch for _, batch in read_batches(opened, QRELS_COLUMNS)])
        digest, where = input_digest([opened]), opened.files[0].path
    frame = rows.to_pandas().drop_duplicates()
    _check_pairs(where, frame)
    return Qrels(frame, digest)


def read_orders(database: Path, run_id: str) -> RunOrders:
    """A run's queries and rows, read without keeping the database.

    Raises:
        StoreError: see `read_rows`.
    """
    queries = read_rows(database, read_sql("summary/list_queries"), {"run_id": run_id})
    rows = read_rows(database, read_sql("summary/run_scores"), {"run_id": run_id})
    return RunOrders(run_id, frozenset(queries.column("query_id").to_pylist()), rows.to_pandas())


def check_measures(texts: Sequence[str]) -> tuple[str, ...]:
    """The measures as ir-measures prints them, each once.

    Raises:
        ConfigError: naming one that it does not know or cannot compute here, with examples.
    """
    return tuple(dict.fromkeys(str(_parse_measure(text)) for text in texts))


def check_overlap(qrels: Qrels, queries: frozenset[str], path: str, run_id: str) -> None:
    """Whether anything can be measured.

    Raises:
        InputError: no query of the run has a relevant judgment.
    """
    if qrels.relevant_queries & queries:
        return
    ours, theirs = min(queries, default=None), min(qrels.queries, default=None)
    raise InputError(
        f"qrels: {path}: none of the {len(queries)} queries of run {run_id} has a relevant judgment there "
        f"({len(qrels.queries)} judged queries; ids such as {ours!r} and {theirs!r}). Give the run's judgments."
    )


def evaluate(qrels: Qrels, run: pd.DataFrame, measures: Sequence[str] = NIGHT_MEASURES) -> pd.DataFrame:
    """Each measure's mean (query_id null) and values by query: columns measure, query_id, value, num_queries.

    Args:
        qrels: the judgments.
        run: query_id, doc_id, score; the score carries the order.
        measures: as ir-measures writes them.

    Raises:
        InputError: a document twice in a query's list, which would count twice.
        ConfigError: a measure that is not defined for a query of the run, or cannot be computed.
    """
    _check_once(run)
    judged = qrels.relevant_queries
    kept = qrels.frame[qrels.frame["query_id"].isin(judged)]
    by_query = _values(kept, run, measures)
    means = [
        {
            "measure": measure,
            "query_id": None,
            "value": by_query.loc[by_query["measure"] == measure, "value"].sum() / max(len(judged), 1),
            "num_queries": len(judged),
        }
        for measure in measures
    ]
    return pd.concat([pd.DataFrame(means), by_query], ignore_index=True)


def measure_run(orders: RunOrders, qrels: Qrels, measures: Sequence[str]) -> pd.DataFrame:
    """Both rankings of a run, as `evaluate` gives them, in the columns of `metrics`."""
    parts = [
        evaluate(qrels, orders.scored(ranking), measures).assign(
            run_id=orders.run_id, ranking=ranking, qrels_digest=qrels.digest
        )
        for ranking in RANKINGS
    ]
    return pd.concat(parts, ignore_index=True)


def metric_rows(measured: pd.DataFrame) -> pa.Table:
    """The rows of `metrics`."""
    return pa.Table.from_pandas(measured, preserve_index=False)


def compare(measure: str, ours: pd.Series, theirs: pd.Series) -> Comparison:
    """Two rankings by the values of one measure, both indexed by the same queries."""
    differences = (ours - theirs).to_numpy(dtype=float)
    tied = np.abs(differences) <= TIE
    p_value, interval = _paired_test(np.where(tied, 0.0, differences))
    return Comparison(
        measure=measure,
        num_queries=len(differences),
        ours=float(ours.mean()),
        theirs=float(theirs.mean()),
        wins=int(((differences > 0) & ~tied).sum()),
        ties=int(tied.sum()),
        losses=int(((differences < 0) & ~tied).sum()),
        p_value=p_value,
        interval=interval,
    )


def _paired_test(differences: np.ndarray) -> tuple[float | None, tuple[float, float] | None]:
    """The t-test's p-value and interval; rankings that are equal everywhere differ by nothing for sure."""
    if len(differences) < 2:
        return None, None
    if not differences.any():
        return 1.0, (0.0, 0.0)
    if np.ptp(differences) <= TIE:
        return None, None  # one and the same step everywhere has no spread: t would be infinite
    from scipy import stats  # takes two seconds, that a night and an evaluation without comparison save

    tested = stats.ttest_rel(differences, np.zeros_like(differences))
    low, high = tested.confidence_interval(CONFIDENCE)
    return float(tested.pvalue), (float(low), float(high))


def _find_target(request: EvaluationRequest) -> _Target:
    path = Path(request.target)
    if path.suffix == ".toml" or path.is_file():
        settings = load_settings(path, request.overrides)
        database = request.database or settings.database_path
        run = find_newest_run(database, settings.night.name)
        return _Target(run, _store(database, settings.store), settings.inputs)
    if request.overrides:
        raise ConfigError(f"--set goes with a settings file, {request.target!r} is a run. Leave --set out.")
    store = StoreSettings()
    database = request.database or checkout_path(store.database)
    return _Target(find_ranked_run(database, request.target), _store(database, store), None)


def _store(database: Path, settings: StoreSettings) -> Store:
    scratch = database.parent / "tmp" / f"{database.stem}.duckdb"
    return Store(database, DatabaseLimits(settings.memory_limit, settings.threads, scratch))


def _find_qrels(request: EvaluationRequest, target: _Target) -> tuple[str, Qrels]:
    """Where the judgments lie, and themselves."""
    if request.qrels is not None:
        path = request.qrels if "://" in request.qrels else str(Path.cwd() / request.qrels)
        inputs = InputSettings(nested="-", qrels=path)
    else:
        inputs = target.inputs or _stored_inputs(target.run)
    if inputs.qrels is None:
        raise ConfigError(f"run {target.run.run_id}: its settings name no [inputs] qrels. Give --qrels FILE.")
    return resolve_path(inputs.qrels), read_qrels(inputs, target.run.night)


def _stored_inputs(run: RankedRun) -> InputSettings:
    try:
        return stored_inputs(run.run_id, run.settings, ["qrels"])
    except ConfigError as error:
        raise ConfigError(f"{error} Give --qrels FILE, or the settings file in place of the run.") from error


def _orders_against(against: str | None, target: _Target) -> RunOrders | str | None:
    """The other run's orders; a ranking's name stands for this run's own."""
    if against is None or against == FIRST_STAGE:
        return against
    return read_orders(target.store.path, find_ranked_run(target.store.path, against).run_id)


def _check_pairs(where: str, frame: pd.DataFrame) -> None:
    repeated = frame[frame.duplicated(["query_id", "doc_id"], keep=False)]
    if len(repeated):
        first = repeated.iloc[0]
        raise InputError(
            f"qrels: {where}: {first['query_id']!r}, {first['doc_id']!r} is judged in several ways "
            f"({len(repeated)} rows). Keep one row a pair."
        )
    if frame["relevance"].isna().any() or frame["query_id"].isna().any() or frame["doc_id"].isna().any():
        raise InputError(f"qrels: {where}: a null among query_id, doc_id and relevance.")


def _check_once(run: pd.DataFrame) -> None:
    repeated = run[run.duplicated(["query_id", "doc_id"])]
    if len(repeated):
        first = repeated.iloc[0]
        raise InputError(
            f"run: query {first['query_id']!r} lists document {first['doc_id']!r} more than once "
            f"({len(repeated)} rows too many): a measure would count it twice. Keep its best row."
        )


def _parse_measure(text: str) -> Any:
    """The measure, tried on one document: what ir-measures parses it may still not be able to compute."""
    judged = pd.DataFrame({"query_id": ["1"], "doc_id": ["1"], "relevance": [1]})
    run = pd.DataFrame({"query_id": ["1"], "doc_id": ["1"], "score": [1.0]})
    try:
        measure = ir_measures.parse_measure(text)
        list(ir_measures.iter_calc([measure], judged, run))
    except Exception as error:  # parser and providers are other people's: NameError, AssertionError, a Perl script
        raise ConfigError(
            f"--measure {text}: ir-measures cannot compute it ({first_line(error)}). "
            f"Such as: {', '.join(DEFAULT_MEASURES)}, P@10, nDCG@20, AP(rel=2)."
        ) from error
    return measure


def _values(qrels: pd.DataFrame, run: pd.DataFrame, measures: Sequence[str]) -> pd.DataFrame:
    """One row a measure and judged query; a query without results has the value 0, whatever a provider makes of it."""
    try:
        parsed = [ir_measures.parse_measure(measure) for measure in measures]
        found = {(str(each.measure), each.query_id): each.value for each in ir_measures.iter_calc(parsed, qrels, run)}
    except Exception as error:  # as in _parse_measure
        raise ConfigError(f"--measure {', '.join(measures)}: {first_line(error)}. Leave out the one named.") from error
    with_results = set(run["query_id"])
    rows = []
    for measure in measures:
        for query in sorted(set(qrels["query_id"])):
            value = found.get((measure, query), np.nan) if query in with_results else 0.0
            if not np.isfinite(value):
                raise ConfigError(f"--measure {measure}: not defined for query {query!r}. Leave the measure out.")
            rows.append({"measure": measure, "query_id": query, "value": float(value), "num_queries": 1})
    return pd.DataFrame(rows, columns=["measure", "query_id", "value", "num_queries"])


def _counts_table(path: str, qrels: Qrels, orders: RunOrders) -> SummaryTable:
    judged = qrels.relevant_queries
    return pairs(
        f"Judgments of run {orders.run_id}",
        [
            ("qrels", path),
            ("judged queries, each measure is over", len(judged)),
            ("of those not in the run, counted as 0", len(judged - orders.queries)),
            ("judged without a relevant document, left out", len(qrels.queries - judged)),
            ("queries of the run", len(orders.queries)),
            ("of those not judged, not evaluated", len(orders.queries - qrels.queries)),
        ],
    )


def _quality_table(measured: pd.DataFrame, measures: Sequence[str]) -> SummaryTable:
    means = measured[measured["query_id"].isna()].set_index(["measure", "ranking"])
    rows = []
    for measure in measures:
        values = {ranking: float(means.loc[(measure, ranking), "value"]) for ranking in RANKINGS}
        rows.append({"measure": measure, "num_queries": int(means.loc[(measure, FIRST_STAGE), "num_queries"])} | values)
    return SummaryTable("Quality", tuple(rows[0]), tuple(tuple(map(value_text, row.values())) for row in rows))


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
        _comparison_table(f"{orders.run_id} against {name}", comparisons),
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


def _comparison_table(title: str, comparisons: Sequence[Comparison]) -> SummaryTable:
    columns = ("measure", "num_queries", "this", "against", "difference", "95 % interval", "p_value")
    rows = tuple(
        (
            each.measure,
            value_text(each.num_queries),
            value_text(each.ours),
            value_text(each.theirs),
            f"{each.difference:+.4f}",
            "-" if each.interval is None else "{:+.4f} to {:+.4f}".format(*each.interval),
            _p_text(each.p_value),
            *map(value_text, (each.wins, each.ties, each.losses)),
        )
        for each in comparisons
    )
    note = "Over the judged queries that both have. Interval and p-value: paired t-test over queries, two-sided."
    if any(each.p_value is None for each in comparisons):
        note += " '-': fewer than two queries, or the same difference in all."
    return SummaryTable(title, (*columns, "wins", "ties", "losses"), rows, note)


def _p_text(p_value: float | None) -> str:
    return "<0.0001" if p_value is not None and p_value < 0.0001 else value_text(p_value)


def _candidates_table(lengths: Sequence[tuple[str, pd.Series]]) -> SummaryTable:
    rows = tuple(
        (name, value_text(float(each.mean())), value_text(int(each.min())), value_text(int(each.max())))
        for name, each in lengths
    )
    ours, theirs = (each.to_numpy() for _, each in lengths)
    num_differing = int((ours != theirs).sum())
    note = (
        f"{num_differing} of {len(ours)} queries have lists of another length: depth is compared too, not only order."
        if num_differing
        else None
    )
    return SummaryTable("Candidates a query", ("", "mean", "min", "max"), rows, note)


def _movers_table(measure: str, ours: pd.Series, theirs: pd.Series) -> SummaryTable | None:
    differences = ours - theirs
    moved = differences[differences.abs() > TIE]
    first = moved.abs().sort_values(ascending=False, kind="stable").index[:MAX_MOVERS]
    rows = [
        {"query_id": query, "this": float(ours[query]), "against": float(theirs[query]), "difference": moved[query]}
        for query in first
    ]
    return listing(f"Moved most in {measure}", rows)
