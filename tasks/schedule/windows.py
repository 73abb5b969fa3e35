"""A window, what came of it, and what a strategy is: the words that the whole schedule speaks.

Everything is in candidate indices: 0 is the first stage's best. Knows nothing of texts, tokens, prompts or models.
"""

from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol

from tasks.schedule.seeds import Seed

Question = Literal["order", "select", "judge"]  # the whole order; the best few; one candidate alone
ScoreKind = Literal["reciprocal_rank", "p_yes", "query_likelihood", "points", "win_rate", "page_rank"]


@dataclass(frozen=True, slots=True)
class Window:
    """The candidates of one prompt, and what of their order matters."""

    docs: tuple[int, ...]  # candidate indices in prompt order
    question: Question = "order"
    ask: int | None = None  # only the best so many have to be named; all if None
    pivot: int | None = None  # only what is better than this candidate has to be named

    @property
    def num_asked(self) -> int:
        """How many candidates the answer has to name."""
        return len(self.docs) if self.ask is None else min(self.ask, len(self.docs))


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a window was ordered. Always complete: what the model left out stands at the end, in input order."""

    order: tuple[int, ...]  # candidate indices, best first
    num_listed: int  # the first num_listed of them were named by the model
    logprobs: tuple[float, ...] | None = None  # parallel to order, float32 values; where the decode mode gives them

    @property
    def listed(self) -> tuple[int, ...]:
        """What the model named, best first."""
        return self.order[: self.num_listed]

    def logprob_of(self) -> dict[int, float]:
        """Each candidate's log-probability; empty where the decode mode gives none."""
        return {} if self.logprobs is None else dict(zip(self.order, self.logprobs, strict=True))


def is_answered(window: Window, outcome: Outcome) -> bool:
    """Whether everything was named that had to be, so that the window places each of its candidates."""
    if window.pivot is not None:
        return window.pivot in outcome.listed
    return outcome.num_listed >= window.num_asked


def fell_back(window: Window, outcome: Outcome) -> bool:
    """Fewer than half of what had to be named was, or the pivot was not (ALGORITHMS: not ranked by this window)."""
    if window.pivot is not None:
        return window.pivot not in outcome.listed
    return 2 * outcome.num_listed < window.num_asked


@dataclass(frozen=True, slots=True)
class Bound:
    """The most that a strategy can ask for a list."""

    num_windows: int
    num_slots: int  # candidates over all windows
    num_rounds: int

    def __add__(self, other: "Bound") -> "Bound":
        """One after the other."""
        return Bound(
            self.num_windows + other.num_windows,
            self.num_slots + other.num_slots,
            self.num_rounds + other.num_rounds,
        )

    def times(self, factor: int, *, also_rounds: bool) -> "Bound":
        """So many of it: side by side, or one after the other."""
        rounds = self.num_rounds * factor if also_rounds else self.num_rounds
        return Bound(self.num_windows * factor, self.num_slots * factor, rounds)


NOTHING = Bound(0, 0, 0)


@dataclass(frozen=True, slots=True)
class Ranked:
    """A strategy's result."""

    order: tuple[int, ...]  # all candidates that it was given, best first
    score_kind: ScoreKind = "reciprocal_rank"
    values: Mapping[int, float] = field(default_factory=dict)  # the model's numbers; never rising along the order
    # unless score_kind is reciprocal_rank, where they may mean anything or be absent


# Rounds of independent windows, each answered by their outcomes in the same order; in the end the result. Pure and
# deterministic, so that a run resumes by replaying outcomes.
Rounds = Generator[list[Window], list[Outcome], Ranked]


class Strategy(Protocol):
    """Which windows of a list are asked."""

    def rounds(self, num_candidates: int, seed: Seed) -> Rounds:
        """A fresh generator over candidates 0 .. num_candidates - 1; 0 or 1 of them need no call."""
        ...

    def bound(self, num_candidates: int) -> Bound:
        """The most that a list of this length can ask, whatever the model answers."""
        ...
