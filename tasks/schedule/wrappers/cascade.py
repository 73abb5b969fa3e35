"""Point-wise over the whole list, then another strategy over the best of it: most of the quality for less."""

from dataclasses import dataclass
from typing import Literal

from tasks.schedule.rounds import over
from tasks.schedule.seeds import Seed
from tasks.schedule.strategies.pointwise import Pointwise
from tasks.schedule.windows import Bound, Ranked, Rounds, Strategy


@dataclass(frozen=True, slots=True)
class Cascade:
    """Both steps ask the run's one model."""

    first: Pointwise
    keep: int  # candidates that go on
    then: Strategy
    name: Literal["cascade"] = "cascade"

    def rounds(self, num_candidates: int, seed: Seed) -> Rounds:
        """What does not go on keeps its point-wise order behind the rest."""
        if num_candidates < 2:
            return Ranked(tuple(range(num_candidates)))
        judged = yield from self.first.rounds(num_candidates, seed)
        kept, rest = judged.order[: self.keep], judged.order[self.keep :]
        ranked = yield from over(kept, self.then.rounds(len(kept), seed.of("cascade")))
        values = {doc: judged.values[doc] for doc in rest if doc in judged.values} | dict(ranked.values)
        return Ranked((*ranked.order, *rest), values=values)

    def bound(self, num_candidates: int) -> Bound:
        """The sum of both."""
        return self.first.bound(num_candidates) + self.then.bound(min(self.keep, num_candidates))
