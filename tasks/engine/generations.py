"""What an engine is, and what it gives back for a batch. Knows nothing of vLLM itself."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

import numpy as np

from tasks.decode.answer import Generation
from tasks.engine.batches import Batch, pack
from tasks.engine.kv_cache import KVCacheLimits, batch_budget
from tasks.engine.step_stats import EngineStep
from tasks.prompt.prompts import Prompt


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

    generations: Sequence[Generation]
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


def ask_alone(engine: Engine, prompts: Sequence[Prompt], headroom_share: float) -> Iterator[tuple[Prompt, Generation]]:
    """Each prompt with its answer, packed, with nothing else in the engine.

    Raises:
        EngineError: see `Engine.generate`.
    """
    limits, one_token = engine.info.limits, all(prompt.has_one_token_answer for prompt in prompts)
    budget = batch_budget(limits, headroom_share, one_token_answers=one_token, batch_loads=1)
    for batch in pack(prompts, limits, budget):
        yield from zip(batch.prompts, engine.generate(batch)[0], strict=True)
