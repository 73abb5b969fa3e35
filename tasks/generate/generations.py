"""What an engine is, and what it gives back for a batch.

Durations are seconds from vLLM's monotonic `*_ts` fields, never mixed with wall clock; a missing or negative one is
None, never 0. Knows nothing of vLLM itself.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

import numpy as np

from tasks.generate.timeline import EngineStep
from tasks.pack.batches import Batch
from tasks.pack.kv_budget import KVCacheLimits
from tasks.prompt.prompts import Prompt


@dataclass(frozen=True, slots=True)
class Latency:
    """One request's way through the engine, in seconds; None where the engine did not say."""

    queue_s: float | None = None  # queued to scheduled
    prefill_s: float | None = None  # scheduled to first token
    ttft_s: float | None = None  # arrival to first token
    tpot_s: float | None = None  # per output token after the first; None for one token
    e2el_s: float | None = None  # arrival to last token


@dataclass(frozen=True, slots=True)
class RequestTimes:
    """vLLM's fields (v1/metrics/stats.py, RequestStateStats)."""

    queued_ts: float
    scheduled_ts: float
    first_token_ts: float
    last_token_ts: float
    first_token_latency: float


@dataclass(frozen=True, slots=True)
class Generation:
    """The answer to one prompt."""

    request_id: str
    text: str
    finish_reason: str  # stop, length
    output_tokens: int
    cached_tokens: int
    logprobs: tuple[float | None, ...] | None  # parallel to the form's logprob_token_ids
    scored_logprob: float | None  # sum over the prompt's last num_scored_tokens
    latency: Latency
    num_preemptions: int


@dataclass(frozen=True, slots=True)
class BatchStats:
    """What a batch took."""

    submitted_at: datetime  # UTC, of its first prompt
    finished_at: datetime  # UTC, of its last answer
    engine_s: float  # by the engine's own monotonic clock
    itl_s: np.ndarray  # 1D float64: every gap between two tokens of one request
    steps: tuple[EngineStep, ...] = ()  # only where a timeline was asked for


@dataclass(frozen=True, slots=True)
class Answered:
    """What an engine answered since it was last asked for it, and what that took."""

    generations: tuple[Generation, ...]
    engine_s: float  # inside the engine's calls, by its own monotonic clock
    itl_s: np.ndarray  # 1D float64: every gap between two tokens of one request
    steps: tuple[EngineStep, ...] = ()  # only where a timeline was asked for


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """An engine that is ready."""

    limits: KVCacheLimits
    device: str
    dtype: str
    enable_prefix_caching: bool


class Engine(Protocol):
    """Answers prompts. Either `submit` and `collect`, several calls in flight, or `generate` for one batch alone."""

    @property
    def info(self) -> EngineInfo:
        """What it reported at its start."""
        ...

    def submit(self, prompts: Sequence[Prompt]) -> None:
        """Sends prompts and does not wait: they join what runs (driver `stream`), or are the next call (`generate`).

        Raises:
            EngineLost: it died.
            EngineError: no engine starts.
        """
        ...

    def collect(self) -> Answered:
        """Waits until prompts have been answered, in whatever order; only while some are in the engine.

        Raises:
            EngineLost: it died, hung, or answered something other than it was asked.
        """
        ...

    def generate(self, batch: Batch, tries: int = 1) -> tuple[list[Generation], BatchStats]:
        """One generation a prompt, in the batch's order, with nothing else in the engine.

        Raises:
            EngineLost: it died, hung, or answered something other than it was asked, also when asked again.
            EngineError: no engine starts.
        """
        ...


def latency(times: RequestTimes | None, output_tokens: int) -> Latency:
    """The durations of DESIGN section 2."""
    if times is None:
        return Latency()
    decode_s = _duration(times.first_token_ts, times.last_token_ts)
    ttft_s = times.first_token_latency if times.first_token_latency > 0 else None
    return Latency(
        queue_s=_duration(times.queued_ts, times.scheduled_ts),
        prefill_s=_duration(times.scheduled_ts, times.first_token_ts),
        ttft_s=ttft_s,
        tpot_s=decode_s / (output_tokens - 1) if decode_s is not None and output_tokens > 1 else None,
        e2el_s=ttft_s + decode_s if ttft_s is not None and decode_s is not None else None,
    )


def _duration(start_ts: float, end_ts: float) -> float | None:
    """None where a time stamp is missing (vLLM writes 0.0) or the clock went backwards."""
    return end_ts - start_ts if 0 < start_ts <= end_ts else None
