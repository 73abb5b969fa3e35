"""What a decode mode is, what the engine gave back for a prompt, and what is read in it.

Durations are seconds from vLLM's monotonic `*_ts` fields, never mixed with wall clock; a missing or negative one is
None, never 0.

Knows nothing of queries, batches or tables.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from tasks.prompt.answer_forms import GREEDY, AnswerForm, Sampling
from tasks.prompt.chat_template import ChatTemplate
from tasks.prompt.templates import Identifiers, PromptTemplate, render_frame
from tasks.prompt.thoughts import THINK_START, in_known_marks, opened_thought
from tasks.schedule.windows import Outcome, Question, ScoreKind, Window
from tasks.system.errors import ConfigError

if TYPE_CHECKING:  # numpy and the tokenizers, which reading settings need not load
    from tasks.prompt.prompts import Prompt
    from tasks.prompt.tokens import ModelTokens

ParseStatus = Literal[
    "ok", "missing", "repetition", "out_of_range", "wrong_format", "truncated", "refusal", "engine_error"
]
FormName = Literal["opened", "merged", "bare"]

LOW_ID_MASS = 0.5  # below it the model rather says something else, and its order of the identifiers means little


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

    def latency(self, output_tokens: int) -> Latency:
        """The durations between them."""
        decode_s = _duration(self.first_token_ts, self.last_token_ts)
        ttft_s = self.first_token_latency if self.first_token_latency > 0 else None
        return Latency(
            queue_s=_duration(self.queued_ts, self.scheduled_ts),
            prefill_s=_duration(self.scheduled_ts, self.first_token_ts),
            ttft_s=ttft_s,
            tpot_s=decode_s / (output_tokens - 1) if decode_s is not None and output_tokens > 1 else None,
            e2el_s=ttft_s + decode_s if ttft_s is not None and decode_s is not None else None,
        )


@dataclass(frozen=True, slots=True)
class Generation:
    """The answer to one prompt."""

    request_id: str
    text: str = ""
    finish_reason: str = "stop"  # or length
    output_tokens: int = 1
    cached_tokens: int = 0
    logprobs: tuple[float | None, ...] | None = None  # parallel to the form's logprob_token_ids
    scored_logprob: float | None = None  # sum over the prompt's last num_scored_tokens
    times: RequestTimes | None = None  # None where the engine gave none
    num_preemptions: int = 0

    @property
    def latency(self) -> Latency:
        """Its durations."""
        return Latency() if self.times is None else self.times.latency(self.output_tokens)


@dataclass(frozen=True, slots=True)
class Reading:
    """The outcome of a window, and what went wrong on the way."""

    outcome: Outcome
    parse_status: ParseStatus
    num_missing: int = 0  # of those that had to be named
    num_duplicate: int = 0
    num_out_of_range: int = 0
    id_mass: float | None = None  # one-token modes only
    answer: str | None = None  # the text, up to 2,000 characters, where parse_status is not ok


@dataclass(frozen=True, slots=True)
class Thinking:
    """How a model may think before it answers."""

    budget_tokens: int = 1024
    sampling: Sampling = GREEDY


@dataclass(frozen=True, slots=True)
class IdentifierForm:
    """How a model names a passage with one token, and what that gives on its tokenizer.

    opened: the prompt ends in "[", and the model continues with "A"; what FIRST models are trained on.
    merged: the model writes "[A", which is one token of its vocabulary (Qwen, Llama 3).
    bare: the model is asked for the letter alone, by `after_bare`, and writes "A" (gpt-oss, DeepSeek, Mistral Nemo).
    """

    name: FormName
    template: PromptTemplate  # its words, and the letters that are one token each
    token_ids: tuple[int, ...]  # of these letters, distinct

    @property
    def example(self) -> str:
        """The first identifier as the model writes it."""
        letter = self.template.letters[:1]
        return f"[{letter}" if self.name == "merged" else letter


class DecodeMode(ABC):
    """How a window is asked and how its answer is read, for one template on one model's tokenizer."""

    name: ClassVar[str]
    question: ClassVar[Question]  # strategies that ask it go with the mode
    identifiers: ClassVar[tuple[Identifiers, ...]]  # that its prompt template may have
    owners_words: ClassVar[Mapping[str, Mapping[str, Any]]] = {}  # see `OwnersReader`
    score_kind: ClassVar[ScoreKind] = "reciprocal_rank"  # of its values, where windows hold one candidate
    can_calibrate: ClassVar[bool] = False
    scores_query: ClassVar[bool] = False  # by the log-probabilities of the prompt's own tokens
    thinks: ClassVar[bool] = False  # before it answers
    identifier_form: IdentifierForm | None = None  # where one token names a passage

    def __init__(self, tokens: ModelTokens, template: PromptTemplate, chat: ChatTemplate, thinking: Thinking) -> None:
        """Raises ConfigError where tokenizer or template cannot give what the mode needs."""
        if template.identifiers not in self.identifiers:
            raise ConfigError(
                f"decode_mode {self.name} needs a prompt template with identifiers = "
                f"{' or '.join(map(repr, self.identifiers))}, not {template.identifiers!r}."
            )
        if self.scores_query != template.scores_query:
            raise ConfigError(
                "answer_prefix = '{query}' in a prompt template is for decode_mode query_likelihood alone."
            )
        self._tokens = tokens
        self._thinking = thinking
        self.template = self._fit(template, chat)
        self.opened_answer = self._opened_answer(chat)  # what of the model's turn stands in every prompt

    def _fit(self, template: PromptTemplate, chat: ChatTemplate) -> PromptTemplate:
        """The template in the form that fits the model."""
        return template

    def _opened_answer(self, chat: ChatTemplate) -> str:
        """Nothing, or an opened think block.

        Raises:
            ConfigError: a think block is open where the first token is to be the answer: it would be a thought's, the
                same for all (lilbee#503: every score 0.0, order unchanged, no error).
        """
        rendered = "".join(piece.text for piece in render_frame(self.template, chat, 1, 1))
        opened = opened_thought(in_known_marks(rendered, self.template.thoughts))
        if opened and not self.thinks:
            raise ConfigError(
                f"decode_mode {self.name}: the model's chat template opens a {opened} block, so the first "
                "token would be a thought and no answer. Set [prompt] chat_template_kwargs = {enable_thinking = false} "
                "if the template knows it, close the block by [prompt] turn_prefix (for gpt-oss "
                "'<|channel|>final<|message|>'), or take decode_mode = 'reasoning'."
            )
        return THINK_START if opened else ""

    @property
    def max_passages(self) -> int | None:
        """How many passages a prompt can tell apart; None: any number."""
        return self.template.max_identifiers

    def window(self, docs: Sequence[int]) -> Window:
        """A window that is asked whole."""
        return Window(tuple(docs), self.question)

    @abstractmethod
    def form(self, window: Window) -> AnswerForm:
        """How the answer to a window is asked for."""

    def most_tokens(self, num_passages: int) -> int:
        """The longest answer to a window of this many passages."""
        return 1

    @abstractmethod
    def read(self, prompt: Prompt, generation: Generation, prior: Sequence[float] | None = None) -> Reading:
        """The outcome of the window that the prompt asked about; never fails on what the model wrote.

        Args:
            prompt: what was asked.
            generation: what came of it.
            prior: what `prior` found in a content-free prompt, to be taken off.
        """

    def prior(self, generation: Generation) -> tuple[float, ...] | None:
        """What may be subtracted, by position; None if the answer to a content-free prompt is unusable."""
        return None

    def pretend(self, prompt: Prompt) -> Generation:
        """The longest answer of a model that agrees with the first stage: what plans count with."""
        return Generation(prompt.request_id, output_tokens=prompt.max_tokens)

    @classmethod
    def engine_defaults(cls, longest_prompt_tokens: int) -> dict[str, Any]:
        """`[engine]` settings that the mode needs unless others are given."""
        return {}


def as_float32(values: Sequence[float]) -> list[float]:
    """What is left of the values in the database's columns."""
    return array("f", values).tolist()


def finite_or_impossible(logprobs: Sequence[float | None]) -> list[float]:
    """-inf for what is missing, NaN or infinite: a model that overflows gives those."""
    return [-math.inf if value is None or not math.isfinite(value) else value for value in logprobs]


def _duration(start_ts: float, end_ts: float) -> float | None:
    """None where a time stamp is missing (vLLM writes 0.0) or the clock went backwards."""
    return end_ts - start_ts if 0 < start_ts <= end_ts else None
