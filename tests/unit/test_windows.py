"""Strategies: what they ask, how much, and what comes out with a comparator that knows, or that lies."""

import math
import random
import statistics

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.schedule.rankings import RankingInProgress, Schedule, WindowKey
from tasks.schedule.seeds import Seed
from tasks.schedule.strategies.blitz import Blitz
from tasks.schedule.strategies.jointrank import JointRank
from tasks.schedule.strategies.pairwise import Pairwise
from tasks.schedule.strategies.pointwise import Pointwise
from tasks.schedule.strategies.setwise import Setwise
from tasks.schedule.strategies.single import Single
from tasks.schedule.strategies.sliding import Sliding, sliding_spans
from tasks.schedule.strategies.tdpart import TDPart
from tasks.schedule.strategies.tourrank import Stage, TourRank
from tasks.schedule.windows import Outcome, Window, fell_back
from tasks.schedule.wrappers.cascade import Cascade
from tasks.schedule.wrappers.consensus import Consensus, agreed
from tasks.schedule.wrappers.truncate import Truncate

LENGTHS = [0, 1, 2, 19, 20, 21, 95, 100, 103, 1000]
RELEVANCE = [(doc * 7919) % 10_007 for doc in range(2_000)]  # a fixed shuffle, no ties; the smallest is best

# Every strategy whose first ten are exact with a perfect comparator, for every list length (ALGORITHMS, section 1).
EXACT = {
    "pointwise": Pointwise("query_likelihood"),
    "single": Single(),
    "single_top_10": Single(top_k=10),
    "sliding": Sliding(20, 10),
    "sliding_top_10": Sliding(20, 10, top_k=10),
    "sliding_twice": Sliding(20, 10, passes=2),
    "sliding_early_exit": Sliding(20, 10, passes=4, early_exit=True),
    "sliding_small_steps": Sliding(20, 3, passes=2),
    "tdpart": TDPart(20, 10),
    "setwise_3": Setwise(3, 10),
    "setwise_10": Setwise(10, 10),
    "setwise_20": Setwise(20, 10),
    "setwise_insertion": Setwise(4, 10, "insertion"),
    "blitz": Blitz(20, 10),
    "blitz_10": Blitz(10, 10),
    "pairwise_heapsort": Pairwise(10),
    "pairwise_sliding": Pairwise(10, "sliding"),
    "pairwise_all": Pairwise(10, "all_pairs"),
    "cascade": Cascade(Pointwise("p_yes"), 30, Sliding(20, 10)),
    "consensus": Consensus(Sliding(20, 10), 3),
    "consensus_tdpart": Consensus(TDPart(20, 10), 3),
}
STRATEGIES = EXACT | {
    "tourrank": TourRank(20, 2),
    "jointrank": JointRank(20, 2, "page_rank"),
    "jointrank_4": JointRank(20, 4, "win_rate"),
    "cascade_setwise": Cascade(Pointwise("query_likelihood"), 12, Setwise(5, 4)),
    "cascade_consensus": Cascade(Pointwise("p_yes"), 25, Consensus(TDPart(8, 4), 2)),
}
MILLION_AT_1000 = "pairwise_all"  # windows: see the slow test


def by_relevance(docs, relevance=RELEVANCE):
    return tuple(sorted(docs, key=lambda doc: relevance[doc]))


def perfect(window):
    """The comparator that knows: the smallest relevance number is best. Tells log-probabilities, so that all
    aggregations are tried."""
    order = by_relevance(window.docs)
    return Outcome(order, len(order), tuple(-RELEVANCE[doc] / 1000 - 0.01 for doc in order))


def just_enough(window):
    """The same without log-probabilities, and no more named than was asked: the rest stands in prompt order."""
    order = by_relevance(window.docs)
    num = order.index(window.pivot) + 1 if window.pivot is not None else window.num_asked
    return Outcome((*order[:num], *(doc for doc in window.docs if doc not in order[:num])), num)


def run(strategy, num_candidates, comparator=perfect, seed="q1", **settings):
    """Drives a ranking to its end; returns it with the windows of each round."""
    schedule = Schedule(strategy, seed=Seed("7"), **settings)
    ranking = RankingInProgress(0, num_candidates, schedule, query_id=seed)
    rounds = []
    while not ranking.is_done:
        opened = list(ranking.open_windows())
        rounds.append([window for _, window in opened])
        for key, window in opened:
            ranking.answer(key, comparator(window))
    return ranking, rounds


def counts(rounds):
    """Windows, slots, rounds."""
    windows = [window for each in rounds for window in each]
    return len(windows), sum(len(window.docs) for window in windows), len(rounds)


