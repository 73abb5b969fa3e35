"""What travels on the pipe between a night and its engine child: records that pickle, and nothing else.

Knows nothing of vLLM, and nothing of the night.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from tasks.generate.generations import RequestTimes
from tasks.generate.timeline import EngineStep
from tasks.prompt.answer_forms import AnswerForm

Driver = Literal["stream", "generate"]


@dataclass(frozen=True, slots=True)
class Start:
    """How the child starts: the first message."""

    keywords: Mapping[str, Any]  # of vllm.LLM
    driver: Driver
    timeline: bool  # whether every step is recorded


@dataclass(frozen=True, slots=True)
class ResetPrefixCache:
    """Asks for an empty prefix cache; the reply is the same."""


@dataclass(frozen=True, slots=True)
class Request:
    """A prompt."""

    request_id: str
    prompt_token_ids: np.ndarray
    form: AnswerForm
    num_scored_tokens: int


@dataclass(frozen=True, slots=True)
class Answer:
    """A finished request."""

    request_id: str
    form: AnswerForm
    text: str
    finish_reason: str
    output_tokens: int
    cached_tokens: int
    logprobs: tuple[float | None, ...] | None
    scored_logprob: float | None
    times: RequestTimes | None
    num_preemptions: int


@dataclass(frozen=True, slots=True)
class Answers:
    """Requests that finished together, and what the engine took since the last ones."""

    answers: list[Answer]
    engine_s: float
    itl_s: np.ndarray
    steps: list[EngineStep]


@dataclass(frozen=True, slots=True)
class Refusal:
    """What went wrong in the child, in one line."""

    message: str
    is_config: bool
