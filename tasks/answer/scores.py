"""From a query's final order to its scores: a number that carries the order in any tool that reads it.

`score` is 1 / rank, strictly decreasing as float32 (trec_eval keeps C floats and breaks ties by doc_id). Where the
model did not place a document its kind says so and `model_score` is missing. Knows nothing of tables.
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
    score_kinds: np.ndarray  # str: reciprocal_rank, first_stage_order
    model_scores: np.ndarray  # float32, NaN where there is none
    statuses: np.ndarray  # str: ranked, below_depth, fallback


def score_docs(ranking: RankingInProgress, depth: int) -> ScoredDocs:
    """The scores of a finished ranking, of which `depth` candidates were the model's to rank.

    `model_score` is a candidate's log-probability in the last window that showed it, the one that placed it.
    """
    assert ranking.order is not None, f"query {ranking.query_index} is not finished"
    candidates = np.array(ranking.order, np.int32)
    asked = ranking.num_windows > 0
    named = np.fromiter((ranking.was_named(doc) for doc in ranking.order), bool, len(candidates))
    logprobs = np.array([ranking.last_logprob(doc) for doc in ranking.order], np.float32)  # None becomes NaN
    by_model = named & (candidates < depth)
    placed = by_model if asked else candidates < depth
    return ScoredDocs(
        candidates=candidates,
        scores=(1.0 / np.arange(1, len(candidates) + 1)).astype(np.float32),  # distinct up to 10^7 ranks
        score_kinds=np.where(by_model, "reciprocal_rank", "first_stage_order"),
        model_scores=np.where(by_model & np.isfinite(logprobs), logprobs, np.float32(np.nan)),
        statuses=np.where(candidates >= depth, "below_depth", np.where(placed, "ranked", "fallback")),
    )


def ranking_status(ranking: RankingInProgress) -> RankingStatus:
    """How far the model ranked the query."""
    if ranking.num_windows == 0:
        return "single" if ranking.num_candidates else "no_candidates"
    if ranking.num_fallback_windows == 0:
        return "ranked"
    return "fallback" if ranking.num_fallback_windows == ranking.num_windows else "partial"
