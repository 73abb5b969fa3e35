"""What the engine is asked for beside a prompt, and what a prompt needs to know of its decode mode.

Knows nothing of passages.
"""

import hashlib
from dataclasses import dataclass
from typing import ClassVar, Protocol

from tasks.prompt.templates import PromptTemplate
from tasks.schedule.windows import Window


@dataclass(frozen=True, slots=True)
class Sampling:
    """How tokens are drawn: greedily, but for a model that has to think."""

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0  # 0: all
    min_p: float = 0.0
    presence_penalty: float = 0.0
    repetition_penalty: float = 1.0
    seed: int = 0  # another one draws other thoughts

    def seed_of(self, request_id: str) -> int | None:
        """The same for the same request, in whatever batch or process it is asked; None: nothing is drawn."""
        if self.temperature == 0.0:
            return None
        digest = hashlib.blake2b(f"{self.seed}/{request_id}".encode(), digest_size=4)
        return int.from_bytes(digest.digest(), "big")


GREEDY = Sampling()


@dataclass(frozen=True, slots=True)
class ForcedClose:
    """What is written where a think block reached its budget, and how long the answer behind it may be."""

    text: str
    token_ids: tuple[int, ...]
    max_tokens: int
    marks: tuple[str, ...] = ()  # of a thought, where they are not among those known


@dataclass(frozen=True, slots=True)
class AnswerForm:
    """What the engine is asked for, beside the prompt."""

    max_tokens: int  # of the answer in all
    logprob_token_ids: tuple[int, ...] | None = None
    stop: tuple[str, ...] = ()  # the answer ends with the first of these, which it keeps
    close: ForcedClose | None = None  # only for reasoning
    sampling: Sampling = GREEDY

    @property
    def first_max_tokens(self) -> int:
        """Of the first call, which has to leave room for a forced close."""
        return self.max_tokens - (0 if self.close is None else len(self.close.token_ids) + self.close.max_tokens)

    @property
    def reread_tokens(self) -> int:
        """Of the answer, what a second call has in its prompt: a thought that reached its budget, and its close."""
        return 0 if self.close is None else self.max_tokens - self.close.max_tokens


class AnswerForms(Protocol):
    """A decode mode as the prompts see it: `DecodeMode` of tasks/decode describes the members."""

    name: ClassVar[str]
    template: PromptTemplate
    opened_answer: str

    @property
    def max_passages(self) -> int | None: ...  # noqa: D102
    def form(self, window: Window) -> AnswerForm: ...  # noqa: D102
    def most_tokens(self, num_passages: int) -> int: ...  # noqa: D102
