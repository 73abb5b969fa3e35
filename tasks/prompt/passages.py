r"""A passage as pieces of token ids: its text, or its fields and its text, with a line break between them.

    before the text   " score: 12.31 | price: 19.90\n" + "Tides: the moon pulls.\n"
    behind it         " Tides: the moon pulls.\n" + "BM25 score: 12.310\n"

Each is tokenised once. Where a passage has to be shorter its text is cut, and its fields only where they alone are too
long. Knows nothing of windows or frames.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tasks.prompt.templates import PromptTemplate
from tasks.prompt.tokens import ModelTokens


@dataclass(frozen=True, slots=True)
class FieldPieces:
    """The fields of a window's passages, in prompt order."""

    pieces: Sequence[np.ndarray]  # 1D int32 each, cut at `max_passage_tokens`
    num_tokens: Sequence[int]  # of each before the cut


class PassagePieces:
    """Writes, joins and cuts the passages of one template."""

    def __init__(self, tokens: ModelTokens, template: PromptTemplate, lead: str) -> None:
        """`lead`: the space before a passage, or nothing."""
        self._tokens = tokens
        self._template = template
        self._lead = lead
        self._form = template.form
        self._fields_first = bool(template.fields) and not self._form.text_first
        self._tail, self._fields_tail = tokens.encode_data([template.passage_tail, self._form.fields_tail])

    @property
    def form(self) -> tuple[str, ...]:
        """What decides the pieces beside texts and fields: the same for all that share them."""
        words = self._lead, self._template.passage_tail, self._template.lines
        if not self._template.fields:
            return words
        place = "behind" if self._form.text_first else "before"
        return (*words, place, self._form.fields_tail, self._template.field, *self._template.fields)

    def lines(self, titles: Sequence[str | None], texts: Sequence[str]) -> list[str]:
        """Each text with what is its own on either side; empty for a blank one."""
        lines = [self._template.passage_text(title, text) for title, text in zip(titles, texts, strict=True)]
        if self._fields_first:  # whose line break it stands behind
            return [f"{line.lstrip()}{self._template.passage_tail}" if line else "" for line in lines]
        return list(map(self._bare, lines))

    def bare_lines(self, texts: Sequence[str]) -> list[str]:
        """Passages that have no fields."""
        return [self._bare(self._template.passage_text(None, text)) for text in texts]

    def field_lines(self, values: Sequence[Sequence[str | None]]) -> list[str]:
        """The fields of each passage; of one without any only what the text then needs on that side."""
        lead, tail = self._lead if self._fields_first else "", self._form.fields_tail
        nothing = lead if self._fields_first else tail[1:]  # a line break stands behind the text already
        return [f"{lead}{line}{tail}" if line else nothing for line in map(self._template.field_line, values)]

    def joined(self, fields: np.ndarray, text: np.ndarray) -> np.ndarray:
        """The whole passage, 1D int32."""
        return np.concatenate([fields, text] if self._fields_first else [text, fields])

    def cut(self, text: np.ndarray, num_tokens: int) -> np.ndarray:
        """The text in at most `num_tokens`: whole characters, and line breaks of our own at the cut."""
        return self._ended(text, num_tokens, self._tail)

    def cut_joined(self, fields: np.ndarray, num_field_tokens: int, text: np.ndarray, num_tokens: int) -> np.ndarray:
        """The whole passage in at most `num_tokens`, `num_field_tokens` being those of its fields before any cut."""
        if num_field_tokens + len(self._tail) <= num_tokens:
            return self.joined(fields, self.cut(text, num_tokens - num_field_tokens))
        if not self._fields_first:  # the text's line break stays between head and fields
            num_tokens = max(num_tokens - len(self._tail), 0)
        kept = fields if num_field_tokens <= num_tokens else self._ended(fields, num_tokens, self._fields_tail)
        return kept if self._fields_first else np.concatenate([self._tail, kept])

    def _ended(self, piece: np.ndarray, num_tokens: int, tail: np.ndarray) -> np.ndarray:
        kept = self._tokens.character_boundary(piece, max(num_tokens - len(tail), 0))
        return np.concatenate([piece[:kept], tail])

    def _bare(self, line: str) -> str:
        return f"{self._lead}{line}{self._template.passage_tail}" if line else ""