def check_bound(strategy, num_candidates, rounds):
    bound = strategy.bound(num_candidates)
    num_windows, num_slots, num_rounds = counts(rounds)
    assert num_windows <= bound.num_windows
    assert num_slots <= bound.num_slots
    assert num_rounds <= bound.num_rounds


@pytest.mark.parametrize("comparator", [perfect, just_enough])
@pytest.mark.parametrize("num_candidates", LENGTHS)
@pytest.mark.parametrize("name", EXACT)
def test_with_a_perfect_comparator_the_first_ten_are_exact(name, num_candidates, comparator):
    if num_candidates == 1000 and name == MILLION_AT_1000:
        pytest.skip("a million windows: the slow test has them")
    if comparator is just_enough and name in ("pointwise", "cascade"):
        pytest.skip("a judgment has a value")

    ranking, rounds = run(EXACT[name], num_candidates, comparator)

    assert ranking.order[:10] == by_relevance(range(num_candidates))[:10]
    assert sorted(ranking.order) == list(range(num_candidates))
    check_bound(EXACT[name], num_candidates, rounds)
    assert ranking.num_fallback_windows == 0


@pytest.mark.soak
def test_all_pairs_of_a_thousand_are_exact_too():
    ranking, rounds = run(EXACT[MILLION_AT_1000], 1000, just_enough)

    assert ranking.order == by_relevance(range(1000))
    check_bound(EXACT[MILLION_AT_1000], 1000, rounds)


@pytest.mark.parametrize(
    ("strategy", "num_windows", "num_slots", "num_rounds"),
    [
        (Pointwise("p_yes"), 100, 100, 1),
        (Single(), 1, 100, 1),
        (Sliding(20, 10), 9, 180, 9),
        (Sliding(10, 5), 19, 190, 19),
        (Sliding(20, 10, passes=3), 27, 540, 9 + 2 * 2),
        (TourRank(20, 1), 13, 185, 5),
        (TourRank(20, 2), 26, 370, 5),
        (TourRank(20, 10), 130, 1850, 5),
        (JointRank(20, 2, "page_rank"), 10, 200, 1),
        (JointRank(20, 4, "win_rate"), 20, 400, 1),
        (JointRank(10, 2, "page_rank"), 20, 200, 1),
        (Pairwise(10, "all_pairs"), 9900, 19800, 1),
        (Pairwise(10, "sliding"), 1890, 3780, 108),
        (Consensus(Sliding(20, 10), 3), 27, 540, 9),
        (Cascade(Pointwise("p_yes"), 30, Sliding(20, 10)), 102, 140, 3),
    ],
)
def test_at_a_hundred_candidates_the_counts_are_those_of_the_table(strategy, num_windows, num_slots, num_rounds):
    """ALGORITHMS, section 1. Pairwise sliding needs 108 rounds, not 117: a pass ends where those before it are done."""
    _, rounds = run(strategy, 100)

    assert counts(rounds) == (num_windows, num_slots, num_rounds)
    bound = strategy.bound(100)
    assert (bound.num_windows, bound.num_slots, bound.num_rounds) == (num_windows, num_slots, num_rounds)


@pytest.mark.parametrize(
    ("strategy", "num_windows", "num_slots", "num_rounds"),
    [
        (TDPart(20, 10), 7.5, 126, 3.5),
        (Setwise(3, 10), 125.4, 375, 67),
        (Setwise(10, 10), 30, 301, 22),
        (Setwise(20, 10), 21, 406, 17),
        (Setwise(4, 10, "insertion"), 85, 267, 84),
        (Blitz(20, 10), 7.0, 139, 7.0),
        (Blitz(10, 10), 13.6, 136, 13.6),
        (Pairwise(10), 502, 1003, 134),
    ],
)
def test_where_the_counts_depend_on_the_order_their_means_are_those_of_the_table(
    strategy, num_windows, num_slots, num_rounds
):
    """100 lists of 100 in an order like BM25's: true relevance blurred by noise of 1.35 standard deviations."""
    told = []
    for number in range(100):
        rng = random.Random(number)
        relevance = [rng.gauss(0, 1) for _ in range(100)]
        blurred = sorted(range(100), key=lambda doc: -(relevance[doc] + rng.gauss(0, 1.35)))
        cost = [-relevance[doc] for doc in blurred]
        _, rounds = run(strategy, 100, lambda window, cost=cost: order_by(window, cost), seed=str(number))
        check_bound(strategy, 100, rounds)
        told.append(counts(rounds))

    means = [statistics.mean(values) for values in zip(*told, strict=True)]
    assert means == pytest.approx([num_windows, num_slots, num_rounds], rel=0.05)


