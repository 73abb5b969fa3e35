"""Finds the prompt that kills engines: what an engine was lost with is asked by itself, then in halves."""

import logging
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from tasks.engine.batches import Batch, needed_blocks
from tasks.engine.kv_cache import KVCacheLimits
from tasks.ranking.feed import PendingPrompt
from tasks.schedule.rankings import RankingInProgress
from tasks.schedule.ready import OpenWindow
from tasks.settings import PackingSettings
from tasks.system.errors import EngineError, EngineLost

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LostPrompts:
    """Prompts that an engine was lost with, to be asked by themselves."""

    asked: tuple[PendingPrompt, ...]
    part_of: int | None = None  # of so many, where these are a part of a batch

    def batch(self, limits: KVCacheLimits) -> Batch:
        """What the engine is asked."""
        needed = sum(needed_blocks(each.prompt, limits) for each in self.asked)
        return Batch(tuple(each.prompt for each in self.asked), needed, needed, self.part_of)

    def halves(self) -> "list[LostPrompts]":
        """Of at least two prompts."""
        middle, part_of = len(self.asked) // 2, self.part_of or len(self.asked)
        return [LostPrompts(half, part_of) for half in (self.asked[:middle], self.asked[middle:])]

    def without(self, ranking: RankingInProgress) -> "LostPrompts | None":
        """The same without a query's prompts; None if nothing is left."""
        left = tuple(asked for asked in self.asked if asked.window.ranking is not ranking)
        return LostPrompts(left, self.part_of) if left else None


class Recovery:
    """What is asked by itself after an engine was lost, and the queries that were set aside for it."""

    def __init__(self, packing: PackingSettings) -> None:
        self._packing = packing
        self._parts: deque[LostPrompts] = deque()
        self._set_aside: set[int] = set()  # query_index: an engine was lost with a prompt of theirs alone

    def __bool__(self) -> bool:
        return bool(self._parts)

    def is_set_aside(self, ranking: RankingInProgress) -> bool:
        """Whether the query was."""
        return ranking.query_index in self._set_aside

    def add(self, suspects: Sequence[Sequence[PendingPrompt]], error: EngineLost) -> OpenWindow | None:
        """Takes in what an engine was at, batch by batch; returns what `isolate` does.

        Raises:
            EngineLost, EngineError: see `isolate`.
        """
        parts = [LostPrompts(tuple(asked)) for asked in suspects]
        tries = self._packing.max_engine_starts - 1  # one is used up
        if tries == 0 and (len(parts) == 1 or not self._allows_poison):
            return self.isolate(parts[0], error)
        logger.warning(
            "engine lost with %d prompts, starting another: %s", sum(len(part.asked) for part in parts), error
        )
        self._parts += parts
        return None

    def take(self) -> tuple[LostPrompts, int]:
        """The next part, and how many engines it may be asked of."""
        part = self._parts.popleft()
        return part, max(1, self._packing.max_engine_starts - 1) if part.part_of is None else 1

    def isolate(self, lost: LostPrompts, error: EngineLost) -> OpenWindow | None:
        """Puts the halves of a lost batch next in turn; of a prompt alone returns the window, to be set aside.

        Raises:
            EngineLost: prompts are not to be set aside.
        """
        if not self._allows_poison:
            starts = self._packing.max_engine_starts
            raise EngineLost(f"{error} It was asked {starts} times, each time of a fresh engine.") from error
        if len(lost.asked) == 1:
            return lost.asked[0].window
        logger.warning("engine lost with %d prompts, asking them in halves: %s", len(lost.asked), error)
        self._parts.extendleft(reversed(lost.halves()))
        return None

    def set_aside(self, ranking: RankingInProgress, request_id: str, error: EngineLost) -> None:
        """Drops the query's other prompts, which may kill the engine too.

        Raises:
            EngineError: more queries than may be.
        """
        self._set_aside.add(ranking.query_index)
        most = self._packing.max_poison_prompts
        if len(self._set_aside) > most:
            raise EngineError(
                f"{error} It was lost with prompts of {len(self._set_aside)} queries one by one, the last is "
                f"{request_id}, and [packing] max_poison_prompts = {most}: the fault is the engine's."
            )
        logger.warning("request_id=%s set aside, its query keeps first-stage order: %s", request_id, error)
        self._parts = deque(kept for part in self._parts if (kept := part.without(ranking)) is not None)

    @property
    def _allows_poison(self) -> bool:
        return self._packing.max_poison_prompts > 0
