"""Overlapping blocks asked at once, their orders joined by wins (JointRank, arXiv:2506.22262): one round.

Every candidate is in `repeats` blocks or one more. With few comparisons PageRank spreads what is known; with more, the
share of comparisons won is less shaken by noise.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, Self

from tasks.schedule.seeds import Seed
from tasks.schedule.strategies.named import Count, NamedStrategy, Size, StrategySizes, Variant
from tasks.schedule.windows import NOTHING, Bound, Outcome, Ranked, Rounds, Window

if TYPE_CHECKING:  # 0.1 s, which reading settings need not take
    import numpy as np

FEW_REPEATS = 2  # up to so many blocks a candidate PageRank spreads what is known better than the win rate
DAMPING = 0.85
PAGE_RANK_STEPS = 200


@dataclass(frozen=True, slots=True)
class JointRank(NamedStrategy):
    """Blocks of `window_size`; a list that fits into one block is asked once."""

    window_size: Size = 20
    repeats: Count = 2  # blocks that show each candidate
    aggregate: Literal["win_rate", "page_rank"] | None = None  # page_rank up to 2 repeats, else win_rate
    name: Literal["jointrank"] = "jointrank"
    variants = (
        Variant("jointrank, 2 repeats", 0.800),
        Variant("jointrank, 4 repeats", 0.923, {"jointrank": {"repeats": 4}}),
    )
    contenders = {"jointrank w20 r2 page_rank": (20, 2), "jointrank w20 r4 win_rate": (20, 4)}

    def rounds(self, num_candidates: int, seed: Seed) -> Rounds:
        """All blocks in one round."""
        if num_candidates < 2:
            return Ranked(tuple(range(num_candidates)))
        blocks = self.blocks(num_candidates, seed.of("jointrank"))
        outcomes = yield [Window(block) for block in blocks]
        if len(blocks) == 1:
            return Ranked(outcomes[0].order)
        wins = _wins(num_candidates, outcomes)
        strength = _win_rate(wins) if self.joined_by == "win_rate" else _page_rank(wins)
        order = sorted(range(num_candidates), key=lambda doc: -strength[doc])
        return Ranked(tuple(order), self.joined_by, {doc: float(strength[doc]) for doc in order})

    def bound(self, num_candidates: int) -> Bound:
        """Exact."""
        if num_candidates < 2:
            return NOTHING
        if num_candidates <= self.window_size:
            return Bound(1, num_candidates, 1)
        num_blocks = -(-self.repeats * num_candidates // self.window_size)
        return Bound(num_blocks, num_blocks * self.window_size, 1)

    @property
    def joined_by(self) -> Literal["win_rate", "page_rank"]:
        """How the blocks' orders become one."""
        return self.aggregate or ("page_rank" if self.repeats <= FEW_REPEATS else "win_rate")

    def sized(self, sizes: StrategySizes) -> Self:
        return replace(self, window_size=sizes.window_size, aggregate=self.joined_by)

    def blocks(self, num_candidates: int, seed: Seed) -> list[tuple[int, ...]]:
        """Shuffles of all candidates, laid end to end and cut; in a block the first stage's best come first."""
        if num_candidates <= self.window_size:
            return [tuple(range(num_candidates))]
        rng, dealt = seed.random(), list[list[int]]()
        num_blocks = -(-self.repeats * num_candidates // self.window_size)
        waiting: list[int] = []
        for _ in range(num_blocks):
            block: list[int] = []
            while len(block) < self.window_size:
                if not any(doc not in block for doc in waiting):
                    waiting += rng.sample(range(num_candidates), num_candidates)
                doc = next(doc for doc in waiting if doc not in block)
                waiting.remove(doc)
                block.append(doc)
            dealt.append(block)
        return [tuple(sorted(block)) for block in dealt]


def _wins(num_candidates: int, outcomes: Sequence[Outcome]) -> "np.ndarray":
    """wins[i, j]: in how many blocks i stood before j; two that an answer left out say nothing of each other."""
    import numpy as np

    wins = np.zeros((num_candidates, num_candidates))
    for outcome in outcomes:
        for place, doc in enumerate(outcome.listed):
            wins[doc, list(outcome.order[place + 1 :])] += 1
    return wins


def _win_rate(wins: "np.ndarray") -> "np.ndarray":
    """The share of its comparisons that each candidate won; 0 for one that was never compared."""
    import numpy as np

    compared = wins.sum(axis=1) + wins.sum(axis=0)
    rate: np.ndarray = np.divide(wins.sum(axis=1), compared, out=np.zeros(len(wins)), where=compared > 0)
    return rate


def _page_rank(wins: "np.ndarray") -> "np.ndarray":
    """PageRank of the graph in which losers point to winners."""
    import numpy as np

    losses = wins.T
    out = losses.sum(axis=1, keepdims=True)
    size = len(wins)
    moves = np.where(out > 0, np.divide(losses, out, out=np.zeros_like(losses), where=out > 0), 1.0 / size)
    rank: np.ndarray = np.full(size, 1.0 / size)
    for _ in range(PAGE_RANK_STEPS):
        rank = (1 - DAMPING) / size + DAMPING * rank @ moves
    return rank
