"""How a prompt is asked, by vLLM's names: any other name fails the call."""

from dataclasses import dataclass
from enum import IntEnum


class RequestOutputKind(IntEnum):
    FINAL_ONLY = 2


@dataclass
class SamplingParams:
    n: int = 1
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    max_tokens: int | None = 16
    min_tokens: int = 0
    logprob_token_ids: list[int] | None = None
    flat_logprobs: bool = False
    detokenize: bool = True
    stop: list[str] | None = None
    include_stop_str_in_output: bool = False
    prompt_logprobs: int | None = None
    prompt_logprob_token_ids: object = None
    prompt_logprob_start: int | None = None
    seed: int | None = None
    skip_special_tokens: bool = True
    output_kind: object = None
