"""The whole list in one window (RankMistral100, arXiv:2412.14574): one call, one round."""

from dataclasses import dataclass

from tasks.schedule.seeds import Seed
from tasks.schedule.windows import NOTHING, Bound, Ranked, Rounds, Window


@dataclass(frozen=True, slots=True)
class Single:
    """Asks once about all candidates."""

    top_k: int | None = None  # so many places have to be right; all if None

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
