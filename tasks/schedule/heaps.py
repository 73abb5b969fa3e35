"""A max-heap whose comparisons are windows: the step that setwise and pairwise sorting share.

The heap's root is at 0 and the children of i are at i * arity + 1 ... (i + 1) * arity. Comparing is left to the
caller: `compare` is a generator that takes candidate groups and returns the winner of each.
"""

from collections.abc import Callable, Generator, Sequence

from tasks.schedule.windows import Outcome, Window

Comparing = Generator[list[Window], list[Outcome], list[int]]
Compare = Callable[[list[tuple[int, ...]]], Comparing]


class WindowHeap:
    """Candidates as a heap of the given arity."""

    def __init__(self, docs: Sequence[int], arity: int, compare: Compare) -> None:
        self._docs = list(docs)
        self._arity = arity
        self._compare = compare

    def build(self) -> Generator[list[Window], list[Outcome], None]:
        """Makes it a heap from the bottom up, all nodes of a level at once: the same comparisons in fewer rounds."""
        for level in reversed(self._levels()):
            yield from self._sift_down(level)

    def take_best(self, num: int) -> Generator[list[Window], list[Outcome], list[int]]:
        """The best `num`, best first; the last of them needs no comparison."""
        best = list[int]()
        while len(best) < num and self._docs:
            best.append(self._docs[0])
            last = self._docs.pop()
            if self._docs and len(best) < num:
                self._docs[0] = last
                yield from self._sift_down([0])
        return best

    def _levels(self) -> list[list[int]]:
        """The places that have children, level by level from the root."""
        levels, first, width = list[list[int]](), 0, 1
        while first < len(self._docs):
            inner = [place for place in range(first, min(first + width, len(self._docs))) if self._children(place)]
            levels += [inner] if inner else []
            first, width = first + width, width * self._arity
        return levels

    def _children(self, place: int) -> range:
        return range(place * self._arity + 1, min((place + 1) * self._arity, len(self._docs) - 1) + 1)

    def _sift_down(self, places: Sequence[int]) -> Generator[list[Window], list[Outcome], None]:
        """Lets what stands at the places, which lie in different branches, sink to where it belongs."""
        sinking = [place for place in places if self._children(place)]
        while sinking:
            groups = [(self._docs[place], *(self._docs[child] for child in self._children(place))) for place in sinking]
            winners = yield from self._compare(groups)
            below = []
            for place, group, winner in zip(sinking, groups, winners, strict=True):
                if winner != group[0]:
                    child = self._children(place)[group.index(winner) - 1]
                    self._docs[place], self._docs[child] = self._docs[child], self._docs[place]
                    below.append(child)
            sinking = [place for place in below if self._children(place)]
