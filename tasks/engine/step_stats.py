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
    num_new_seqs: int  # scheduled for the first time: as many block tables are made
    stored_tokens: int  # of the running sequences, this step's included: places of their blocks that are not empty
    schedule_ms: float  # inside Scheduler.schedule
    update_ms: float  # inside Scheduler.update_from_output
    block_table_ms: float  # allocating and freeing blocks (part of both above), and the worker's rows of block ids

    @property
    def num_scheduled_seqs(self) -> int:
        """Sequences that the step worked on."""
        return self.num_prefill_seqs + self.num_decode_seqs


@dataclass(frozen=True, slots=True)
class Filled:
    """How full the engine is when a step has been scheduled."""

    num_waiting_seqs: int
    num_new_seqs: int
    stored_tokens: int
    blocks_used: int


class Stopwatch:
    """Adds up the time inside the calls that it is put around."""

    def __init__(self) -> None:
        self._elapsed_s = 0.0

    def around(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """The call with a clock around it, which adds some 0.3 µs."""

        def run(*arguments: Any, **keywords: Any) -> Any:
            started = time.perf_counter()
            try:
                return call(*arguments, **keywords)
            finally:
                self._elapsed_s += time.perf_counter() - started

        return run

    def take_ms(self) -> float:
        """Milliseconds since the last call of this."""
        elapsed_s, self._elapsed_s = self._elapsed_s, 0.0
        return elapsed_s * 1000


class StepRecorder:
    """A vLLM stat logger (v1/metrics/loggers.py, StatLoggerBase) that keeps every step.

    `scheduled` is told how full the engine is after scheduling, `record` what was scheduled, and `timed` goes around
    the step that does both. The stopwatches go around the parts of a step.
    """

    def __init__(self) -> None:
        self.schedule, self.update, self.block_tables = Stopwatch(), Stopwatch(), Stopwatch()
        self._steps: list[EngineStep] = []
        self._filled = Filled(0, 0, 0, 0)
        self._details: Any = None

    def scheduled(self, filled: Filled) -> None:
        """Called inside the step, when the scheduler has chosen."""
        self._filled = filled

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
        details, filled = self._details, self._filled
        parts_ms = [each.take_ms() for each in (self.schedule, self.update, self.block_tables)]
        if details is None or details.num_ctx_requests + details.num_generation_requests == 0:
            return
        self._steps.append(
            EngineStep(
                started_at=started_at,
                elapsed_ms=elapsed_ms,
                num_prefill_seqs=details.num_ctx_requests,
                num_decode_seqs=details.num_generation_requests,
                num_waiting_seqs=filled.num_waiting_seqs,
                prefill_tokens=details.num_ctx_tokens,
                decode_tokens=details.num_generation_tokens,
                blocks_used=filled.blocks_used,
                num_new_seqs=filled.num_new_seqs,
                stored_tokens=filled.stored_tokens,
                schedule_ms=parts_ms[0],
                update_ms=parts_ms[1],
                block_table_ms=parts_ms[2],
            )
        )
