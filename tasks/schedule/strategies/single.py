"""The whole list in one window (RankMistral100, arXiv:2412.14574): one call, one round."""

from dataclasses import dataclass, replace
from typing import Literal, Self

from tasks.schedule.seeds import Seed
from tasks.schedule.strategies.named import NamedStrategy, StrategySizes, TopK, Variant
from tasks.schedule.windows import NOTHING, Bound, Ranked, Rounds, Window


@dataclass(frozen=True, slots=True)
class Single(NamedStrategy):
    """Asks once about all candidates."""

    top_k: TopK = None
    name: Literal["single"] = "single"
    asks_once = True
    variants = (Variant("single", None, {"depth": None}),)

    def rounds(self, num_candidates: int, seed: Seed) -> Rounds:
        """One window."""
        order = tuple(range(num_candidates))
        if num_candidates < 2:
            return Ranked(order)
        (outcome,) = yield [Window(order, ask=self.top_k)]
        return Ranked(outcome.order)

    def bound(self, num_candidates: int) -> Bound:
        """Exact."""
        if num_candidates < 2:
            return NOTHING
        return Bound(num_windows=1, num_slots=num_candidates, num_rounds=1)

    def sized(self, sizes: StrategySizes) -> Self:
        return replace(self, top_k=sizes.top_k)
