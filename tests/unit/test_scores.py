"""Scores: the number carries the order, in any tool."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.schedule.rankings import RankingInProgress, Schedule
from tasks.schedule.scores import ranking_status, score_docs
from tasks.schedule.strategies.pointwise import Pointwise
from tasks.schedule.strategies.sliding import Sliding
from tasks.schedule.strategies.tourrank import TourRank
from tasks.schedule.windows import Outcome


def rank(num_candidates, *, depth=None, listed=1.0, logprobs=False):
    """A finished ranking that reversed each window, naming the first share of it."""
    within = num_candidates if depth is None else min(depth, num_candidates)
    ranking = RankingInProgress(0, num_candidates, Schedule(Sliding(6, 3), retries=0), depth=within)
    while not ranking.is_done:
        for key, window in list(ranking.open_windows()):
            order = window.docs[::-1]
            values = tuple(-float(place) for place in range(len(order))) if logprobs else None
            ranking.answer(key, Outcome(order, int(listed * len(order)), values))
    return ranking


@pytest.mark.fault(32, 89)
@given(st.integers(1, 300), st.one_of(st.none(), st.integers(1, 50)))
def test_scores_strictly_decrease_as_32_bit_floats(num_candidates, depth):
    scored = score_docs(rank(num_candidates, depth=depth))

    assert scored.scores.dtype == np.float32
    assert (np.diff(scored.scores) < 0).all()
    assert scored.scores[0] == 1.0


def test_scores_of_the_longest_list_are_distinct():
    scored = score_docs(rank(65_535, depth=2))

    assert (np.diff(scored.scores) < 0).all()


@pytest.mark.fault(97)
def test_rows_below_depth_keep_first_stage_order_and_say_so():
    scored = score_docs(rank(10, depth=4))

    assert scored.candidates.tolist() == [3, 2, 1, 0, 4, 5, 6, 7, 8, 9]
    assert scored.statuses.tolist() == ["ranked"] * 4 + ["below_depth"] * 6
    assert scored.score_kinds.tolist() == ["reciprocal_rank"] * 4 + ["first_stage_order"] * 6
    assert np.isnan(scored.model_scores).all()


@pytest.mark.fault(3, 7)
def test_what_the_model_never_named_is_marked():
    ranking = rank(5, listed=0.2)

    scored = score_docs(ranking)

    assert scored.statuses.tolist() == ["ranked", "fallback", "fallback", "fallback", "fallback"]
    assert ranking_status(ranking) == "fallback"


def test_the_model_score_is_that_of_the_last_window_that_showed_the_document():
    scored = score_docs(rank(6, logprobs=True))

    assert scored.model_scores.tolist() == [0.0, -1.0, -2.0, -3.0, -4.0, -5.0]


@pytest.mark.parametrize(("num_candidates", "status"), [(0, "no_candidates"), (1, "single"), (2, "ranked")])
def test_short_lists_need_no_model(num_candidates, status):
    assert ranking_status(rank(num_candidates)) == status


@pytest.mark.fault(32)
def test_a_single_candidate_scores_like_any_first_rank():
    assert score_docs(rank(1)).scores.tolist() == [1.0]
    assert score_docs(rank(1)).statuses.tolist() == ["ranked"]


def test_a_query_is_partial_where_some_windows_fell_back():
    ranking = RankingInProgress(0, 9, Schedule(Sliding(6, 3), retries=0))
    for listed in (0, 6):
        ((key, window),) = ranking.open_windows()
        ranking.answer(key, Outcome(window.docs, listed))

    assert ranking_status(ranking) == "partial"


def judge(logprobs, *, depth=None, score_kind="query_likelihood"):
    """A finished point-wise ranking; None: the model gave nothing for the candidate."""
    schedule = Schedule(Pointwise(score_kind))
    ranking = RankingInProgress(0, len(logprobs), schedule, depth=depth or len(logprobs))
    for key, window in list(ranking.open_windows()):
        value = logprobs[window.docs[0]]
        told = -np.inf if value is None else float(np.float32(value))
        ranking.answer(key, Outcome(window.docs, int(value is not None), (told,)))
    return ranking


def test_a_point_wise_score_is_the_models_own_number():
    scored = score_docs(judge([-2.0, -0.5, -1.0]))

    assert scored.candidates.tolist() == [1, 2, 0]
    assert scored.scores.tolist() == [-0.5, -1.0, -2.0]
    assert scored.model_scores.tolist() == [-0.5, -1.0, -2.0]
    assert set(scored.score_kinds) == {"query_likelihood"}


def test_a_probability_of_yes_is_a_probability():
    scored = score_docs(judge([np.log(0.25), np.log(0.75)], score_kind="p_yes"))

    assert scored.scores.tolist() == pytest.approx([0.75, 0.25])
    assert scored.score_kinds.tolist() == ["p_yes", "p_yes"]


@pytest.mark.fault(32, 89)
@given(
    st.lists(st.one_of(st.none(), st.sampled_from([-0.0, -1e-9, -1e-30, -0.5, -3.0, -700.0])), min_size=2, max_size=60),
    st.sampled_from(["p_yes", "query_likelihood"]),
    st.integers(1, 60),
)
def test_equal_and_missing_values_still_give_strictly_falling_scores(logprobs, score_kind, depth):
    ranking = judge(logprobs, depth=min(depth, len(logprobs)), score_kind=score_kind)

    scored = score_docs(ranking)

    assert (np.diff(scored.scores) < 0).all()
    assert sorted(scored.candidates) == list(range(len(logprobs)))
    unknown = scored.statuses != "ranked"
    assert np.isnan(scored.model_scores[unknown]).all()
    if score_kind == "p_yes" and ranking.num_windows:
        assert (scored.scores[unknown] < 0).all()  # nothing that was not judged looks like a probability


def test_equal_judgments_keep_first_stage_order():
    assert score_docs(judge([-1.0, -1.0, -1.0])).candidates.tolist() == [0, 1, 2]


def test_points_are_scores():
    ranking = RankingInProgress(0, 30, Schedule(TourRank(10)))
    while not ranking.is_done:
        for key, window in list(ranking.open_windows()):
            ranking.answer(key, Outcome(tuple(sorted(window.docs, reverse=True)), len(window.docs)))

    scored = score_docs(ranking)

    assert set(scored.score_kinds) == {"points"}
    assert (np.diff(scored.scores) < 0).all()
    assert scored.model_scores[0] == scored.scores[0] >= 4


def test_a_list_cut_to_one_by_its_scores_needs_no_model():
    ranking = RankingInProgress(0, 5, Schedule(Sliding(4, 2)), depth=1)

    scored = score_docs(ranking)

    assert ranking_status(ranking) == "single"
    assert scored.statuses.tolist() == ["ranked", *["below_depth"] * 4]
