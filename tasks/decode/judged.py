"""One candidate alone: a number for it, and no order.

yes_no            one token; the spellings of yes against those of no (monoT5, arXiv:2003.06713)
query_likelihood  nothing but the query's own log-probabilities (UPR, arXiv:2204.07496)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tasks.decode.answer import DecodeMode, Generation, Reading, Thinking, as_float32, finite_or_impossible
from tasks.prompt.answer_forms import AnswerForm
from tasks.prompt.chat_template import ChatTemplate
from tasks.prompt.templates import PromptTemplate
from tasks.schedule.windows import Outcome, Window
from tasks.system.errors import ConfigError

if TYPE_CHECKING:  # numpy and the tokenizers, which reading settings need not load
    from tasks.prompt.prompts import Prompt
    from tasks.prompt.tokens import ModelTokens

# RankLLM's POINTWISE_YES_ALLOWED_TOKEN_SPELLINGS and POINTWISE_NO_ALLOWED_TOKEN_SPELLINGS
YES, NO = (
    [f"{before}{word}{behind}" for before, behind in (("", ""), ("", " "), (" ", "")) for word in words]
    for words in (("yes", "Yes", "YES"), ("no", "No", "NO"))
)
PROMPT_LOGPROB_ROWS = 2048  # logits over the whole vocabulary for so many tokens of a prompt fit beside the cache


class YesNo(DecodeMode):
    """How much likelier a yes is than a no."""

    name = "yes_no"
    question = "judge"
    identifiers = ("none",)
    owners_words = {"pointwise": {"answer_prefix": "", "yes": YES, "no": NO}}
    score_kind = "p_yes"

    def __init__(self, tokens: ModelTokens, template: PromptTemplate, chat: ChatTemplate, thinking: Thinking) -> None:
        super().__init__(tokens, template, chat, thinking)
        self.yes_ids, self.no_ids = self._verdict_ids(template)

    def form(self, window: Window) -> AnswerForm:
        return AnswerForm(1, (*self.yes_ids, *self.no_ids))

    def read(self, prompt: Prompt, generation: Generation, prior: Sequence[float] | None = None) -> Reading:
        return read_verdict(prompt.window.docs, generation.logprobs or (), len(self.yes_ids))

    def pretend(self, prompt: Prompt) -> Generation:
        others = len(self.yes_ids) + len(self.no_ids) - 1
        return replace(super().pretend(prompt), logprobs=(-0.001 * prompt.window.docs[0], *[-9.0] * others))

    def _verdict_ids(self, template: PromptTemplate) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The ids of those spellings of yes and of no that are one token each.

        Lists of one length pair by place, and a spelling counts with its counterpart only: where "예" is one token and
        "아니오" three, reading "예" alone would favour yes.

        Raises:
            ConfigError: none of one side is, or no pair.
        """
        opening, sides = template.answer_prefix, (template.yes, template.no)
        found = [[self._tokens.single_token(opening, spelling) for spelling in side] for side in sides]
        if len(found[0]) == len(found[1]):
            is_pair = [None not in pair for pair in zip(*found, strict=True)]
            found = [[each for each, counts in zip(ids, is_pair, strict=True) if counts] for ids in found]
        yes, no = (tuple(dict.fromkeys(token_id for token_id in ids if token_id is not None)) for ids in found)
        if not (yes and no):
            raise ConfigError(
                f"decode_mode yes_no: none of yes = {list(sides[0])} is one token of the model's tokenizer after "
                f"{opening!r} together with its counterpart in no = {list(sides[1])}. Give yes and no other spellings "
                "in the prompt template."
            )
        if set(yes) & set(no):
            raise ConfigError("decode_mode yes_no: a spelling of yes and one of no are the same token.")
        return yes, no


class QueryLikelihood(DecodeMode):
    """The mean log-probability of a query token: one scale for queries of any length."""

    name = "query_likelihood"
    question = "judge"
    identifiers = ("none",)
    score_kind = "query_likelihood"
    scores_query = True

    def form(self, window: Window) -> AnswerForm:
        return AnswerForm(1)

    def read(self, prompt: Prompt, generation: Generation, prior: Sequence[float] | None = None) -> Reading:
        total = generation.scored_logprob
        is_judged = total is not None and math.isfinite(total)
        mean = (total or 0.0) / max(prompt.num_scored_tokens, 1)
        return _judged(prompt.window.docs, mean if is_judged else -math.inf, is_judged=is_judged)

    def pretend(self, prompt: Prompt) -> Generation:
        return replace(super().pretend(prompt), scored_logprob=-float(prompt.window.docs[0]))

    @classmethod
    def engine_defaults(cls, longest_prompt_tokens: int) -> dict[str, Any]:
        """A step is bounded where one prompt alone could have too many rows of logits.

        The V1 model runner computes them prompt by prompt, so short prompts need no bound, nor do a cascade's list-wise
        ones.
        """
        is_bound = longest_prompt_tokens > PROMPT_LOGPROB_ROWS
        return {"max_num_batched_tokens": PROMPT_LOGPROB_ROWS} if is_bound else {}


def read_verdict(docs: tuple[int, ...], logprobs: Sequence[float | None], num_yes: int) -> Reading:
    """The log of yes / (yes + no), over the spellings of yes, the first `num_yes`, and of no.

    >>> round(read_verdict((0,), [-0.5, -2.0], num_yes=1).outcome.logprobs[0], 3)
    -0.201
    """
    masses = [math.exp(value) for value in finite_or_impossible(logprobs)]
    yes, total = sum(masses[:num_yes]), sum(masses)
    logprob = math.log(yes / total) if yes > 0 else -math.inf
    return replace(_judged(docs, logprob, is_judged=total > 0), id_mass=min(1.0, total))


def _judged(docs: tuple[int, ...], logprob: float, *, is_judged: bool) -> Reading:
    outcome = Outcome(docs, num_listed=int(is_judged), logprobs=tuple(as_float32([logprob])))
    return Reading(outcome, "ok" if is_judged else "refusal", num_missing=int(not is_judged))
