"""How each decode mode asks for its answer: how many tokens, which log-probabilities, where to stop.

    first_token       one token; the log-probabilities of the letters order the window (FIRST, arXiv:2406.15657)
    select            the same, where only the best few matter (Setwise, arXiv:2310.09497)
    permutation       "[3] > [1] > ...": as many identifiers as are needed, or up to the pivot's
    reasoning         a think block within a budget, then a permutation
    yes_no            one token; the spellings of yes against those of no (monoT5, arXiv:2003.06713)
    query_likelihood  nothing but the query's own log-probabilities (UPR, arXiv:2204.07496)

Knows nothing of passages or of how a prompt is put together.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from tasks.errors import ConfigError
from tasks.prompt.templates import PromptTemplate
from tasks.prompt.tokens import ModelTokens
from tasks.schedule.windows import Question, Window

DecodeMode = Literal["first_token", "permutation", "reasoning", "select", "yes_no", "query_likelihood"]

QUESTIONS: dict[DecodeMode, Question] = {
    "first_token": "order",
    "permutation": "order",
    "reasoning": "order",
    "select": "select",
    "yes_no": "judge",
    "query_likelihood": "judge",
}
BY_LETTERS = ("first_token", "select")
ANSWER_SLACK_TOKENS = 4  # a leading space or line break, and the end-of-turn token
TAG_SLACK_TOKENS = 12  # <answer> and </answer>
MAX_LOGPROB_TOKEN_IDS = 128  # vllm/sampling_params.py


@dataclass(frozen=True, slots=True)
class ForcedClose:
    """What is written where a think block reached its budget, and how long the answer behind it may be."""

    text: str
    token_ids: tuple[int, ...]
    max_tokens: int


@dataclass(frozen=True, slots=True)
class AnswerForm:
    """What the engine is asked for, beside the prompt."""

    max_tokens: int  # of the answer in all
    logprob_token_ids: tuple[int, ...] | None = None
    stop: tuple[str, ...] = ()  # the answer ends with the first of these, which it keeps
    close: ForcedClose | None = None  # only for reasoning

    @property
    def first_max_tokens(self) -> int:
        """Of the first call, which has to leave room for a forced close."""
        return self.max_tokens - (0 if self.close is None else len(self.close.token_ids) + self.close.max_tokens)


class AnswerForms:
    """The forms of one template on one tokenizer."""

    def __init__(
        self, tokens: ModelTokens, template: PromptTemplate, decode_mode: DecodeMode, thinking_budget_tokens: int
    ) -> None:
        """Raises ConfigError where the tokenizer or the template cannot give what the decode mode needs."""
        self.decode_mode = decode_mode
        self._tokens = tokens
        self._template = template
        self._budget = thinking_budget_tokens
        self._order_tokens = lru_cache(maxsize=None)(self._count_order_tokens)
        _check_identifiers(template, decode_mode)
        self.identifier_ids = self._identifier_ids() if decode_mode in BY_LETTERS else None
        self.yes_ids, self.no_ids = self._verdict_ids() if decode_mode == "yes_no" else ((), ())
        self._close_ids = (
            tuple(self._tokens.encode_words(template.close).tolist()) if decode_mode == "reasoning" else ()
        )

    def form(self, window: Window) -> AnswerForm:
        """How the answer to a window is asked for."""
        num = len(window.docs)
        if self.identifier_ids is not None:
            return AnswerForm(1, self.identifier_ids[:num])
        if self.decode_mode == "yes_no":
            return AnswerForm(1, (*self.yes_ids, *self.no_ids))
        if self.decode_mode == "query_likelihood":
            return AnswerForm(1)
        if self.decode_mode == "reasoning":
            return AnswerForm(self.most_tokens(num), close=self._forced_close(num))
        if window.pivot is not None:
            identifier = self._template.identifier(window.docs.index(window.pivot))
            return AnswerForm(self._order_tokens(num, num), stop=(f"[{identifier}]",))
        return AnswerForm(self._order_tokens(window.num_asked, num))

    def most_tokens(self, num_passages: int) -> int:
        """The longest answer to a window of this many passages."""
        if self.decode_mode == "permutation":
            return self._order_tokens(num_passages, num_passages)
        if self.decode_mode == "reasoning":
            return self._budget + len(self._close_ids) + 2 * self._tagged_tokens(num_passages)
        return 1

    @property
    def max_passages(self) -> int | None:
        """How many passages a prompt can tell apart; None: any number."""
        limit = self._template.max_identifiers
        return limit if self.identifier_ids is None else min(len(self.identifier_ids), MAX_LOGPROB_TOKEN_IDS)

    def _forced_close(self, num_passages: int) -> ForcedClose:
        return ForcedClose(self._template.close, self._close_ids, self._tagged_tokens(num_passages))

    def _tagged_tokens(self, num_passages: int) -> int:
        return self._order_tokens(num_passages, num_passages) + TAG_SLACK_TOKENS

    def _count_order_tokens(self, num_named: int, num_passages: int) -> int:
        """Of the last identifiers, since those are the longest."""
        named = range(num_passages - num_named, num_passages)
        whole = " > ".join(f"[{self._template.identifier(place)}]" for place in named)
        return len(self._tokens.encode_data([whole])[0]) + ANSWER_SLACK_TOKENS

    def _identifier_ids(self) -> tuple[int, ...]:
        """The token id of each letter behind the opened answer.

        Raises:
            ConfigError: the tokenizer joins a letter with what stands before it.
        """
        opening = self._template.answer_prefix
        names = [self._template.identifier(place) for place in range(self._template.max_identifiers or 0)]
        ids: list[int] = []
        for name in names:
            token_id = self._tokens.single_token(opening, name)
            if token_id is None or token_id in ids:
                break
            ids.append(token_id)
        if len(ids) < 2:
            raise ConfigError(
                f"decode_mode {self.decode_mode}: the model's tokenizer has no single token for a letter after "
                f"{opening!r}. Change answer_prefix in the prompt template, or take a decode_mode that writes numbers."
            )
        return tuple(ids)

    def _verdict_ids(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The ids of those spellings of yes and of no that are one token each.

        Raises:
            ConfigError: none of one side is.
        """
        opening = self._template.answer_prefix
        sides = []
        for side in (self._template.yes, self._template.no):
            found = [self._tokens.single_token(opening, spelling) for spelling in side]
            sides.append(tuple(dict.fromkeys(token_id for token_id in found if token_id is not None)))
            if not sides[-1]:
                raise ConfigError(
                    f"decode_mode yes_no: none of {list(side)} is one token of the model's tokenizer after "
                    f"{opening!r}. Give yes and no other spellings in the prompt template."
                )
        yes, no = sides
        if set(yes) & set(no):
            raise ConfigError("decode_mode yes_no: a spelling of yes and one of no are the same token.")
        return yes, no


def _check_identifiers(template: PromptTemplate, decode_mode: DecodeMode) -> None:
    wanted = {"order": ("letters", "numbers"), "select": ("letters",), "judge": ("none",)}[QUESTIONS[decode_mode]]
    if decode_mode == "first_token":
        wanted = ("letters",)
    if template.identifiers not in wanted:
        raise ConfigError(
            f"decode_mode {decode_mode} needs a prompt template with identifiers = {' or '.join(map(repr, wanted))}, "
            f"not {template.identifiers!r}."
        )
    if (decode_mode == "query_likelihood") != template.scores_query:
        raise ConfigError("answer_prefix = '{query}' in a prompt template is for decode_mode query_likelihood alone.")
    if decode_mode == "reasoning" and "</think>" not in template.close:
        raise ConfigError("decode_mode reasoning needs `close` in its prompt template, with </think> in it.")
