"""Top-down partitioning (TDPart, arXiv:2405.14589): rank the head, then only look for what beats its k-th.

    active | head: window_size | chunk | chunk | ...        the pivot is the head's top_k-th
           | keep  pivot  back | better > pivot > back | ...
    next     keep + better                              tail: pivot, back, what was tail before

All chunks of one iteration are one round. With a perfect comparator the first `top_k` are exact.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, Self

from tasks.schedule.seeds import Seed
from tasks.schedule.strategies.named import NamedStrategy, Size, StrategySizes, Variant
from tasks.schedule.windows import NOTHING, Bound, Outcome, Ranked, Rounds, Window


@dataclass(frozen=True, slots=True)
class TDPart(NamedStrategy):
    """Ranks the head of the list and tests the rest against a pivot."""

    window_size: Size = 20
    top_k: Size = 10  # the pivot's place in the head; at most window_size - 1
    max_iterations: Size = 100  # a noisy model may find better ones for ever; the authors' limit
    name: Literal["tdpart"] = "tdpart"
    variants = (Variant("tdpart", 0.870),)
    contenders = {"tdpart w20 k10": (20, 10)}

    def rounds(self, num_candidates: int, seed: Seed) -> Rounds:
        """The head, its chunks, the head of what is left, ... until nothing beats the pivot."""
        active, tail = list(range(num_candidates)), list[int]()
        values: dict[int, float] = {}  # log-odds against the pivot of the last iteration that saw the candidate
        for iteration in range(self.max_iterations):
            if len(active) < 2:
                break
            (head,) = yield [Window(tuple(active[: self.window_size]), ask=self.top_k)]
            rest = active[self.window_size :]
            if not rest:
                return Ranked((*head.order, *tail), values=values)
            pivot, keep = head.order[self.top_k - 1], list(head.order[: self.top_k - 1])
            windows = self._chunk_windows(rest, pivot, seed.of("tdpart", iteration))
            outcomes = yield windows
            better, back = list[int](), list(head.order[self.top_k :])
            for outcome in outcomes:
                above, below = self._parted(outcome, pivot)
                better += above
                back += below
            odds = _log_odds([head, *outcomes], pivot)
            values |= odds
            if odds:
                back.sort(key=lambda doc: -odds[doc])
            active, tail = keep + better, [pivot, *back, *tail]
            if not better:
                break
        return Ranked((*active, *tail), values=values)

    def bound(self, num_candidates: int) -> Bound:
        """Each iteration leaves at least the pivot and what stood behind it in the head."""
        bound, left = NOTHING, num_candidates
        for _ in range(self.max_iterations):
            if left < 2:
                break
            head, rest = min(left, self.window_size), max(left - self.window_size, 0)
            num_chunks = -(-rest // (self.window_size - 1))
            bound += Bound(1 + num_chunks, head + rest + num_chunks, 1 + (rest > 0))
            if not rest:
                break
            left -= self.window_size - self.top_k + 1
        return bound

    def sized(self, sizes: StrategySizes) -> Self:
        return replace(self, window_size=sizes.window_size, top_k=min(sizes.best, sizes.window_size - 1))

    def check(self, window_size: int, top_k: int | None) -> None:
        if top_k is not None and top_k >= window_size:
            raise ValueError(
                f"top_k = {top_k} must be below window_size = {window_size} with strategy tdpart: the pivot is the "
                "top_k-th of a window"
            )

    def _chunk_windows(self, rest: Sequence[int], pivot: int, seed: Seed) -> list[Window]:
        """The pivot stands at a drawn place of each chunk: always first, it would meet a bias for the head."""
        size, rng, windows = self.window_size - 1, seed.random(), []
        for start in range(0, len(rest), size):
            chunk = list(rest[start : start + size])
            chunk.insert(rng.randint(0, len(chunk)), pivot)
            windows.append(Window(tuple(chunk), pivot=pivot))
        return windows

    def _parted(self, outcome: Outcome, pivot: int) -> tuple[list[int], list[int]]:
        """What is better than the pivot, and what is not.

        An answer that never names the pivot would make everything that it does name better: then only its first
        top_k - 1 are.
        """
        named = pivot in outcome.listed
        num_better = outcome.order.index(pivot) if named else min(outcome.num_listed, self.top_k - 1)
        below = [doc for doc in outcome.order[num_better:] if doc != pivot]
        return list(outcome.order[:num_better]), below


def _log_odds(outcomes: Sequence[Outcome], pivot: int) -> dict[int, float]:
    """Log-probability less the pivot's in the same window: one scale for all windows. Empty without log-probs."""
    odds: dict[int, float] = {}
    for outcome in outcomes:
        logprob_of = outcome.logprob_of()
        anchor = logprob_of.get(pivot, -math.inf)
        if anchor == -math.inf:
            return {}
        odds |= {doc: logprob - anchor for doc, logprob in logprob_of.items()}
    return odds
