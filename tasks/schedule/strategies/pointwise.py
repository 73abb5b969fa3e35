"""Each candidate alone: N short prompts, one round (monoT5, arXiv:2003.06713; UPR, arXiv:2204.07496)."""

import math
from dataclasses import dataclass
from typing import Annotated, Literal

from tasks.schedule.seeds import Seed
from tasks.schedule.strategies.named import RESOLVED, NamedStrategy, Variant
from tasks.schedule.windows import Bound, Ranked, Rounds, ScoreKind, Window


@dataclass(frozen=True, slots=True)
class Pointwise(NamedStrategy):
    """Judges every candidate by itself and sorts by what came out; equal ones keep first-stage order."""

    score_kind: Annotated[ScoreKind, RESOLVED] = "query_likelihood"
    name: Literal["pointwise"] = "pointwise"
    question = "judge"
    prompt_size = 1
    variants = (Variant("pointwise", 0.842),)

    def rounds(self, num_candidates: int, seed: Seed) -> Rounds:
        """One window a candidate, all in one round; a single candidate needs no call."""
        if num_candidates < 2:
            return Ranked(tuple(range(num_candidates)))
        outcomes = yield [Window((doc,), "judge") for doc in range(num_candidates)]
        values = {
            doc: self._value(outcome.logprobs[0])
            for doc, outcome in enumerate(outcomes)
            if outcome.num_listed and outcome.logprobs is not None
        }
        order = sorted(range(num_candidates), key=lambda doc: -values.get(doc, -math.inf))
        return Ranked(tuple(order), self.score_kind, values)

    def bound(self, num_candidates: int) -> Bound:
        """Exact."""
        num = num_candidates if num_candidates > 1 else 0
        return Bound(num_windows=num, num_slots=num, num_rounds=min(num, 1))

    def _value(self, logprob: float) -> float:
        return math.exp(logprob) if self.score_kind == "p_yes" else logprob
