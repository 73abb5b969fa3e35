"""Setwise (arXiv:2310.09497): which of a few candidates is best, as the comparison of a sort of the first `top_k`.

heapsort   a heap of arity set_size - 1, built level by level, then popped
insertion  the first top_k sorted, then the rest in chunks against the k-th (arXiv:2504.10509)
"""

from collections.abc import Generator
from dataclasses import dataclass, replace
from typing import Literal, Self

from tasks.schedule.heaps import WindowHeap
from tasks.schedule.seeds import Seed
from tasks.schedule.strategies.named import NamedStrategy, Size, StrategySizes, Variant
from tasks.schedule.windows import NOTHING, Bound, Outcome, Ranked, Rounds, Window


@dataclass(frozen=True, slots=True)
class Setwise(NamedStrategy):
    """Sorts the best `top_k`; the rest keeps first-stage order."""

    set_size: Size = 20  # candidates of one comparison, at least 2
    top_k: Size = 10
    method: Literal["heapsort", "insertion"] = "heapsort"  # how comparisons make an order
    name: Literal["setwise"] = "setwise"
    question = "select"
    variants = (Variant("setwise", 0.878),)
    contenders = {f"setwise heapsort c{size}": (size, 10) for size in (3, 10, 20)} | {
        "setwise insertion c4": (4, 10, "insertion")
    }

    def rounds(self, num_candidates: int, seed: Seed) -> Rounds:
        """A comparison is one window that names the best of its candidates."""
        if num_candidates < 2:
            return Ranked(tuple(range(num_candidates)))
        if self.method == "heapsort":
            best = yield from self._heapsort(range(num_candidates))
        else:
            best = yield from self._insertion(num_candidates)
        return Ranked((*best, *(doc for doc in range(num_candidates) if doc not in set(best))))

    def bound(self, num_candidates: int) -> Bound:
        """Every comparison of the worst case, each as large as it may be."""
        if num_candidates < 2:
            return NOTHING
        if self.method == "heapsort":
            return self._heapsort_bound(num_candidates)
        num_first = min(self.top_k, num_candidates)
        sorting = self._heapsort_bound(num_first)
        searches = num_candidates - num_first
        chunks = -(-searches // (self.set_size - 1))
        inserting = searches * (1 + num_first.bit_length())
        num_windows = inserting + chunks
        walk = Bound(num_windows, num_windows * self.set_size, num_windows)
        return sorting + walk

    def sized(self, sizes: StrategySizes) -> Self:
        return replace(self, set_size=sizes.window_size, top_k=sizes.best)

    def _heapsort(self, docs: range) -> Generator[list[Window], list[Outcome], list[int]]:
        heap = WindowHeap(docs, self.set_size - 1, _best_of)
        yield from heap.build()
        return (yield from heap.take_best(self.top_k))

    def _insertion(self, num_candidates: int) -> Generator[list[Window], list[Outcome], list[int]]:
        """A chunk none of which beats the k-th is dropped by one comparison."""
        num_first = min(self.top_k, num_candidates)
        best = yield from self._heapsort(range(num_first))
        waiting = list(range(num_first, num_candidates))
        while waiting:
            chunk = waiting[: self.set_size - 1]
            (winner,) = yield from _best_of([(best[-1], *chunk)])
            if winner == best[-1]:
                waiting = waiting[len(chunk) :]
                continue
            waiting.remove(winner)
            place = yield from self._find_place(best[:-1], winner)
            best = [*best[:place], winner, *best[place:-1]]
        return best

    def _find_place(self, ordered: list[int], doc: int) -> Generator[list[Window], list[Outcome], int]:
        """How many of `ordered`, best first, are better than `doc`: by halving."""
        low, high = 0, len(ordered)
        while low < high:
            middle = (low + high) // 2
            (winner,) = yield from _best_of([(ordered[middle], doc)])
            low, high = (low, middle) if winner == doc else (middle + 1, high)
        return low

    def _heapsort_bound(self, num_candidates: int) -> Bound:
        """Building sinks each inner node to a leaf at most; each pop sinks one from the root."""
        if num_candidates < 2:
            return NOTHING
        arity = self.set_size - 1
        heights = _heights(num_candidates, arity)
        pops = (min(self.top_k, num_candidates) - 1) * max(heights)
        num_windows = sum(heights) + pops
        num_rounds = sum(range(1, max(heights) + 1)) + pops
        return Bound(num_windows, num_windows * min(self.set_size, num_candidates), num_rounds)


def _best_of(groups: list[tuple[int, ...]]) -> Generator[list[Window], list[Outcome], list[int]]:
    """The winner of each group; where the model named none, its first."""
    outcomes = yield [Window(group, "select", ask=1) for group in groups]
    return [outcome.order[0] for outcome in outcomes]


def _heights(num_candidates: int, arity: int) -> list[int]:
    """For each node of a heap how many levels are below it."""
    heights = [0] * num_candidates
    for place in range(num_candidates - 1, 0, -1):
        parent = (place - 1) // arity
        heights[parent] = max(heights[parent], heights[place] + 1)
    return heights
