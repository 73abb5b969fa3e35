"""What may be said of a measured figure: a claim with its verdict, and when a difference is more than its spread.

Knows nothing of arms and databases.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Literal

import numpy as np
from scipy.special import stdtrit  # Student's t; scipy.stats has it too, but takes two seconds to import

Verdict = Literal["holds", "does not hold", "holds in part", "not decided"]

CONFIDENCE = 0.95
FEW_STEPS = 8  # fewer say nothing of a slope
FEW_REPEATS = 3  # with fewer, nothing that is timed is decided: 3 against 3 lie apart by chance once in 20 times


@dataclass(frozen=True, slots=True)
class Claim:
    """One claim and what became of it."""

    step: int | None  # of the article's argument; None: the study goes further than the article
    claim: str
    verdict: Verdict
    sentence: str  # to be quoted: it names its numbers
    why: str


@dataclass(frozen=True, slots=True)
class Spread:
    """One figure of every repeat."""

    values: tuple[float, ...]

    def text(self, form: str) -> str:
        """The median, and the least and the largest where they differ."""
        low, mid, high = (form.format(each) for each in (min(self.values), median(self.values), max(self.values)))
        return mid if low == high else f"{mid} ({low} to {high})"


def is_below(smaller: Spread, larger: Spread) -> bool | None:
    """True: every repeat of the one is below every repeat of the other; False: above; None: an overlap, or too few."""
    if min(len(smaller.values), len(larger.values)) < FEW_REPEATS:
        return None
    if max(smaller.values) < min(larger.values):
        return True
    return False if min(smaller.values) > max(larger.values) else None


def verdict_of(parts: Sequence[bool | None]) -> Verdict:
    """Of a claim that has several parts: all, none or some of them hold; None is a part that is not decided."""
    known = {part for part in parts if part is not None}
    if known == {True, False}:
        return "holds in part"
    if len(known) != 1 or None in parts:
        return "not decided"
    return "holds" if known == {True} else "does not hold"


@dataclass(frozen=True, slots=True)
class Slope:
    """A straight line through points: y = intercept + slope * x."""

    intercept: float
    slope: float
    low: float  # of the slope's 95 % interval
    high: float
    num_points: int


def fit_slope(x: Sequence[float], y: Sequence[float]) -> Slope | None:
    """Ordinary least squares with the slope's t-interval; None where x hardly varies or points are few."""
    xs, ys = np.array(x, float), np.array(y, float)
    if len(xs) < FEW_STEPS or np.ptp(xs) < 1:
        return None
    centred = xs - xs.mean()
    slope = float((centred * (ys - ys.mean())).sum() / (centred**2).sum())
    intercept = float(ys.mean() - slope * xs.mean())
    residual = ys - intercept - slope * xs
    error = float(np.sqrt((residual**2).sum() / (len(xs) - 2) / (centred**2).sum()))
    half = float(stdtrit(len(xs) - 2, (1 + CONFIDENCE) / 2)) * error
    return Slope(intercept, slope, slope - half, slope + half, len(xs))
