"""How deep a list is ranked at all: a fixed depth, and a stop where the first stage's score falls off."""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class Truncate:
    """The rest of a list keeps first-stage order."""

    depth: int | None = None  # the most that is ranked; all if None
    score_gap: float | None = None  # stop below top - score_gap * |top| of the first stage's scores; never if None

    def depth_of(self, num_candidates: int, first_stage_scores: np.ndarray | None = None) -> int:
        """How many candidates of the list the model ranks.

        Args:
            num_candidates: the list's length.
            first_stage_scores: 1D float, in first-stage order; a list with a missing score is not cut by it.
        """
        depth = num_candidates if self.depth is None else min(num_candidates, self.depth)
        if self.score_gap is None or first_stage_scores is None or not np.isfinite(first_stage_scores).all():
            return depth
        top = first_stage_scores[0] if num_candidates else 0.0
        near = first_stage_scores >= top - self.score_gap * abs(top)
        within = num_candidates if near.all() else int(np.argmin(near))
        return min(depth, within)
