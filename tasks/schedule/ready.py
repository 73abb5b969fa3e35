"""Open windows of many queries, in the order in which they are to be asked.

Those of the query with the longest way to go come first: its rounds follow each other, so it decides when the whole
ends (highest level first, T. C. Hu 1961). Among equals the first come is first, which keeps the windows of one query
side by side, where they may share a prefix. Knows nothing of prompts or engines.
"""

import heapq
from dataclasses import dataclass
from itertools import count

from tasks.schedule.rankings import RankingInProgress, WindowKey
from tasks.schedule.windows import Window


@dataclass(frozen=True, slots=True)
class OpenWindow:
    """A window that is ready to be asked."""

    ranking: RankingInProgress
    key: WindowKey
    window: Window


class ReadyWindows:
    """Two queues: windows whose answer is one token long, and the others; they never share an engine's cache."""

    def __init__(self) -> None:
        self._queues: dict[bool, list[tuple[int, int, OpenWindow]]] = {True: [], False: []}
        self._numbers = count()

    def __len__(self) -> int:
        return sum(map(len, self._queues.values()))

    def push(self, each: OpenWindow, *, one_token: bool) -> None:
        """Takes a window in."""
        entry = (-each.ranking.rounds_left, next(self._numbers), each)
        heapq.heappush(self._queues[one_token], entry)

    def kind_after(self, *, one_token: bool | None) -> bool | None:
        """Whether windows of one-token answers come next: the same kind as before, while there are some of it."""
        kinds = [kind for kind, queue in self._queues.items() if queue]
        return one_token if one_token in kinds else next(iter(kinds), None)

    def first(self, *, one_token: bool) -> OpenWindow | None:
        """The next window of a kind; it stays until it is popped."""
        queue = self._queues[one_token]
        return queue[0][2] if queue else None

    def pop(self, *, one_token: bool) -> None:
        """Takes the next window of a kind out."""
        heapq.heappop(self._queues[one_token])

    def drop(self, ranking: RankingInProgress) -> None:
        """Takes all windows of a query out."""
        for queue in self._queues.values():
            queue[:] = [entry for entry in queue if entry[2].ranking is not ranking]
            heapq.heapify(queue)
