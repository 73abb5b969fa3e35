"""Sliding windows from the back of the list to its front (RankGPT, arXiv:2304.09542).

A window holds the best of the one before it, so each is a round. With a perfect comparator one pass puts the best
`window_size - stride` in order. A second pass need not wait for the first: it starts as soon as no later window of the
first overlaps its own.
"""

from dataclasses import dataclass, replace
from typing import Literal, Self

from pydantic import StrictBool

from tasks.schedule.seeds import Seed
from tasks.schedule.strategies.named import Count, NamedStrategy, Size, StrategySizes, TopK, Variant
from tasks.schedule.windows import NOTHING, Bound, Outcome, Ranked, Rounds, Window


@dataclass(frozen=True, slots=True)
class Sliding(NamedStrategy):
    """One or several passes over the list."""

    window_size: Size = 20
    stride: Size = 10
    passes: Count = 1  # over the list; the second begins as soon as it may
    early_exit: StrictBool = False  # no further pass after one that left the first window_size - stride as they were
    top_k: TopK = None
    name: Literal["sliding"] = "sliding"
    variants = (
        Variant("sliding, depth 30", 0.810, {"depth": 30}),
        Variant("sliding", 0.878),
        Variant("consensus of 3, sliding", 0.944, {"consensus": {"shuffles": 3}}),
    )
    contenders = {"sliding w20 s10": (20, 10), "sliding w10 s5": (10, 5), "sliding w20 s10, 2 passes": (20, 10, 2)}

    def rounds(self, num_candidates: int, seed: Seed) -> Rounds:
        """Pipelined passes; with `early_exit` one after the other."""
        order = list(range(num_candidates))
        if num_candidates < 2:
            return Ranked(tuple(order))
        spans = sliding_spans(num_candidates, self.window_size, self.stride)
        if not self.early_exit:
            for together in self._pipelined(spans):
                outcomes = yield [self._window(order, spans[place]) for place in together]
                _put(order, [spans[place] for place in together], outcomes)
            return Ranked(tuple(order))
        for _ in range(self.passes):
            before = order[: self._num_carried]
            for span in spans:
                outcomes = yield [self._window(order, span)]
                _put(order, [span], outcomes)
            if order[: self._num_carried] == before:
                break
        return Ranked(tuple(order))

    def bound(self, num_candidates: int) -> Bound:
        """Exact but for `early_exit`: passes x (1 + ceil((n - w) / s)) windows."""
        if num_candidates < 2:
            return NOTHING
        spans = sliding_spans(num_candidates, self.window_size, self.stride)
        one = Bound(len(spans), sum(end - start for start, end in spans), len(spans))
        if self.early_exit:
            return one.times(self.passes, also_rounds=True)
        whole = one.times(self.passes, also_rounds=False)
        return Bound(whole.num_windows, whole.num_slots, len(self._pipelined(spans)))

    def sized(self, sizes: StrategySizes) -> Self:
        size = sizes.window_size
        return replace(self, window_size=size, stride=min(sizes.stride or max(size // 2, 1), size), top_k=sizes.top_k)

    @property
    def _num_carried(self) -> int:
        return max(self.window_size - self.stride, 1)

    def _pipelined(self, spans: list[tuple[int, int]]) -> list[list[int]]:
        """For each round the spans that are asked at once, one of each pass: they never overlap."""
        num_spans, lag = len(spans), _lag(spans)
        num_rounds = num_spans + lag * (self.passes - 1)
        starts = [lag * number for number in range(self.passes)]
        return [[place - start for start in starts if 0 <= place - start < num_spans] for place in range(num_rounds)]

    def _window(self, order: list[int], span: tuple[int, int]) -> Window:
        """The head window orders `top_k`; any other only has to name what it carries on."""
        start, end = span
        if self.top_k is None:
            return Window(tuple(order[start:end]))
        ask = self.top_k if start == 0 else min(self.top_k, self._num_carried)
        return Window(tuple(order[start:end]), ask=ask)


def sliding_spans(num_candidates: int, window_size: int, stride: int) -> list[tuple[int, int]]:
    """The half-open spans of one back-to-front pass; every position lies in one of them.

    The last span always starts at 0: the original RankGPT loop tests the start before it clamps it, and so never
    looks at the head when (n - window) is no multiple of the stride. It is as wide as the others: more of the list is
    compared with the head for no further prompt.

    >>> sliding_spans(25, 20, 10)
    [(5, 25), (0, 20)]
    """
    start = max(num_candidates - window_size, 0)
    spans = [(start, num_candidates)]
    while start > 0:
        start = max(start - stride, 0)
        spans.append((start, start + window_size))
    return spans


def _lag(spans: list[tuple[int, int]]) -> int:
    """How many windows a pass stays behind the one before it, so that windows asked at once never overlap.

    >>> _lag(sliding_spans(40, 20, 10)), _lag(sliding_spans(45, 20, 10))
    (2, 3)
    """
    return next(
        lag
        for lag in range(1, len(spans) + 1)
        if all(end <= start for (start, _), (_, end) in zip(spans, spans[lag:], strict=False))
    )


def _put(order: list[int], spans: list[tuple[int, int]], outcomes: list[Outcome]) -> None:
    for (start, end), outcome in zip(spans, outcomes, strict=True):
        order[start:end] = outcome.order
