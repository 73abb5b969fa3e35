"""Scores: the number carries the order, in any tool."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.answer.scores import ranking_status, score_docs
from tasks.schedule.rankings import RankingInProgress, Schedule
from tasks.schedule.windows import Outcome


def rank(num_candidates, *, depth=None, listed=1.0, logprobs=False):
    """A finished ranking that reversed each window, naming the first share of it."""
    ranking = RankingInProgress(0, num_candidates, Schedule("sliding", 6, 3, depth))
    while not ranking.is_done:
        for key, window in list(ranking.open_windows()):
            order = window.docs[::-1]
            values = tuple(-float(place) for place in range(len(order))) if logprobs else None
            ranking.answer(key, Outcome(order, int(listed * len(order)), values))
    return ranking


@pytest.mark.fault(32, 89)
@given(st.integers(1, 300), st.one_of(st.none(), st.integers(1, 50)))
def test_scores_strictly_decrease_as_32_bit_floats(num_candidates, depth):
    scored = score_docs(rank(num_candidates, depth=depth), depth or num_candidates)

    assert scored.scores.dtype == np.float32
    assert (np.diff(scored.scores) < 0).all()
    assert scored.scores[0] == 1.0


def test_scores_of_the_longest_list_are_distinct():
    scored = score_docs(rank(65_535, depth=2), 2)

    assert (np.diff(scored.scores) < 0).all()


def test_rows_below_depth_keep_first_stage_order_and_say_so():
    scored = score_docs(rank(10, depth=4), 4)

    assert scored.candidates.tolist() == [3, 2, 1, 0, 4, 5, 6, 7, 8, 9]
    assert scored.statuses.tolist() == ["ranked"] * 4 + ["below_depth"] * 6
    assert scored.score_kinds.tolist() == ["reciprocal_rank"] * 4 + ["first_stage_order"] * 6
    assert np.isnan(scored.model_scores).all()


@pytest.mark.fault(3, 7)
def test_what_the_model_never_named_is_marked():
    ranking = rank(5, listed=0.2)

    scored = score_docs(ranking, 5)

    assert scored.statuses.tolist() == ["ranked", "fallback", "fallback", "fallback", "fallback"]
    assert ranking_status(ranking) == "fallback"


def test_the_model_score_is_that_of_the_last_window_that_showed_the_document():
    scored = score_docs(rank(6, logprobs=True), 6)

    assert scored.model_scores.tolist() == [0.0, -1.0, -2.0, -3.0, -4.0, -5.0]


@pytest.mark.parametrize(("num_candidates", "status"), [(0, "no_candidates"), (1, "single"), (2, "ranked")])
def test_short_lists_need_no_model(num_candidates, status):
    assert ranking_status(rank(num_candidates)) == status


@pytest.mark.fault(32)
def test_a_single_candidate_scores_like_any_first_rank():
    assert score_docs(rank(1), 1).scores.tolist() == [1.0]
    assert score_docs(rank(1), 1).statuses.tolist() == ["ranked"]


def test_a_query_is_partial_where_some_windows_fell_back():
    ranking = RankingInProgress(0, 9, Schedule("sliding", 6, 3, None))
    for listed in (0, 6):
        ((key, window),) = ranking.open_windows()
        ranking.answer(key, Outcome(window.docs, listed))

    assert ranking_status(ranking) == "partial"
