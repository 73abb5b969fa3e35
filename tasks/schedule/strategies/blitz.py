"""A tournament graph that is asked only for what it does not know yet (BlitzRank, arXiv:2602.05448).

Every order adds wins, wins are transitive, and a candidate whose place among all others is known needs no more
comparisons. Candidates that beat each other in a circle count as tied.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from tasks.schedule.seeds import Seed
from tasks.schedule.strategies.named import NamedStrategy, Size, Variant
from tasks.schedule.windows import NOTHING, Bound, Outcome, Ranked, Rounds, Window

LISTED_SHARE = 0.8  # an answer that named so many of a window puts them before those that it left out


@dataclass(frozen=True, slots=True)
class Blitz(NamedStrategy):
    """Asks until the places of the first `top_k` are known."""

    window_size: Size = 20
    top_k: Size = 10
    name: Literal["blitz"] = "blitz"
    variants = (Variant("blitz", 0.818),)
    contenders = {"blitz k20": (20, 10), "blitz k10": (10, 10)}

    def rounds(self, num_candidates: int, seed: Seed) -> Rounds:
        """One window a round; a limit on rounds ends what an inconsistent model would prolong."""
        graph = WinGraph(num_candidates)
        for _ in range(self.bound(num_candidates).num_rounds):
            docs = graph.next_window(self.window_size, self.top_k)
            if len(docs) < 2:
                break
            (outcome,) = yield [Window(docs)]
            graph.add_order(outcome)
        return Ranked(graph.order())

    def bound(self, num_candidates: int) -> Bound:
        """Every candidate is seen once, and each of the best may need a few windows more."""
        if num_candidates < 2:
            return NOTHING
        size = min(self.window_size, num_candidates)
        num_rounds = -(-(num_candidates - 1) // (size - 1)) + 4 * self.top_k
        return Bound(num_rounds, num_rounds * size, num_rounds)


class WinGraph:
    """Who is known to be better than whom, as bit sets: bit j of `_beats[i]` is set where i is better than j."""

    def __init__(self, num_candidates: int) -> None:
        self._size = num_candidates
        self._beats = [0] * num_candidates
        self._loses = [0] * num_candidates

    def add_order(self, outcome: Outcome) -> None:
        """Adds what an answer says; what backfill put at the end says nothing."""
        listed = outcome.listed
        for better, worse in pairwise(listed):
            self._add_win(better, worse)
        if listed and len(listed) >= LISTED_SHARE * len(outcome.order):
            for left_out in outcome.order[len(listed) :]:
                self._add_win(listed[-1], left_out)

    def next_window(self, window_size: int, top_k: int) -> tuple[int, ...]:
        """The candidates to compare next; fewer than two where the first `top_k` are settled, or nothing is open."""
        order = self._by_losses(sign=1)  # the least known first: it makes the fewest rounds
        if all(self._is_settled(doc) for doc in order[:top_k]):
            return ()
        opened, tied = list[int](), 0
        for doc in order:
            if not self._is_settled(doc) and not tied >> doc & 1:
                opened.append(doc)
                tied |= self._ties(doc)
        window = opened[:window_size]
        if not self._is_news(window):  # all of it is known: compare the first with those it was never compared with
            first = window[0]
            window = [first, *(doc for doc in opened[window_size:] if not self._knows(first, doc))][:window_size]
        return tuple(sorted(window))

    def order(self) -> tuple[int, ...]:
        """By how many are better, then by how many are worse, then as the first stage had them."""
        return self._by_losses(sign=-1)

    def _by_losses(self, sign: int) -> tuple[int, ...]:
        def key(doc: int) -> tuple[int, int, int]:
            others = ~self._ties(doc)
            return (self._loses[doc] & others).bit_count(), sign * (self._beats[doc] & others).bit_count(), doc

        return tuple(sorted(range(self._size), key=key))

    def _add_win(self, better: int, worse: int) -> None:
        """Keeps the relation transitive: whoever is at least `better` beats whatever is at most `worse`."""
        if self._beats[better] >> worse & 1:
            return
        above = self._loses[better] | 1 << better
        below = self._beats[worse] | 1 << worse
        for doc in _members(above):
            self._beats[doc] |= below
        for doc in _members(below):
            self._loses[doc] |= above

    def _ties(self, doc: int) -> int:
        """Those in a circle with it, itself included where there is one."""
        return self._beats[doc] & self._loses[doc]

    def _is_settled(self, doc: int) -> bool:
        return ((self._beats[doc] | self._loses[doc]) & ~(1 << doc)).bit_count() >= self._size - 1

    def _knows(self, doc: int, other: int) -> bool:
        return bool((self._beats[doc] | self._loses[doc]) >> other & 1)

    def _is_news(self, docs: Sequence[int]) -> bool:
        return any(not self._knows(doc, other) for place, doc in enumerate(docs) for other in docs[:place])


def _members(bits: int) -> list[int]:
    members = []
    while bits:
        lowest = bits & -bits
        members.append(lowest.bit_length() - 1)
        bits ^= lowest
    return members
