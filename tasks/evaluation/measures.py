"""Measures of rankings against judgments, and whether two rankings differ."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import ir_measures
import numpy as np
import pandas as pd
import pyarrow as pa

from tasks.system.errors import ConfigError, InputError, first_line

NIGHT_MEASURES = ("nDCG@10",)
RANKINGS = {"first_stage": "first_stage_rank", "reranked": "rank"}  # the column that carries the order
FIRST_STAGE = "first_stage"  # also what --against calls the run's own first stage
CONFIDENCE = 0.95
TIE = 1e-9  # values closer than this are equal: providers sum in other orders
FEW_QUERIES = 20  # below it the t-test leans on a normal distribution, and all 2^n sign flips are quickly counted
DEFAULT_MEASURES = ("nDCG@10", "AP", "RR", "R@100")


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
        """Only those of the given queries."""
        return Qrels(self.frame[self.frame["query_id"].isin(query_ids)], self.digest)


@dataclass(frozen=True, slots=True)
class RunOrders:
    """What a run made of its queries."""

    run_id: str
    queries: frozenset[str]  # all of the run, those without candidates included
    rows: pd.DataFrame  # query_id, doc_id, first_stage_rank, rank
    is_limited: bool = False  # a trial: a query that it lacks was not asked for, so it does not count as 0

    def judged_by(self, qrels: Qrels) -> Qrels:
        """The judgments that the run is measured against: all of them, or of a trial those of its own queries."""
        return qrels.of_queries(set(self.queries)) if self.is_limited else qrels

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
    sign_flip_p: float | None = None  # exact randomisation test, two-sided; None where `p_value` is, or not needed

    @property
    def difference(self) -> float:
        """The mean difference."""
        return self.ours - self.theirs


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
    judged = orders.judged_by(qrels)
    parts = [
        evaluate(judged, orders.scored(ranking), measures).assign(
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
    untied = np.where(tied, 0.0, differences)
    p_value, interval = _paired_test(untied)
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
        sign_flip_p=None if p_value is None or len(untied) >= FEW_QUERIES else _sign_flip_p(untied),
    )


def _sign_flip_p(differences: np.ndarray) -> float:
    """The share of all ways to swap the two rankings, query by query, that differ by as much as they do.

    Unlike the t-test it asks for no normal distribution, which few queries do not give.
    """
    sums = np.zeros(1)
    for difference in differences:
        sums = np.concatenate([sums + difference, sums - difference])
    return float(np.mean(np.abs(sums) >= abs(differences.sum()) - TIE))


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
        if measure.params.get("cutoff", 1) < 1:  # trec_eval's code ends the process there
            raise ValueError("a cutoff starts at 1")
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
