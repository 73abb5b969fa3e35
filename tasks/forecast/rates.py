"""How long work takes: by measured rates before it begins, by its own progress afterwards. Pure arithmetic.

    rates x demand -> a time range, GPU-hours        progress x time left -> at risk, passed

Seconds per prompt are interpolated between the measured prompt lengths: attention makes long prompts cost more per
token, and each prompt has a fixed cost. All prompt tokens count as computed, though a prefix cache may hold some.
Knows nothing of engines, files or databases.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from statistics import NormalDist
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from tasks.forecast.demand import Demand
from tasks.settings import Section
from tasks.system.errors import ConfigError

SMALLEST_SPREAD = 0.05  # nights differ by so much from each other on the same machine, whatever one calibration says
GIVEN_SPREAD = 0.10  # of rates that somebody wrote down
NORMAL_95 = 1.96
SECONDS_AN_HOUR = 3600.0
LOOKS_BEFORE_A_WARNING = 3  # batches: the first one compiles

Positive = Annotated[float, Field(gt=0.0, allow_inf_nan=False)]


class PrefillRate(Section):
    """How fast prompts of one length are read."""

    prompt_tokens: Positive  # mean length of a prompt
    tokens_per_s: Positive


class Rates(Section):
    """What a machine does with a model; a rates file has the same fields."""

    prefill: Annotated[tuple[PrefillRate, ...], Field(min_length=1)]  # any order of lengths
    scored_prefill: tuple[PrefillRate, ...] = ()  # query_likelihood: every token's log-probability; as prefill if empty
    decode_tokens_per_s: Positive | None = None  # all sequences of a batch together; None: one-token answers only
    answer_share: Annotated[float, Field(gt=0.0, le=1.0)] = 1.0  # tokens of answers, of the most that they may have
    spread: Annotated[float, Field(ge=0.0, lt=1.0)] = GIVEN_SPREAD  # half of the band, as a share
    source: str = "given"
    model_identity: str | None = None
    device: str | None = None
    measured_at: str | None = None  # ISO 8601, UTC

    def seconds(self, demand: Demand) -> np.ndarray:
        """Engine time of each window, 1D float64.

        Raises:
            ConfigError: answers are longer than one token and there is no rate of decoding.
        """
        scored = self.scored_prefill or self.prefill
        lengths = demand.prompt_tokens.astype(float)
        prefill_s = np.where(demand.is_scored, _prefill_s(scored, lengths), _prefill_s(self.prefill, lengths))
        further = np.maximum(demand.output_tokens * self.answer_share - 1, 0.0)
        if not further.any():
            return prefill_s
        if self.decode_tokens_per_s is None:
            raise ConfigError(
                f"rates ({self.source}): answers are up to {demand.output_tokens.max()} tokens long, but there is no "
                "decode rate. Give --rates prefill=...,decode=..., or measure with packrank bench."
            )
        seconds: np.ndarray = prefill_s + further / self.decode_tokens_per_s
        return seconds


@dataclass(frozen=True, slots=True)
class Device:
    """A GPU by its published figures: dense bfloat16 without sparsity."""

    name: str
    flops: float  # a second
    memory_bytes_per_s: float
    memory_bytes: float

    def estimate(self, num_parameters: float, prompt_tokens: float) -> Rates | None:
        """Rates of a model in bfloat16 on one such GPU, not measured; None where it does not fit.

        Args:
            num_parameters: of the model.
            prompt_tokens: mean length of a prompt: its KV cache bounds how many are decoded at once.
        """
        size = num_parameters / MODEL_PARAMETERS
        room = self.memory_bytes * MEMORY_SHARE - 2 * num_parameters
        cache_bytes = prompt_tokens * KV_BYTES_A_TOKEN * size
        if room < cache_bytes:
            return None
        utilisation, spread = _middle(*PREFILL_UTILISATION)
        prefill = tuple(
            PrefillRate(
                prompt_tokens=length, tokens_per_s=self.flops * utilisation / _flops_a_token(num_parameters, length)
            )
            for length in (128.0, 1_024.0, 4_096.0, 16_384.0, 65_536.0)
        )
        at_once = min(MOST_SEQUENCES, int(room / cache_bytes))
        step_bytes = 2 * num_parameters + at_once * cache_bytes
        decode = at_once * self.memory_bytes_per_s * _middle(*DECODE_UTILISATION)[0] / step_bytes
        source = f"estimate for {self.name}"
        return Rates(prefill=prefill, decode_tokens_per_s=decode, spread=spread, source=source)


# NVIDIA's data sheets of H100 SXM and H200 SXM.
DEVICES = (Device("H100 SXM", 989e12, 3.35e12, 80e9), Device("H200 SXM", 989e12, 4.8e12, 141e9))
PREFILL_UTILISATION = (0.35, 0.60)  # of the FLOPs, while long prompts are read
DECODE_UTILISATION = (0.50, 0.80)  # of the memory's bandwidth
MEMORY_SHARE = 0.9
MOST_SEQUENCES = 256  # vLLM's max_num_seqs
# Of a model of 8 billion parameters with grouped keys, 32 layers of 4,096, 8 heads of 128; others in proportion.
MODEL_PARAMETERS = 8e9
KV_BYTES_A_TOKEN = 32 * 8 * 128 * 2 * 2
ATTENTION_FLOPS = 2 * 32 * 4_096  # a token and token before it, half of them on average


@dataclass(frozen=True, slots=True)
class Forecast:
    """Engine time of a run, seconds."""

    low_s: float
    expected_s: float
    high_s: float

    def meets(self, deadline_s: float) -> Literal["yes", "perhaps", "no"]:
        """Whether it ends in time."""
        if self.high_s <= deadline_s:
            return "yes"
        return "perhaps" if self.expected_s <= deadline_s else "no"

    def gpu_hours(self, num_gpus: int) -> tuple[float, float]:
        """The range of time on all GPUs of an engine."""
        return self.low_s * num_gpus / SECONDS_AN_HOUR, self.high_s * num_gpus / SECONDS_AN_HOUR

    def in_shards(self, num_shards: int, num_queries: int) -> "Forecast":
        """The time of the slowest of so many shards, over which a hash spreads the queries; their costs count as equal.

        A shard's share of the queries is binomial; of the largest of them the least, the mean (Blom 1958) and the 95 %
        point are taken.
        """
        if num_shards == 1 or not num_queries:
            return self
        even = 1 / num_shards
        deviation = math.sqrt(even * (1 - even) / num_queries)
        mean = NormalDist().inv_cdf((num_shards - 0.375) / (num_shards + 0.25))
        most = NormalDist().inv_cdf(0.95 ** (1 / num_shards))
        return Forecast(
            low_s=self.low_s * even,
            expected_s=self.expected_s * min(1.0, even + mean * deviation),
            high_s=self.high_s * min(1.0, even + most * deviation),
        )


def parse_rates(text: str) -> Rates:
    """Rates by hand: `prefill=50000,decode=3000`, in tokens a second; decode may be left out.

    Raises:
        ConfigError: they are not of that form.
    """
    found = dict(re.findall(r"(prefill|decode)=([0-9.]+)(?:,|$)", text))
    try:
        if ",".join(f"{name}={value}" for name, value in found.items()) != text or "prefill" not in found:
            raise ValueError(text)
        prefill = PrefillRate(prompt_tokens=1.0, tokens_per_s=float(found["prefill"]))
        decode = float(found["decode"]) if "decode" in found else None
        return Rates(prefill=(prefill,), decode_tokens_per_s=decode)
    except ValueError as error:  # pydantic's is one
        raise ConfigError(
            f"--rates {text}: expected prefill=50000,decode=3000 (tokens/s, above 0), or a file from packrank bench."
        ) from error


def parse_duration(text: str) -> float:
    """Seconds of '4h30m', '90m', '45s' or plain seconds.

    Raises:
        ConfigError: it is none of those.

    >>> parse_duration("4h30m"), parse_duration("90")
    (16200.0, 90.0)
    """
    matched = re.fullmatch(r"(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s?)?", text)
    seconds = (
        sum(int(part or 0) * unit for part, unit in zip(matched.groups(), (3600, 60, 1), strict=True)) if matched else 0
    )
    if not seconds:
        raise ConfigError(f"--deadline {text}: expected a duration such as 4h30m, 90m or 3600 (seconds).")
    return float(seconds)


def parse_parameters(text: str) -> float:
    """How many parameters '8B' or '600M' are.

    Raises:
        ConfigError: it is neither.
    """
    matched = re.fullmatch(r"(\d+(?:\.\d+)?)([BM])", text)
    if not matched or not float(matched[1]):
        raise ConfigError(f"--estimate {text}: expected a number of parameters such as 8B or 600M.")
    return float(matched[1]) * {"B": 1e9, "M": 1e6}[matched[2]]


def forecast(rates: Rates, demands: Sequence[Demand]) -> Forecast:
    """The time that a demand takes: expected by the first, the range over all of them.

    The range holds the spread of the rates and, where a sample of queries was counted, its 95 % interval.

    Raises:
        ConfigError: see `Rates.seconds`.
    """
    spans = [_span(rates, demand) for demand in demands]
    return Forecast(min(each.low_s for each in spans), spans[0].expected_s, max(each.high_s for each in spans))


def half_width(by_query: np.ndarray, num_queries: int) -> float:
    """Half of the 95 % interval of a total over `num_queries`, from the values of those that were drawn."""
    num_drawn = len(by_query)
    if num_drawn < 2 or num_drawn >= num_queries:
        return 0.0
    left = 1 - num_drawn / num_queries  # drawn without replacement
    return float(NORMAL_95 * num_queries * by_query.std(ddof=1) * math.sqrt(left / num_drawn))


def _span(rates: Rates, demand: Demand) -> Forecast:
    by_query = np.bincount(demand.query, rates.seconds(demand), minlength=demand.num_counted)
    expected_s = float(by_query.sum() * demand.scale)
    half_s = half_width(by_query, demand.num_queries)
    return Forecast(
        low_s=max(expected_s - half_s, 0.0) * (1 - rates.spread),
        expected_s=expected_s,
        high_s=(expected_s + half_s) * (1 + rates.spread),
    )


def _prefill_s(rates: Sequence[PrefillRate], lengths: np.ndarray) -> np.ndarray:
    """Seconds a prompt: never less for a longer one. Outside of what was measured the nearest rate holds."""
    points = sorted(rates, key=lambda each: each.prompt_tokens)
    known = np.array([each.prompt_tokens for each in points])
    seconds = np.maximum.accumulate([each.prompt_tokens / each.tokens_per_s for each in points])
    inside = np.interp(lengths, np.concatenate([[0.0], known]), np.concatenate([[0.0], seconds]))
    beyond = seconds[-1] * np.maximum(lengths / known[-1], 1.0)
    return np.where(lengths > known[-1], beyond, inside)


def _middle(low: float, high: float) -> tuple[float, float]:
    """The share at which time is half way between that at both ends, and half of that way as a share of it."""
    return 2 * low * high / (low + high), (high - low) / (high + low)


def _flops_a_token(num_parameters: float, prompt_tokens: float) -> float:
    return 2 * num_parameters + ATTENTION_FLOPS * num_parameters / MODEL_PARAMETERS * prompt_tokens


class Deadline:
    """Holds a run's windows, as they are told, against the time by which it has to end; times are aware."""

    def __init__(self, ends_at: datetime) -> None:
        self.ends_at = ends_at
        self._begun_at: datetime | None = None
        self._num_looks = 0

    def begin(self, now: datetime) -> None:
        """The first batch is asked now."""
        self._begun_at = self._begun_at or now

    def has_passed(self, now: datetime) -> bool:
        """Whether nothing more may be asked."""
        return now >= self.ends_at

    def expected_end(self, now: datetime, num_asked: int, num_left: int) -> datetime | None:
        """When the run ends at the rate of what this start asked, told after every batch; None: not known."""
        if self._begun_at is None:
            return None
        self._num_looks += 1
        if self._num_looks < LOOKS_BEFORE_A_WARNING or num_asked <= 0:
            return None
        return now + (now - self._begun_at) / num_asked * num_left
