"""Reads an order out of the identifiers' log-probabilities at the first token (FIRST, arXiv:2406.15657).

Nothing can be malformed here, but a value may be missing: it ranks last, in prompt order, and is counted. Knows
nothing of windows: places count from 0 in prompt order.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from tasks.answer.permutations import ParseStatus


@dataclass(frozen=True, slots=True)
class LogprobOrder:
    """A complete order of a window's places."""

    order: tuple[int, ...]  # most probable first; equal ones, and the missing at the end, in prompt order
    logprobs: tuple[float, ...]  # parallel to order; -inf where missing
    num_listed: int
    id_mass: float  # sum of the identifiers' probabilities: below 0.5 the prompt or its alphabet is wrong
    status: ParseStatus


def order_by_logprobs(logprobs: Sequence[float | None]) -> LogprobOrder:
    """Orders places by their log-probability, descending.

    >>> order_by_logprobs([-2.0, None, -0.5]).order
    (2, 0, 1)
    """
    values = [-math.inf if value is None or math.isnan(value) else value for value in logprobs]
    order = sorted(range(len(values)), key=lambda place: -values[place])
    num_listed = sum(value > -math.inf for value in values)
    return LogprobOrder(
        order=tuple(order),
        logprobs=tuple(values[place] for place in order),
        num_listed=num_listed,
        id_mass=min(1.0, sum(math.exp(value) for value in values)),
        status=_status(num_listed, len(values)),
    )


def _status(num_listed: int, num_places: int) -> ParseStatus:
    if num_listed == num_places:
        return "ok"
    return "missing" if num_listed else "refusal"
