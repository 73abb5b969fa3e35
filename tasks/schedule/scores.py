"""From a query's final order to its scores: a number that carries the order in any tool that reads it.

`score` strictly decreases as float32 (trec_eval keeps C floats and breaks ties by doc_id), in the unit that
`score_kind` names: 1 / rank where the model gives only an order. If the model did not place a document, its kind
is `first_stage_order` and `model_score` is missing. Knows nothing of tables.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from tasks.schedule.rankings import RankingInProgress

RankingStatus = Literal["ranked", "single", "partial", "fallback", "no_candidates", "quarantined"]


@dataclass(frozen=True, slots=True)
class ScoredDocs:
    """A query's candidates, best first: 1D arrays of equal length."""

    candidates: np.ndarray  # int32, places in first-stage order, from 0
    scores: np.ndarray  # float32
    score_kinds: np.ndarray  # str: ScoreKind, first_stage_order
    model_scores: np.ndarray  # float32, NaN where there is none
    statuses: np.ndarray  # str: ranked, below_depth, fallback


def score_docs(ranking: RankingInProgress) -> ScoredDocs:
    """The scores of a finished ranking."""
    order, result = ranking.order, ranking.result
    assert order is not None, f"query {ranking.query_index} is not finished"
    assert result is not None, f"query {ranking.query_index} is not finished"
    candidates = np.array(order, np.int32)
    asked = ranking.num_windows > 0
    within = candidates < ranking.depth
    placed = np.fromiter((ranking.was_placed(doc) for doc in order), bool, len(candidates))
    by_model = placed & within
    values = np.array(
        [ranking.value_of(doc) if here else None for doc, here in zip(order, by_model, strict=True)], float
    )
    return ScoredDocs(
        candidates=candidates,
        scores=_falling_scores(result.score_kind, [result.values.get(doc) for doc in result.order], len(order)),
        score_kinds=np.where(by_model, result.score_kind, "first_stage_order"),
        model_scores=np.where(np.isfinite(values), values, np.nan).astype(np.float32),
        statuses=np.where(~within, "below_depth", np.where(by_model | ~np.bool_(asked), "ranked", "fallback")),
    )


def first_stage_docs(num_candidates: int, depth: int) -> ScoredDocs:
    """The scores of a query that the model could not rank at all: the first stage's order, marked as such."""
    candidates = np.arange(num_candidates, dtype=np.int32)
    return ScoredDocs(
        candidates=candidates,
        scores=_falling_scores("reciprocal_rank", [], num_candidates),
        score_kinds=np.full(num_candidates, "first_stage_order"),
        model_scores=np.full(num_candidates, np.nan, np.float32),
        statuses=np.where(candidates < depth, "fallback", "below_depth"),
    )


def ranking_status(ranking: RankingInProgress) -> RankingStatus:
    """How far the model ranked the query."""
    if ranking.num_windows == 0:
        return "single" if ranking.num_candidates else "no_candidates"
    if ranking.num_fallback_windows == 0:
        return "ranked"
    return "fallback" if ranking.num_fallback_windows == ranking.num_final_windows else "partial"


def _falling_scores(kind: str, values: list[float | None], num_candidates: int) -> np.ndarray:
    """1D float32, strictly falling: the model's values, the next lower float where two are equal, whole steps below.

    Args:
        kind: reciprocal_rank, or the unit of the values.
        values: by rank; those without one stand at the end, and get numbers below 0 that no probability has.
        num_candidates: the list's length, what lies below depth included.
    """
    if kind == "reciprocal_rank":
        return (1.0 / np.arange(1, num_candidates + 1)).astype(np.float32)  # distinct up to 10^7 ranks
    known = np.array([value for value in values if value is not None], np.float32)
    for place in np.flatnonzero(np.diff(known) >= 0) + 1:
        _step_below(known, int(place))
    lowest = min(float(known[-1]), 0.0) if len(known) else 0.0
    rest = lowest - np.arange(1, num_candidates - len(known) + 1)
    scores: np.ndarray = np.concatenate([known, rest]).astype(np.float32)
    return scores


def _step_below(scores: np.ndarray, place: int) -> None:
    """Lowers scores from `place` on until they fall again."""
    while place < len(scores) and scores[place] >= scores[place - 1]:
        scores[place] = np.nextafter(scores[place - 1], np.float32(-np.inf))
        place += 1
