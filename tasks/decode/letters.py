"""One token names a passage: the log-probabilities of the letters order the window.

first_token  the whole order (FIRST, arXiv:2406.15657)
select       only the best few matter (Setwise, arXiv:2310.09497)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

from tasks.decode.answer import (
    DecodeMode,
    FormName,
    Generation,
    IdentifierForm,
    Reading,
    as_float32,
    finite_or_impossible,
)
from tasks.prompt.answer_forms import AnswerForm
from tasks.prompt.chat_template import ChatTemplate
from tasks.prompt.templates import PromptTemplate, render_frame
from tasks.schedule.windows import Outcome, Question, Window
from tasks.system.errors import ConfigError

if TYPE_CHECKING:  # numpy and the tokenizers, which reading settings need not load
    from tasks.prompt.prompts import Prompt
    from tasks.prompt.tokens import ModelTokens

MAX_LOGPROB_TOKEN_IDS = 128  # vllm/sampling_params.py
ENOUGH_IDENTIFIERS = 50  # the first form with so many is taken; Qwen and Llama 3 lack "[O" and "[Q"


class FirstToken(DecodeMode):
    """The letters' log-probabilities order the window."""

    name = "first_token"
    question: ClassVar[Question] = "order"
    identifiers = ("letters",)
    owners_words = {"listwise": {"answer_prefix": "["}}
    can_calibrate = True
    identifier_form: IdentifierForm

    def _fit(self, template: PromptTemplate, chat: ChatTemplate) -> PromptTemplate:
        self.identifier_form = fit_identifiers(self._tokens, template, chat)
        return self.identifier_form.template

    @property
    def max_passages(self) -> int:
        return min(len(self.identifier_form.token_ids), MAX_LOGPROB_TOKEN_IDS)

    def form(self, window: Window) -> AnswerForm:
        return AnswerForm(1, self.identifier_form.token_ids[: len(window.docs)])

    def read(self, prompt: Prompt, generation: Generation, prior: Sequence[float] | None = None) -> Reading:
        docs = prompt.window.docs
        return order_by_logprobs(docs, generation.logprobs or (None,) * len(docs), prior)

    def prior(self, generation: Generation) -> tuple[float, ...] | None:
        return usable_prior(generation.logprobs or ())

    def pretend(self, prompt: Prompt) -> Generation:
        return replace(super().pretend(prompt), logprobs=tuple(-float(doc) for doc in prompt.window.docs))


class Select(FirstToken):
    """The same, where only the best few matter."""

    name = "select"
    question = "select"
    owners_words = {}
    can_calibrate = False

    def window(self, docs: Sequence[int]) -> Window:
        return Window(tuple(docs), self.question, ask=1)


def fit_identifiers(tokens: ModelTokens, template: PromptTemplate, chat: ChatTemplate) -> IdentifierForm:
    """The first form that gives enough identifiers, or the one that gives most; the first of equals.

    A tokenizer that has a token "[A" never writes "[" and then "A", so a letter counts only where it is one token
    behind the end of the rendered prompt. Letters that do not count are left out of the passages' heads as well.
    docs/adr/0023 explains the order.

    Raises:
        ConfigError: no form gives two; or see `render_frame`.
    """
    unopened = template.answer_prefix.removesuffix("[")
    forms: list[tuple[FormName, PromptTemplate, str]] = [("opened", template, "")]
    if template.answer_prefix.endswith("["):
        forms.append(("merged", replace(template, answer_prefix=unopened), "["))
    if template.after_bare:
        forms.append(("bare", replace(template, answer_prefix=unopened, after=template.after_bare, after_best=""), ""))
    found = [_counted(tokens, name, words, chat, before) for name, words, before in forms]
    enough = min(ENOUGH_IDENTIFIERS, len(template.letters))
    most = max(found, key=lambda form: len(form.token_ids))
    if len(most.token_ids) < 2:
        raise ConfigError(
            f"the model's tokenizer has no single token for a letter after {template.answer_prefix!r}. Give the prompt "
            "template `after_bare`, as in configs/prompts/first_token.toml, which asks for the letter alone, or take a "
            "decode_mode that writes numbers."
        )
    return next((form for form in found if len(form.token_ids) >= enough), most)


def _counted(
    tokens: ModelTokens, name: FormName, template: PromptTemplate, chat: ChatTemplate, before: str
) -> IdentifierForm:
    """The form with those letters that are one token of their own behind the end of a prompt; `before` joins them."""
    end = render_frame(template, chat, 2, 1)[-1].text
    ids: dict[int, str] = {}
    for letter in template.letters:
        token_id = tokens.single_token(end, before + letter)
        if token_id is not None:
            ids.setdefault(token_id, letter)
    return IdentifierForm(name, replace(template, letters="".join(ids.values())), tuple(ids))


def order_by_logprobs(
    docs: Sequence[int], logprobs: Sequence[float | None], prior: Sequence[float] | None = None
) -> Reading:
    """Orders candidates by their log-probability, descending; a missing one ranks last, in prompt order.

    Args:
        docs: the candidates in prompt order.
        logprobs: parallel to them; None where the engine gave none.
        prior: what their places get in a prompt that says nothing; taken off, and the rest normalised again over the
            places (contextual calibration, arXiv:2102.09690).

    >>> order_by_logprobs([7, 8, 9], [-2.0, None, -0.5]).outcome.order
    (9, 7, 8)
    """
    raw = finite_or_impossible(logprobs)
    values = as_float32(raw if prior is None else finite_or_impossible(_without_prior(raw, prior)))
    places = sorted(range(len(values)), key=values.__getitem__, reverse=True)
    num_missing = values.count(-math.inf)
    return Reading(
        Outcome(
            tuple(docs[place] for place in places), len(docs) - num_missing, tuple(values[place] for place in places)
        ),
        parse_status="ok" if not num_missing else "missing" if num_missing < len(docs) else "refusal",
        num_missing=num_missing,
        id_mass=min(1.0, sum(map(math.exp, raw))),
    )


def usable_prior(logprobs: Sequence[float | None]) -> tuple[float, ...] | None:
    """What may be taken off, with the lowest value for a missing one; None where one is not finite, or all are missing.

    >>> usable_prior([-1.0, None, -3.0]), usable_prior([-1.0, float("-inf")])
    ((-1.0, -3.0, -3.0), None)
    """
    given = [value for value in logprobs if value is not None]
    if not given or not all(map(math.isfinite, given)):
        return None
    return tuple(min(given) if value is None else value for value in logprobs)


def _without_prior(raw: Sequence[float], prior: Sequence[float]) -> list[float]:
    differences = [value - before for value, before in zip(raw, prior, strict=True)]
    largest = max(differences)
    if largest == -math.inf:
        return differences
    norm = largest + math.log(sum(math.exp(value - largest) for value in differences))
    return [value - norm for value in differences]