def order_by(window, cost):
    order = by_relevance(window.docs, cost)
    return Outcome(order, len(order))


def test_sliding_over_a_hundred_starts_at_the_back():
    _, rounds = run(Sliding(20, 10), 100)

    assert rounds[0][0].docs == tuple(range(80, 100))


def test_the_stages_of_a_tournament_of_a_hundred_are_the_papers():
    assert TourRank(20).stages(100) == [Stage(5, 10), Stage(5, 4), Stage(1, 10), Stage(1, 5), Stage(1, 2)]


def test_a_head_window_that_does_not_fall_on_the_stride_is_still_asked():
    """The original RankGPT loop tests the start before it clamps it.

    With 95 candidates its last window started at 5, so the first five were never looked at, and with 15 none was. It
    looked right because the paper's 100 / 20 / 10 divides evenly. Position 0 in the last span decides it.
    """
    assert sliding_spans(95, 20, 10)[-1] == (0, 20)
    assert sliding_spans(21, 20, 10) == [(1, 21), (0, 20)]  # it was (0, 11): the same two prompts, less compared
    assert sliding_spans(15, 20, 10) == [(0, 15)]


@given(st.integers(2, 300), st.integers(2, 60), st.data())
def test_every_position_lies_in_a_span_and_spans_overlap_or_touch(num_candidates, window_size, data):
    stride = data.draw(st.integers(1, window_size))

    spans = sliding_spans(num_candidates, window_size, stride)

    assert {place for start, end in spans for place in range(start, end)} == set(range(num_candidates))
    assert all(end - start <= window_size for start, end in spans)
    assert spans[0][1] == num_candidates
    assert spans[-1][0] == 0


@given(st.integers(2, 120), st.integers(2, 25), st.integers(1, 25), st.integers(2, 4), st.randoms())
def test_pipelined_passes_end_as_passes_one_after_the_other_would(num_candidates, window_size, stride, passes, rng):
    stride = min(stride, window_size)
    noise = [rng.gauss(0, 1) for _ in range(num_candidates)]

    def lying(window):  # the same windows get the same answers, whenever they are asked
        return order_by(window, {doc: noise[doc] * math.sin(sum(window.docs) + doc) for doc in window.docs})

    together, rounds = run(Sliding(window_size, stride, passes), num_candidates, lying)
    order = list(range(num_candidates))
    for _ in range(passes):
        for start, end in sliding_spans(num_candidates, window_size, stride):
            order[start:end] = lying(Window(tuple(order[start:end]))).order

    assert together.order == tuple(order)
    for windows in rounds:
        shown = [doc for window in windows for doc in window.docs]
        assert len(shown) == len(set(shown))


def test_a_further_pass_is_left_out_where_one_changed_nothing():
    _, rounds = run(Sliding(20, 10, passes=5, early_exit=True), 100)

    assert len(rounds) == 18  # the second pass finds the first ten as they are


def test_windows_that_only_carry_on_need_not_be_ordered_whole():
    _, rounds = run(Sliding(20, 10, top_k=5), 100)

    assert [windows[0].ask for windows in rounds] == [5] * 9
    assert [windows[0].ask for windows in run(Sliding(20, 15, top_k=10), 100)[1]] == [5] * 6 + [10]


def test_the_pivot_of_a_chunk_does_not_always_stand_first():
    _, rounds = run(TDPart(20, 10), 100)

    places = [window.docs.index(window.pivot) for window in rounds[1]]
    assert len(set(places)) > 1
    assert len({window.pivot for window in rounds[1]}) == 1


@given(
    st.sampled_from(sorted(STRATEGIES)),
    st.integers(0, 70),
    st.integers(0, 2),
    st.booleans(),
    st.randoms(use_true_random=False),
)
def test_any_comparator_gives_a_permutation_within_the_bound(name, num_candidates, retries, has_logprobs, rng):
    def shuffled(window):
        order = rng.sample(window.docs, len(window.docs))
        listed = rng.randint(0, len(order))
        values = [-rng.random() * 9 if place < listed else -math.inf for place in range(len(order))]
        return Outcome(tuple(order), listed, tuple(sorted(values, reverse=True)) if has_logprobs else None)

    strategy = STRATEGIES[name]
    if name == "pairwise_all":
        num_candidates = min(num_candidates, 25)
    schedule = Schedule(strategy, retries=retries)

    ranking, rounds = run(strategy, num_candidates, shuffled, retries=retries)

    assert sorted(ranking.order) == list(range(num_candidates))
    bound = schedule.bound(num_candidates)
    num_windows, num_slots, num_rounds = counts(rounds)
    assert ranking.num_windows == num_windows <= bound.num_windows
    assert num_slots <= bound.num_slots
    assert num_rounds <= bound.num_rounds
    assert ranking.num_rounds <= strategy.bound(num_candidates).num_rounds
    assert ranking.num_final_windows <= strategy.bound(num_candidates).num_windows
    values, kind = ranking.result.values, ranking.result.score_kind
    if kind != "reciprocal_rank" and values:
        known = [values[doc] for doc in ranking.result.order if doc in values]
        assert known == sorted(known, reverse=True)


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_comparator_that_never_names_anything_keeps_the_lists_length_and_ends(name):
    def silent(window):
        return Outcome(window.docs, 0, (-math.inf,) * len(window.docs))

    ranking, _ = run(STRATEGIES[name], 45, silent)

    assert sorted(ranking.order) == list(range(45))
    assert ranking.num_fallback_windows == ranking.num_final_windows > 0


