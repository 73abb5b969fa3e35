"""Pairwise ranking prompting (PRP, arXiv:2306.17563): each comparison asks both orders of a pair.

all_pairs  every pair in one round; a candidate's value is its mean share of the votes
heapsort   a binary heap of the first top_k
sliding    top_k bubble passes from the back, each two comparisons behind the one before
"""

import math
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Literal

from tasks.schedule.heaps import WindowHeap
from tasks.schedule.seeds import Seed
from tasks.schedule.strategies.named import NamedStrategy, Size, Variant
from tasks.schedule.windows import NOTHING, Bound, Outcome, Ranked, Rounds, Window


@dataclass(frozen=True, slots=True)
class Pairwise(NamedStrategy):
    """Sorts by pairs; heapsort and sliding only the best `top_k`."""

    top_k: Size = 10
    method: Literal["all_pairs", "heapsort", "sliding"] = "heapsort"  # how comparisons make an order
    name: Literal["pairwise"] = "pairwise"
    question = "select"
    prompt_size = 2
    variants = (Variant("pairwise heapsort", 0.932),)
    contenders = {
        "pairwise heapsort": (10,),
        "pairwise sliding": (10, "sliding"),
        "pairwise all pairs": (10, "all_pairs"),
    }

    def rounds(self, num_candidates: int, seed: Seed) -> Rounds:
        """A comparison is two windows of two candidates."""
        if num_candidates < 2:
            return Ranked(tuple(range(num_candidates)))
        if self.method == "all_pairs":
            return (yield from self._all_pairs(num_candidates))
        if self.method == "sliding":
            return (yield from self._sliding(num_candidates))
        return (yield from self._heapsort(num_candidates))

    def bound(self, num_candidates: int) -> Bound:
        """Every comparison of the worst case, both orders."""
        if num_candidates < 2:
            return NOTHING
        if self.method == "all_pairs":
            num_pairs, num_rounds = num_candidates * (num_candidates - 1) // 2, 1
        elif self.method == "sliding":
            passes = min(self.top_k, num_candidates - 1)
            num_pairs = sum(num_candidates - 1 - number for number in range(passes))
            num_rounds = max(num_candidates - 1 + number for number in range(passes))
        else:
            height = num_candidates.bit_length() - 1
            pops = min(self.top_k, num_candidates) - 1
            num_pairs = 2 * (num_candidates + pops * height)
            num_rounds = 2 * (height * (height + 1) // 2 + pops * height)
        return Bound(2 * num_pairs, 4 * num_pairs, num_rounds)

    def _all_pairs(self, num_candidates: int) -> Rounds:
        pairs = list(combinations(range(num_candidates), 2))
        votes = yield from _votes(pairs)
        shares = [0.0] * num_candidates
        for (first, second), vote in zip(pairs, votes, strict=True):
            shares[first] += vote / (num_candidates - 1)
            shares[second] += (1 - vote) / (num_candidates - 1)
        order = sorted(range(num_candidates), key=lambda doc: -shares[doc])
        return Ranked(tuple(order), "win_rate", {doc: shares[doc] for doc in order})

    def _heapsort(self, num_candidates: int) -> Rounds:
        heap = WindowHeap(range(num_candidates), 2, _best_by_pairs)
        yield from heap.build()
        best = yield from heap.take_best(self.top_k)
        return Ranked((*best, *(doc for doc in range(num_candidates) if doc not in set(best))))

    def _sliding(self, num_candidates: int) -> Rounds:
        """Pass p compares places (n - 2 - t + 2p, n - 1 - t + 2p) in round t, until it comes to place p."""
        order = list(range(num_candidates))
        passes = min(self.top_k, num_candidates - 1)
        for step in range(num_candidates - 1 + passes - 1):
            places = [
                place
                for number in range(passes)
                if number <= (place := num_candidates - 2 - step + 2 * number) <= num_candidates - 2
            ]
            votes = yield from _votes([(order[place], order[place + 1]) for place in places])
            for place, vote in zip(places, votes, strict=True):
                if vote < 0.5:
                    order[place], order[place + 1] = order[place + 1], order[place]
        return Ranked(tuple(order))


def _votes(pairs: Sequence[tuple[int, int]]) -> Generator[list[Window], list[Outcome], list[float]]:
    """How much each pair's first is the better one, 0 to 1: the mean over both orders; 0.5 keeps the order."""
    outcomes = yield [
        Window(docs, "select", ask=1) for first, second in pairs for docs in ((first, second), (second, first))
    ]
    return [
        (_vote(outcomes[2 * number], first) + _vote(outcomes[2 * number + 1], first)) / 2
        for number, (first, _) in enumerate(pairs)
    ]


def _vote(outcome: Outcome, doc: int) -> float:
    """Soft where there are log-probabilities: sigma(own - other's)."""
    if outcome.num_listed == 0:
        return 0.5
    if outcome.logprobs is None or -math.inf in outcome.logprobs:
        return 1.0 if outcome.order[0] == doc else 0.0
    logprob_of = outcome.logprob_of()
    own = logprob_of.pop(doc)
    (other,) = logprob_of.values()
    return 1 / (1 + math.exp(min(other - own, 700.0)))


def _best_by_pairs(groups: list[tuple[int, ...]]) -> Generator[list[Window], list[Outcome], list[int]]:
    """The winner of each group of parent and children: the children first, then the better one and the parent."""
    children = [group[1:] for group in groups]
    pairs = [(each[0], each[1]) for each in children if len(each) == 2]
    winner_of = {}
    if pairs:
        votes = yield from _votes(pairs)
        winner_of = {pair: pair[0] if vote >= 0.5 else pair[1] for pair, vote in zip(pairs, votes, strict=True)}
    better = [winner_of[each[0], each[1]] if len(each) == 2 else each[0] for each in children]
    finals = [(group[0], child) for group, child in zip(groups, better, strict=True)]
    votes = yield from _votes(finals)
    return [parent if vote >= 0.5 else child for (parent, child), vote in zip(finals, votes, strict=True)]
