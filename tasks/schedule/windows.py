"""A window, what came of it, and where the windows of a list lie.

Everything is in candidate indices: 0 is the first stage's best. Knows nothing of texts, tokens, prompts or models.
"""

from collections.abc import Generator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Window:
    """The candidates of one prompt."""

    docs: tuple[int, ...]  # candidate indices in prompt order


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a window was ordered. Always complete: what the model left out stands at the end, in input order."""

    order: tuple[int, ...]  # candidate indices, best first
    num_listed: int  # the first num_listed of them were named by the model
    logprobs: tuple[float, ...] | None = None  # parallel to order; only where the decode mode gives them

    @property
    def fell_back(self) -> bool:
        """Fewer than half of the candidates were named (ALGORITHMS: the window counts as not ranked)."""
        return 2 * self.num_listed < len(self.order)


@dataclass(frozen=True, slots=True)
class Bound:
    """The most that a strategy can ask for a list."""

    num_windows: int
    num_slots: int  # candidates over all windows
    num_rounds: int


# A strategy yields rounds of independent windows, is sent their outcomes in the same order, and returns the final
# order of all candidates, best first. It is pure and deterministic, so that a run resumes by replaying outcomes.
Strategy = Generator[list[Window], list[Outcome], tuple[int, ...]]


def sliding_spans(num_candidates: int, window_size: int, stride: int) -> list[tuple[int, int]]:
    """The half-open spans of one back-to-front pass; every position lies in one of them.

    The last span always starts at 0: the original RankGPT loop tests the start before it clamps it, and so never
    looks at the head when (n - window) is no multiple of the stride.

    >>> sliding_spans(25, 20, 10)
    [(5, 25), (0, 20)]
    """
    end, start = num_candidates, max(num_candidates - window_size, 0)
    spans = [(start, end)]
    while start > 0:
        end, start = end - stride, max(start - stride, 0)
        spans.append((start, end))
    return spans
