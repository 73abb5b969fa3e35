"""Reads log-probabilities at the first token: an order of places, or the verdict on one.

Nothing can be malformed here, but a value may be missing: it ranks last, in prompt order, and is counted. All results
are float32 values, so that what is stored and replayed is what was used. Knows nothing of windows: places count from 0
in prompt order.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tasks.answer.permutations import ParseStatus


@dataclass(frozen=True, slots=True)
class LogprobOrder:
    """A complete order of a window's places."""

    order: tuple[int, ...]  # most probable first; equal ones, and the missing at the end, in prompt order
    logprobs: tuple[float, ...]  # parallel to order; -inf where missing
    num_listed: int
    id_mass: float  # sum of the identifiers' probabilities: below 0.5 the prompt or its alphabet is wrong
    status: ParseStatus


@dataclass(frozen=True, slots=True)
class Verdict:
    """How much a yes is likelier than a no."""

    logprob_yes: float  # log of yes / (yes + no); -inf where neither was given
    id_mass: float  # probability of all spellings of both
    status: ParseStatus


def order_by_logprobs(logprobs: Sequence[float | None], prior: Sequence[float] | None = None) -> LogprobOrder:
    """Orders places by their log-probability, descending (FIRST, arXiv:2406.15657).

    Args:
        logprobs: by place; None where the engine gave none.
        prior: what the same places get in a prompt that says nothing; taken off, and the rest normalised again over
            the places (CapCal, arXiv:2604.10150, with alpha = 1).

    >>> order_by_logprobs([-2.0, None, -0.5]).order
    (2, 0, 1)
    """
    raw = [-math.inf if value is None or math.isnan(value) else value for value in logprobs]
    values = raw if prior is None else _without_prior(raw, prior)
    values = np.array(values, np.float32).tolist()
    order = sorted(range(len(values)), key=values.__getitem__, reverse=True)
    num_listed = len(values) - values.count(-math.inf)
    return LogprobOrder(
        order=tuple(order),
        logprobs=tuple(values[place] for place in order),
        num_listed=num_listed,
        id_mass=min(1.0, sum(math.exp(value) for value in raw)),
        status=_status(num_listed, len(values)),
    )


def read_verdict(logprobs: Sequence[float | None], num_yes: int) -> Verdict:
    """Sums the spellings of yes, the first `num_yes`, and of no; a missing one counts as impossible.

    >>> round(read_verdict([-0.5, -2.0], num_yes=1).logprob_yes, 3)
    -0.201
    """
    masses = [0.0 if value is None or math.isnan(value) else math.exp(value) for value in logprobs]
    yes, total = sum(masses[:num_yes]), sum(masses)
    logprob = math.log(yes / total) if yes > 0 else -math.inf
    return Verdict(float(np.float32(logprob)), min(1.0, total), "ok" if total > 0 else "refusal")


def _without_prior(raw: Sequence[float], prior: Sequence[float]) -> list[float]:
    differences = [value - before for value, before in zip(raw, prior, strict=True)]
    largest = max(differences)
    if largest == -math.inf:
        return differences
    norm = largest + math.log(sum(math.exp(value - largest) for value in differences))
    return [value - norm for value in differences]


def _status(num_listed: int, num_places: int) -> ParseStatus:
    if num_listed == num_places:
        return "ok"
    return "missing" if num_listed else "refusal"
