"""The model writes the order out: "[3] > [1] > ...", as many identifiers as are needed, or up to the pivot's.

permutation  at once
reasoning    behind a think block within a budget
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING

from tasks.decode.answer import DecodeMode, Generation, Reading
from tasks.decode.parser import parse_permutation, place_of_letter, place_of_number
from tasks.prompt.answer_forms import AnswerForm, ForcedClose
from tasks.prompt.chat_template import ChatTemplate
from tasks.prompt.templates import PromptTemplate
from tasks.prompt.thoughts import (
    CLOSING,
    OPENING,
    THINK_END,
    THINK_NAME,
    THINK_START,
    closes_thought,
    in_known_marks,
    opened_thought,
)
from tasks.schedule.windows import Outcome, Window
from tasks.system.errors import ConfigError

if TYPE_CHECKING:  # numpy and the tokenizers, which reading settings need not load
    from tasks.prompt.prompts import Prompt

MAX_ANSWER_CHARACTERS = 2_000
ANSWER_SLACK_TOKENS = 4  # a leading space or line break, and the end-of-turn token
TAG_SLACK_TOKENS = 12  # <answer> and </answer>
HARMONY_FINAL = "<|end|><|start|>assistant<|channel|>final<|message|>"
CLOSING_OF = (  # an opening of templates.OPENINGS, and what closes it; the first that matches counts
    (rf"<({THINK_NAME})>", r"</\1>"),
    (r"\[THINK\]", "[/THINK]"),
    (r"\u25c1think\u25b7", "\u25c1/think\u25b7"),
    (r"<\|open\|>\s*think\s*<\|sep\|>", "<|close|>think<|sep|>"),
    (r"<\|START_THINKING\|>", "<|END_THINKING|>"),
    (r"<\|channel>\s*thought", "<channel|>"),  # Gemma 4
    (r"<\|channel\|>\s*\w+|<\|start\|>assistant|analysis", HARMONY_FINAL),  # gpt-oss
    (r"Here(?:'s| is) my thought process:", "Here is my response:"),
)


class Permutation(DecodeMode):
    """An order of identifiers."""

    name = "permutation"
    question = "order"
    identifiers = ("letters", "numbers")
    owners_words = {"listwise": {"answer_prefix": ""}}

    def _fit(self, template: PromptTemplate, chat: ChatTemplate) -> PromptTemplate:
        self._order_tokens = lru_cache(maxsize=None)(self._count_order_tokens)
        return template

    def form(self, window: Window) -> AnswerForm:
        num = len(window.docs)
        if window.pivot is None:
            return AnswerForm(self._order_tokens(window.num_asked, num))
        identifier = self.template.identifier(window.docs.index(window.pivot))
        return AnswerForm(self._order_tokens(num, num), stop=(f"[{identifier}]",))

    def most_tokens(self, num_passages: int) -> int:
        return self._order_tokens(num_passages, num_passages)

    def read(self, prompt: Prompt, generation: Generation, prior: Sequence[float] | None = None) -> Reading:
        window, by_letter = prompt.window, self.template.identifiers == "letters"
        parsed = parse_permutation(
            in_known_marks(prompt.opened_answer + generation.text, self.template.thoughts),
            len(window.docs),
            place_of_letter if by_letter else place_of_number,
            by_letter=by_letter,
            was_cut=generation.finish_reason == "length",
            num_asked=window.num_asked,
            pivot=None if window.pivot is None else window.docs.index(window.pivot),
        )
        return Reading(
            outcome=Outcome(tuple(window.docs[place] for place in parsed.order), parsed.num_listed),
            parse_status=parsed.status,
            num_missing=parsed.num_missing,
            num_duplicate=parsed.num_duplicate,
            num_out_of_range=parsed.num_out_of_range,
            answer=None if parsed.status == "ok" else generation.text[-MAX_ANSWER_CHARACTERS:],
        )

    def pretend(self, prompt: Prompt) -> Generation:
        docs = prompt.window.docs
        order = sorted(range(len(docs)), key=docs.__getitem__)
        return replace(super().pretend(prompt), text=THINK_END + self._written(order))

    def _count_order_tokens(self, num_named: int, num_passages: int) -> int:
        """Of the last identifiers, since those are the longest."""
        whole = self._written(range(num_passages - num_named, num_passages))
        return len(self._tokens.encode_data([whole])[0]) + ANSWER_SLACK_TOKENS

    def _written(self, places: Sequence[int]) -> str:
        return " > ".join(f"[{self.template.identifier(place)}]" for place in places)


class Reasoning(Permutation):
    """A thought, which is closed by force where it outgrows its budget, and then an order."""

    name = "reasoning"
    owners_words = {"listwise": {"answer_prefix": "", "close": f"\n{THINK_END}\n<answer>"}}
    thinks = True

    def _fit(self, template: PromptTemplate, chat: ChatTemplate) -> PromptTemplate:
        template = fit_thoughts(super()._fit(template, chat), chat)
        if not closes_thought(in_known_marks(template.close, template.thoughts)):
            raise ConfigError(
                "decode_mode reasoning needs `close` in its prompt template, with </think> or the like in it."
            )
        self._close_ids = tuple(self._tokens.encode_words(template.close).tolist())
        return template

    def form(self, window: Window) -> AnswerForm:
        num = len(window.docs)
        close = ForcedClose(self.template.close, self._close_ids, self._tagged_tokens(num), self.template.thoughts)
        return AnswerForm(self.most_tokens(num), close=close, sampling=self._thinking.sampling)

    def most_tokens(self, num_passages: int) -> int:
        return self._thinking.budget_tokens + len(self._close_ids) + 2 * self._tagged_tokens(num_passages)

    def _tagged_tokens(self, num_passages: int) -> int:
        return self._order_tokens(num_passages, num_passages) + TAG_SLACK_TOKENS


def closing_of(opening: str) -> str:
    """The mark that closes what a known one opened.

    >>> closing_of("[THINK]"), closing_of("<seed:think>")
    ('[/THINK]', '</seed:think>')
    """
    for pattern, closing in CLOSING_OF:
        if match := re.fullmatch(pattern, opening, re.IGNORECASE):
            return match.expand(closing)
    raise AssertionError(f"{opening!r} is in OPENINGS of templates.py, but not in CLOSING_OF")


def fit_thoughts(template: PromptTemplate, chat: ChatTemplate) -> PromptTemplate:
    """The template with its think marks replaced by those of the model.

    They are the template's own `thoughts`; else the mark that the chat template leaves open at the model's turn; else
    the first that it names anywhere, as for earlier turns; else they stay as they are.
    """
    opening, closing = template.thoughts or _marks_of(template, chat) or (THINK_START, THINK_END)
    if (opening, closing) == (THINK_START, THINK_END):
        return template
    return replace(
        template,
        answer_prefix=template.answer_prefix.replace(THINK_START, opening),
        close=CLOSING.sub(lambda _: closing, template.close, count=1),
    )


def _marks_of(template: PromptTemplate, chat: ChatTemplate) -> tuple[str, str] | None:
    named = OPENING.search(chat.source or "")
    opening = opened_thought(chat.render(template.messages(1, 1))) or (named[0] if named else None)
    return None if opening is None else (opening, closing_of(opening))
