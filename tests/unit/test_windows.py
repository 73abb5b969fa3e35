"""Windows and strategies: every position is looked at, for every list length, and no more is asked than said."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.schedule.rankings import RankingInProgress, Schedule, WindowKey
from tasks.schedule.windows import Outcome, sliding_spans

LENGTHS = [0, 1, 2, 19, 20, 21, 95, 100, 103, 1000]


def perfect(docs):
    """The comparator that knows: the smallest relevance number is best."""
    return Outcome(tuple(sorted(docs, key=lambda doc: RELEVANCE[doc])), num_listed=len(docs))


RELEVANCE = [(doc * 7919) % 10_007 for doc in range(2_000)]  # a fixed shuffle, no ties


def run(schedule, num_candidates, comparator=perfect):
    """Drives a ranking to its end; returns it with the windows of each round."""
    ranking = RankingInProgress(0, num_candidates, schedule)
    rounds = []
    while not ranking.is_done:
        opened = list(ranking.open_windows())
        rounds.append([window.docs for _, window in opened])
        for key, window in opened:
            ranking.answer(key, comparator(window.docs))
    return ranking, rounds


@pytest.mark.parametrize("num_candidates", LENGTHS)
def test_with_a_perfect_comparator_sliding_puts_the_best_in_order(num_candidates):
    schedule = Schedule("sliding", window_size=20, stride=10, depth=None)

    ranking, _ = run(schedule, num_candidates)

    best = sorted(range(num_candidates), key=lambda doc: RELEVANCE[doc])
    assert ranking.order[:10] == tuple(best[:10])
    assert sorted(ranking.order) == list(range(num_candidates))


def test_sliding_over_a_hundred_asks_nine_windows_of_twenty():
    ranking, rounds = run(Schedule("sliding", 20, 10, None), 100)

    assert ranking.num_windows == 9
    assert [len(windows) for windows in rounds] == [1] * 9
    assert rounds[0][0] == tuple(range(80, 100))


def test_a_head_window_that_does_not_fall_on_the_stride_is_still_asked():
    """The original RankGPT loop tests the start before it clamps it.

    With 95 candidates its last window started at 5, so the first five were never looked at, and with 15 none was. It
    looked right because the paper's 100 / 20 / 10 divides evenly. Position 0 in the last span decides it.
    """
    assert sliding_spans(95, 20, 10)[-1] == (0, 15)
    assert sliding_spans(15, 20, 10) == [(0, 15)]


@given(st.integers(2, 300), st.integers(2, 60), st.data())
def test_every_position_lies_in_a_span_and_spans_overlap_or_touch(num_candidates, window_size, data):
    stride = data.draw(st.integers(1, window_size))

    spans = sliding_spans(num_candidates, window_size, stride)

    assert {place for start, end in spans for place in range(start, end)} == set(range(num_candidates))
    assert all(end - start <= window_size for start, end in spans)
    assert spans[0][1] == num_candidates
    assert spans[-1][0] == 0


@given(
    st.sampled_from(["single", "sliding"]),
    st.integers(0, 130),
    st.integers(2, 25),
    st.one_of(st.none(), st.integers(1, 140)),
    st.randoms(use_true_random=False),
)
def test_any_comparator_gives_a_permutation_within_the_bound(name, num_candidates, window_size, depth, random):
    def shuffled(docs):
        order = random.sample(docs, len(docs))
        return Outcome(tuple(order), num_listed=random.randint(0, len(docs)))

    schedule = Schedule(name, window_size, max(window_size // 2, 1), depth)
    bound = schedule.bound(num_candidates)

    ranking, rounds = run(schedule, num_candidates, shuffled)

    assert sorted(ranking.order) == list(range(num_candidates))
    assert ranking.order[schedule.depth_of(num_candidates) :] == tuple(
        range(schedule.depth_of(num_candidates), num_candidates)
    )
    assert ranking.num_windows == sum(map(len, rounds)) == bound.num_windows
    assert ranking.num_rounds == len(rounds) == bound.num_rounds
    assert sum(len(docs) for windows in rounds for docs in windows) == bound.num_slots


@given(st.integers(2, 60), st.integers(0, 8))
def test_replayed_outcomes_lead_to_the_same_place(num_candidates, num_replayed):
    schedule = Schedule("sliding", 8, 4, None)
    told = []
    whole = RankingInProgress(0, num_candidates, schedule)
    while not whole.is_done:
        for key, window in list(whole.open_windows()):
            told.append((key, perfect(window.docs)))
            whole.answer(*told[-1])

    resumed = RankingInProgress(0, num_candidates, schedule)
    for key, outcome in told[:num_replayed]:
        resumed.answer(key, outcome)
    while not resumed.is_done:
        for key, window in list(resumed.open_windows()):
            resumed.answer(key, perfect(window.docs))

    assert resumed.order == whole.order
    assert resumed.num_windows == whole.num_windows


@pytest.mark.parametrize(
    ("key", "order"),
    [
        (WindowKey(1, 0), (0, 1, 2)),  # another round
        (WindowKey(0, 1), (0, 1, 2)),  # no such window
        (WindowKey(0, 0), (0, 1, 1)),  # a document twice
        (WindowKey(0, 0), (0, 1)),  # one left out
        (WindowKey(0, 0), (0, 1, 3)),  # a stranger
    ],
)
def test_an_outcome_that_is_not_of_an_open_window_is_refused(key, order):
    ranking = RankingInProgress(0, 3, Schedule("single", 3, 1, None))

    with pytest.raises(ValueError, match="not open|not an order"):
        ranking.answer(key, Outcome(order, num_listed=len(order)))


def test_a_window_fell_back_where_fewer_than_half_were_named():
    assert Outcome((0, 1, 2, 3), num_listed=1).fell_back
    assert not Outcome((0, 1, 2, 3), num_listed=2).fell_back
    assert Outcome((0, 1), num_listed=0).fell_back
