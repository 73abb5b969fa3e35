"""What travels on the pipe between a night and its engine child, beside lists of `Prompt` and what it `Answered`.

Knows nothing of vLLM, and nothing of the night.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

Driver = Literal["stream", "generate"]


@dataclass(frozen=True, slots=True)
class Start:
    """How the child starts: the first message."""

    keywords: Mapping[str, Any]  # of vllm.LLM
    driver: Driver
    timeline: bool  # whether every step is recorded
    lora: str | None  # the folder of the adapter that every prompt uses
    draws: bool  # whether tokens are drawn, with a seed


@dataclass(frozen=True, slots=True)
class ResetPrefixCache:
    """Asks for an empty prefix cache; the reply is the same."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """What went wrong in the child, in one line."""

    message: str
    is_config: bool
