"""What the engine tells while it works: every gap between two tokens, and every step where a timeline is asked for.

Counts come from inside the step. Running sequences read at its end are about 0 for one-token work, where every sequence
ends in the step that schedules it, and so are its blocks. Durations are our own clock's around the whole step: vLLM's
`elapsed_ms` leaves most of it out. Knows nothing of vLLM but the names that it is told.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import numpy as np


class GapLogger:
    """A vLLM stat logger that keeps every gap between two tokens (v1/metrics/loggers.py, StatLoggerBase)."""

    def __init__(self) -> None:
        self.gaps: list[float] = []

    def record(
        self, scheduler_stats: Any, iteration_stats: Any, mm_cache_stats: Any = None, engine_idx: int = 0
    ) -> None:
        """Called inside the step, by vLLM."""
        if iteration_stats is not None:
            self.gaps.extend(iteration_stats.inter_token_latencies_iter)

    def take(self) -> np.ndarray:
        """The gaps since the last call, seconds, 1D float64."""
        gaps, self.gaps = np.array(self.gaps, np.float64), []
        return gaps

    def log(self) -> None:
        """Nothing to print."""

    def log_engine_initialized(self) -> None:
        """Nothing to print."""

    def record_sleep_state(self, is_awake: int, level: int) -> None:
        """The engine never sleeps."""


@dataclass(frozen=True, slots=True)
class EngineStep:
    """One step of the engine."""

    started_at: datetime  # UTC
    elapsed_ms: float
    num_prefill_seqs: int
    num_decode_seqs: int
    num_waiting_seqs: int  # left over when the step had been filled
    prefill_tokens: int
    decode_tokens: int
    blocks_used: int  # when the step had been filled

    @property
    def num_scheduled_seqs(self) -> int:
        """Sequences that the step worked on."""
        return self.num_prefill_seqs + self.num_decode_seqs


@dataclass(frozen=True, slots=True)
class _Filled:
    """How full the engine was when a step had been scheduled."""

    num_waiting_seqs: int
    blocks_used: int


class StepRecorder:
    """A vLLM stat logger (v1/metrics/loggers.py, StatLoggerBase) that keeps every step.

    `scheduled` is told how full the engine is after scheduling, `record` what was scheduled, and `timed` goes around
    the step that does both.
    """

    def __init__(self) -> None:
        self._steps: list[EngineStep] = []
        self._filled = _Filled(0, 0)
        self._details: Any = None

    def scheduled(self, num_waiting_seqs: int, blocks_used: int) -> None:
        """Called inside the step, when the scheduler has chosen."""
        self._filled = _Filled(num_waiting_seqs, blocks_used)

    def record(
        self, scheduler_stats: Any, iteration_stats: Any, mm_cache_stats: Any = None, engine_idx: int = 0
    ) -> None:
        """Called inside the step, by vLLM, when it has been computed."""
        self._details = getattr(scheduler_stats, "iteration_details", None)

    def timed(self, step: Callable[[], Any]) -> Callable[[], Any]:
        """The step with a clock around it; a step that scheduled nothing is left out."""

        def run() -> Any:
            self._details, started_at, started = None, datetime.now(UTC), time.monotonic()
            outputs = step()
            self._keep(started_at, (time.monotonic() - started) * 1000)
            return outputs

        return run

    def take(self) -> list[EngineStep]:
        """The steps since the last call."""
        steps, self._steps = self._steps, []
        return steps

    def log(self) -> None:
        """Nothing to print."""

    def log_engine_initialized(self) -> None:
        """Nothing to print."""

    def record_sleep_state(self, is_awake: int, level: int) -> None:
        """The engine never sleeps."""

    def _keep(self, started_at: datetime, elapsed_ms: float) -> None:
        details = self._details
        if details is None or details.num_ctx_requests + details.num_generation_requests == 0:
            return
        self._steps.append(
            EngineStep(
                started_at=started_at,
                elapsed_ms=elapsed_ms,
                num_prefill_seqs=details.num_ctx_requests,
                num_decode_seqs=details.num_generation_requests,
                num_waiting_seqs=self._filled.num_waiting_seqs,
                prefill_tokens=details.num_ctx_tokens,
                decode_tokens=details.num_generation_tokens,
                blocks_used=self._filled.blocks_used,
            )
        )
