"""Tournaments (TourRank, arXiv:2406.11678): groups send on their best, each step on is a point, points are summed."""

from dataclasses import dataclass
from typing import Literal

from tasks.schedule.rounds import side_by_side
from tasks.schedule.seeds import Seed
from tasks.schedule.strategies.named import Count, NamedStrategy, Size, Variant
from tasks.schedule.windows import NOTHING, Bound, Ranked, Rounds, Window


@dataclass(frozen=True, slots=True)
class Stage:
    """One stage of a tournament."""

    num_groups: int
    num_kept: int  # of each group


@dataclass(frozen=True, slots=True)
class TourRank(NamedStrategy):
    """Several independent tournaments at once; equal points keep first-stage order."""

    window_size: Size = 20
    tournaments: Count = 2  # whose points are added up
    name: Literal["tourrank"] = "tourrank"
    question = "select"
    variants = (
        Variant("tourrank, 2 tournaments", 0.924),
        Variant("tourrank, 10 tournaments", 0.982, {"tourrank": {"tournaments": 10}}),
    )
    contenders = {f"tourrank {number}": (20, number) for number in (1, 2, 10)}

    def rounds(self, num_candidates: int, seed: Seed) -> Rounds:
        """A round is a stage of all tournaments."""
        if num_candidates < 2:
            return Ranked(tuple(range(num_candidates)))
        played = yield from side_by_side(
            [self._tournament(num_candidates, seed.of("tourrank", number)) for number in range(self.tournaments)]
        )
        points = [sum(each.values[doc] for each in played) for doc in range(num_candidates)]
        order = sorted(range(num_candidates), key=lambda doc: -points[doc])
        values = {doc: points[doc] + 1e-3 * (1 - doc / num_candidates) for doc in order}
        return Ranked(tuple(order), "points", values)

    def bound(self, num_candidates: int) -> Bound:
        """Exact."""
        one, left = NOTHING, num_candidates
        for stage in self.stages(num_candidates):
            one += Bound(stage.num_groups, left, 1)
            left = sum(min(stage.num_kept, size) for size in _group_sizes(left, stage.num_groups))
        return one.times(self.tournaments, also_rounds=False)

    def stages(self, num_candidates: int) -> list[Stage]:
        """Groups of at most window_size, of which about half goes on, down to two candidates.

        For 100 candidates and windows of 20 these are the paper's: 5 x 20 keep 10, 5 x 10 keep 4, 20 keep 10, 10 keep
        5, 5 keep 2.
        """
        stages, left, num_groups = list[Stage](), num_candidates, -(-num_candidates // self.window_size)
        while left > 2 or (left == 2 and not stages):
            largest = -(-left // num_groups)
            kept = max(largest // 2, 1)
            into_one = self.window_size // num_groups
            if kept * num_groups > self.window_size and into_one >= 0.75 * kept:
                kept = into_one
            if largest == kept:
                break
            stages.append(Stage(num_groups, kept))
            left = sum(min(kept, size) for size in _group_sizes(left, num_groups))
            num_groups = 1 if left <= self.window_size else num_groups
        return stages

    def _tournament(self, num_candidates: int, seed: Seed) -> Rounds:
        points = dict.fromkeys(range(num_candidates), 0.0)
        left = list(range(num_candidates))
        for number, stage in enumerate(self.stages(num_candidates)):
            groups = [
                seed.of(number, group).random().sample(members, len(members))
                for group in range(stage.num_groups)
                if (members := left[group :: stage.num_groups])  # every g-th: each has some of the first stage's best
            ]
            outcomes = yield [Window(tuple(group), "select", ask=min(stage.num_kept, len(group))) for group in groups]
            left = sorted(doc for outcome in outcomes for doc in outcome.order[: stage.num_kept])
            for doc in left:
                points[doc] += 1
        return Ranked(tuple(range(num_candidates)), values=points)


def _group_sizes(num_candidates: int, num_groups: int) -> list[int]:
    return [len(range(group, num_candidates, num_groups)) for group in range(num_groups)]
