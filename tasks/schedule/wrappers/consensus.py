"""Each window in several orders, answered as one (permutation self-consistency, arXiv:2310.07712).

What the model thinks of a place in the prompt averages out; the inner strategy never knows.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from tasks.schedule.seeds import Seed
from tasks.schedule.windows import Bound, Outcome, Ranked, Rounds, Strategy, Window


@dataclass(frozen=True, slots=True)
class Consensus:
    """A strategy whose windows are each asked `shuffles` times."""

    inner: Strategy
    shuffles: int  # orders of a window, the given one included
    name: Literal["consensus"] = "consensus"

    def rounds(self, num_candidates: int, seed: Seed) -> Rounds:
        """The inner strategy's rounds, each `shuffles` times as wide. Windows of one candidate are asked once."""
        inner, told, number = self.inner.rounds(num_candidates, seed), list[Outcome](), 0
        while True:
            try:
                windows = inner.send(told) if number else next(inner)
            except StopIteration as end:
                ranked: Ranked = end.value
                return ranked
            asked = [self._orders(window, seed.of("consensus", number, place)) for place, window in enumerate(windows)]
            outcomes = yield [window for orders in asked for window in orders]
            told, start = [], 0
            for window, orders in zip(windows, asked, strict=True):
                told.append(agreed(window, outcomes[start : start + len(orders)]))
                start += len(orders)
            number += 1

    def bound(self, num_candidates: int) -> Bound:
        """So many times the inner strategy's windows, in as many rounds."""
        return self.inner.bound(num_candidates).times(self.shuffles, also_rounds=False)

    def _orders(self, window: Window, seed: Seed) -> list[Window]:
        others = range(1, self.shuffles if len(window.docs) > 1 else 1)
        return [window, *(replace(window, docs=seed.of(number).shuffled(window.docs)) for number in others)]


def agreed(window: Window, outcomes: Sequence[Outcome]) -> Outcome:
    """One outcome out of several of the same candidates: by mean place, then as the window had them.

    What an answer left out counts as lying in the middle of the places behind those that it named. A candidate is
    named where at least half of the answers named it.
    """
    if len(outcomes) == 1:
        return outcomes[0]
    size = len(window.docs)
    place_sum, num_naming = dict.fromkeys(window.docs, 0.0), dict.fromkeys(window.docs, 0)
    for outcome in outcomes:
        behind = (outcome.num_listed + size - 1) / 2
        for place, doc in enumerate(outcome.order):
            place_sum[doc] += place if place < outcome.num_listed else behind
            num_naming[doc] += place < outcome.num_listed
    is_named = {doc: 2 * num_naming[doc] >= len(outcomes) for doc in window.docs}
    order = sorted(window.docs, key=lambda doc: (not is_named[doc], place_sum[doc]))
    return Outcome(tuple(order), sum(is_named.values()), _mean_logprobs(order, outcomes))


def _mean_logprobs(order: Sequence[int], outcomes: Sequence[Outcome]) -> tuple[float, ...] | None:
    if any(outcome.logprobs is None for outcome in outcomes):
        return None
    told = [outcome.logprob_of() for outcome in outcomes]
    return tuple(sum(each[doc] for each in told) / len(told) for doc in order)