@given(st.sampled_from(sorted(STRATEGIES)), st.integers(2, 40), st.integers(0, 40), st.randoms(use_true_random=False))
def test_replayed_outcomes_lead_to_the_same_place(name, num_candidates, num_replayed, rng):
    """A third of the answers names nothing, so that retries are replayed as well."""
    schedule = Schedule(STRATEGIES[name], seed=Seed("3"))
    answers = {}

    def answer(key, window):
        if key not in answers:
            order = rng.sample(window.docs, len(window.docs))
            answers[key] = (window, Outcome(tuple(order), rng.choice([0, len(order), len(order)])))
        assert answers[key][0] == window  # asked again, it is the same window
        return answers[key][1]

    def drive(ranking, told):
        while not ranking.is_done and len(told) < 5_000:
            for key, window in list(ranking.open_windows()):
                told.append((key, answer(key, window)))
                ranking.answer(*told[-1])
        return ranking

    told = []
    whole = drive(RankingInProgress(0, num_candidates, schedule, query_id="a"), told)
    resumed = RankingInProgress(0, num_candidates, schedule, query_id="a")
    for key, outcome in told[:num_replayed]:
        resumed.answer(key, outcome)
    drive(resumed, [])

    assert resumed.order == whole.order
    assert resumed.num_windows == whole.num_windows


@pytest.mark.parametrize(
    ("key", "order"),
    [
        (WindowKey(1, 0), (0, 1, 2)),  # another round
        (WindowKey(0, 1), (0, 1, 2)),  # no such window
        (WindowKey(0, 0, 1), (0, 1, 2)),  # an attempt that was not made
        (WindowKey(0, 0), (0, 1, 1)),  # a document twice
        (WindowKey(0, 0), (0, 1)),  # one left out
        (WindowKey(0, 0), (0, 1, 3)),  # a stranger
    ],
)
def test_an_outcome_that_is_not_of_an_open_window_is_refused(key, order):
    ranking = RankingInProgress(0, 3, Schedule(Single()))

    with pytest.raises(ValueError, match="not open|not an order"):
        ranking.answer(key, Outcome(order, num_listed=len(order)))


# ---- retries


@pytest.mark.parametrize(
    ("window", "outcome", "falls_back"),
    [
        (Window((0, 1, 2, 3)), Outcome((0, 1, 2, 3), num_listed=1), True),
        (Window((0, 1, 2, 3)), Outcome((0, 1, 2, 3), num_listed=2), False),
        (Window((0, 1)), Outcome((0, 1), num_listed=0), True),
        (Window((0, 1, 2, 3), ask=2), Outcome((0, 1, 2, 3), num_listed=1), False),
        (Window((0, 1, 2, 3), ask=1), Outcome((0, 1, 2, 3), num_listed=0), True),
        (Window((0, 1, 2, 3), pivot=3), Outcome((3, 0, 1, 2), num_listed=1), False),  # nothing beats the pivot
        (Window((0, 1, 2, 3), pivot=3), Outcome((2, 1, 0, 3), num_listed=3), True),  # it was never named
    ],
)
def test_a_window_falls_back_where_less_than_half_of_what_was_asked_is_named(window, outcome, falls_back):
    assert fell_back(window, outcome) == falls_back


@pytest.mark.fault(7)
def test_a_window_is_asked_again_in_another_order_never_in_the_same():
    ranking = RankingInProgress(0, 6, Schedule(Single(), retries=2), query_id="q")
    asked = []
    while not ranking.is_done:
        ((key, window),) = ranking.open_windows()
        asked.append((key.attempt, window.docs))
        ranking.answer(key, Outcome(window.docs, num_listed=len(asked) % 3))

    assert [attempt for attempt, _ in asked] == [0, 1, 2]
    assert len({docs for _, docs in asked}) == 3
    assert ranking.num_windows == 3
    assert (ranking.num_final_windows, ranking.num_fallback_windows) == (1, 1)
    named = asked[1][1][:2]  # the second attempt named most
    assert ranking.order == (*named, *(doc for doc in range(6) if doc not in named))


def test_a_retry_that_answers_is_no_fallback():
    ranking = RankingInProgress(0, 4, Schedule(Single()))
    ((key, window),) = ranking.open_windows()
    ((key, window),) = ranking.answer(key, Outcome(window.docs, 0))
    ranking.answer(key, Outcome((3, 2, 1, 0), 4))

    assert ranking.order == (3, 2, 1, 0)
    assert ranking.num_fallback_windows == 0


def test_a_candidate_alone_is_not_asked_again():
    ranking = RankingInProgress(0, 2, Schedule(Pointwise("p_yes"), retries=3))
    for key, window in list(ranking.open_windows()):
        assert ranking.answer(key, Outcome(window.docs, 0, (-math.inf,))) == []

    assert ranking.is_done


@given(st.lists(st.integers(0, 50), min_size=2, max_size=12, unique=True), st.integers(0, 1000))
def test_shuffled_is_never_the_same_order(docs, number):
    docs = tuple(docs)

    assert Seed("a").of(number).shuffled(docs) != docs
    assert sorted(Seed("a").of(number).shuffled(docs)) == sorted(docs)


def test_draws_do_not_depend_on_the_process():
    """blake2b of names, not Python's salted hash: the numbers are the same on every machine."""
    assert Seed("0").of("q1", "tourrank", 0).random().sample(range(100), 4) == [49, 43, 88, 16]


# ---- wrappers


def test_a_cascade_hands_on_the_best_and_keeps_the_rest_in_their_point_wise_order():
    ranking, rounds = run(Cascade(Pointwise("p_yes"), 5, Single()), 12)

    best = by_relevance(range(12))
    assert [window.question for window in rounds[0]] == ["judge"] * 12
    assert sorted(rounds[1][0].docs) == sorted(best[:5])
    assert ranking.order == best
    assert set(best[5:]) <= ranking.result.values.keys()


def test_consensus_overrules_one_order_that_went_wrong():
    window = Window((0, 1, 2))
    outcomes = [Outcome((2, 1, 0), 3), Outcome((0, 1, 2), 3), Outcome((2, 1, 0), 3)]

    assert agreed(window, outcomes).order == (2, 1, 0)


def test_consensus_counts_a_candidate_as_named_where_half_of_the_answers_named_it():
    window = Window((0, 1, 2))
    outcomes = [Outcome((1, 0, 2), 1), Outcome((1, 2, 0), 2)]

    together = agreed(window, outcomes)

    assert together.order[0] == 1
    assert set(together.listed) == {1, 2}


def test_consensus_shows_each_window_in_several_orders():
    _, rounds = run(Consensus(Single(), 4), 8)

    assert len({window.docs for window in rounds[0]}) == 4
    assert rounds[0][0].docs == tuple(range(8))


@pytest.mark.parametrize(
    ("truncate", "scores", "depth"),
    [
        (Truncate(), [9.0, 5.0, 1.0], 3),
        (Truncate(depth=2), [9.0, 5.0, 1.0], 2),
        (Truncate(score_gap=0.5), [10.0, 5.0, 4.9], 2),
        (Truncate(depth=1, score_gap=0.5), [10.0, 9.0, 8.0], 1),
        (Truncate(score_gap=0.5), [-1.0, -1.4, -2.0], 2),  # log-probabilities fall below 0
        (Truncate(score_gap=0.5), [10.0, 4.0, float("nan")], 3),  # a missing score cuts nothing
        (Truncate(score_gap=0.5), [], 0),
        (Truncate(score_gap=0.5), None, 3),
    ],
)
def test_lists_are_ranked_no_deeper_than_depth_and_score_allow(truncate, scores, depth):
    length = 3 if scores is None else len(scores)
    array = None if scores is None else np.array(scores)

    assert truncate.depth_of(length, array) == depth


def test_what_lies_below_depth_stays_where_it_was():
    ranking = RankingInProgress(0, 9, Schedule(Sliding(4, 2)), depth=5)
    while not ranking.is_done:
        for key, window in list(ranking.open_windows()):
            ranking.answer(key, perfect(window))

    assert ranking.order == (*by_relevance(range(5)), 5, 6, 7, 8)
