"""A window's passages and its query, set into the frame as token ids that are sure to fit.

    | template + query | [A] passage | [B] passage | ... | query + template + opened answer | answer |
    |<------------------------------ max_prompt_tokens ------------------------------------>| max_tokens |

A passage is its text, or its fields and its text, tokenised apart with a line break between them. Where it has to be
shorter, text goes first.

Every query up to `max_query_tokens` fits in every window, since sizes are resolved before the first prompt. Knows
nothing of blocks, batches or engines.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from tasks.prompt.answer_forms import AnswerForm, AnswerForms
from tasks.prompt.chat_template import ChatTemplate
from tasks.prompt.passages import FieldPieces, PassagePieces
from tasks.prompt.sizes import JOIN_SLACK_TOKENS, PromptSizes, fair_lengths
from tasks.prompt.templates import render_frame
from tasks.prompt.tokens import EncodedTexts, ModelTokens, Piece
from tasks.schedule.windows import Window
from tasks.system.errors import ConfigError, PromptTooLong

FRAMES_KEPT = 8_192
NO_IDS = np.empty(0, np.int32)
NOTHING_SAID = "N/A"  # the query and every passage of a content-free prompt
PLAIN_TAIL = "\n"  # after which every tokenizer begins anew
# Beginnings and ends of passages that a tokenizer might join with what stands beside them.
PROBES = ("a", "Why?", "(3)", '"b."', "7", "비가 온다", "-", "'s")
PROBES_WITH_LINES = (*PROBES, "\na\n", "  a  ", "\t\n a \r\n", "a\n\n\n", "\n\n'b", "a. \n")


@dataclass(frozen=True, slots=True)
class Prompt:
    """What the engine is asked about one window."""

    request_id: str
    window: Window
    decode_mode: str
    prompt_token_ids: np.ndarray  # 1D int32
    form: AnswerForm
    num_scored_tokens: int  # of the prompt, at its end: the query in query_likelihood, else 0
    opened_answer: str  # what of the model's turn stands in the prompt already
    truncated_passages: int
    truncated_tokens: int  # passage tokens left out

    @property
    def prompt_tokens(self) -> int:
        """Its length as sent."""
        return len(self.prompt_token_ids)

    @property
    def max_tokens(self) -> int:
        """The longest that its answer may be."""
        return self.form.max_tokens

    @property
    def has_one_token_answer(self) -> bool:
        """Whether it never grows in the engine."""
        return self.form.max_tokens == 1


@dataclass(frozen=True, slots=True)
class _Frame:
    """The prompt's fixed parts for one query, number of passages and number asked for: 1D int32 each."""

    before: np.ndarray  # up to and with the first passage's head
    heads: tuple[np.ndarray, ...]  # of the passages after the first
    after: np.ndarray
    num_scored_tokens: int  # at the end of `after`

    @property
    def num_tokens(self) -> int:
        return len(self.before) + sum(map(len, self.heads)) + len(self.after)

    def around(self, passages: Sequence[np.ndarray]) -> np.ndarray:
        """The whole prompt, 1D int32."""
        parts = [self.before, *([NO_IDS] * (2 * len(passages))), self.after]
        parts[2:-1:2] = passages
        parts[3:-1:2] = self.heads
        return np.concatenate(parts)


class PromptBuilder:
    """Builds the prompts of one decode mode."""

    def __init__(self, tokens: ModelTokens, chat: ChatTemplate, mode: AnswerForms) -> None:
        """Raises ConfigError where template, tokenizer and decode mode do not go together."""
        template = mode.template
        self.tokens = tokens
        self.mode = mode
        self.template = template  # in the form that fits the tokenizer
        self.writes_date = chat.writes_date(template.messages(1, 1))
        self._chat = chat
        writes_bos = template.turns == "none" or chat.source is not None
        self._bos = NO_IDS if writes_bos else tokens.bos_ids()
        self._render = lru_cache(maxsize=None)(lambda num, ask: render_frame(template, chat, num, ask))
        self._lead = next(piece.text for piece in self._render(1, 1) if piece.kind == "passage")
        self._passages = PassagePieces(tokens, template, self._lead)
        self._frame = lru_cache(maxsize=FRAMES_KEPT)(self._encode_frame)
        self._heads = lru_cache(maxsize=None)(self._encode_heads)
        self._check_pieces()

    def count_query_tokens(self, texts: Sequence[str]) -> np.ndarray:
        """The tokens of each query as it stands in a prompt, 1D int32; 0 for a blank one."""
        queries = [self.template.data(text) if text.strip() else "" for text in texts]
        return self.tokens.encode_end_to_end(queries).lengths.astype(np.int32)

    def passage_lines(self, titles: Sequence[str | None], texts: Sequence[str]) -> list[str]:
        """Each passage's text as it stands in a prompt, with what is its own on either side; empty for a blank one."""
        return self._passages.lines(titles, texts)

    def field_lines(self, values: Sequence[Sequence[str | None]]) -> list[str]:
        """The fields of each passage as they stand in a prompt; `values` are in the order of the template's fields."""
        return self._passages.field_lines(values)

    @property
    def passage_form(self) -> tuple[str, ...]:
        """What decides a passage's ids beside its text and fields: the same for all that share passages."""
        return self._passages.form

    def encode_lines(self, lines: Sequence[str]) -> EncodedTexts:
        """The token ids of passages as `passage_lines` gives them."""
        return self.tokens.encode_end_to_end(lines)

    def encode_passages(self, texts: Sequence[str]) -> list[np.ndarray]:
        """The pieces of a few passages without fields, 1D int32 each."""
        return self.encode_lines(self._passages.bare_lines(texts)).split()

    def fixed_tokens(self, num_passages: int, max_query_tokens: int) -> int:
        """The most that a prompt holds beside its passages."""
        asks = {1, num_passages}
        num_queries = self.template.scores_query + max(
            sum(piece.kind == "query" for piece in self._render(num_passages, ask)) for ask in asks
        )
        empty = max(self._encode_frame(num_passages, ask, "").num_tokens for ask in asks)
        return empty + num_queries * (max_query_tokens + JOIN_SLACK_TOKENS)

    def frame_tokens(self, num_passages: int, num_asked: int, query: str) -> int:
        """What the prompt of a window holds beside its passages."""
        return self._frame(num_passages, num_asked, query).num_tokens

    def build(  # noqa: PLR0913  the parts of a prompt
        self,
        request_id: str,
        window: Window,
        query: str,
        passages: Sequence[np.ndarray],
        passage_tokens: Sequence[int],
        sizes: PromptSizes,
        fields: FieldPieces | None = None,
    ) -> Prompt:
        """The prompt of a window.

        Args:
            request_id: names it in every message and row.
            window: the candidates, in prompt order.
            query: its text.
            passages: their pieces, 1D int32 each, cut at `max_passage_tokens` by the token store.
            passage_tokens: their full lengths.
            sizes: what it must keep to.
            fields: what stands beside the passages; they count as part of them.

        Raises:
            PromptTooLong: even passages of `min_passage_tokens` do not fit; cannot happen for a query within
                `max_query_tokens`.
        """
        frame = self._frame(len(passages), window.num_asked, query)
        full = np.fromiter(passage_tokens, np.int64, len(passages))
        if fields is not None:
            full += np.asarray(fields.num_tokens, np.int64)
        room = sizes.max_prompt_tokens - frame.num_tokens
        lengths = fair_lengths(np.minimum(full, sizes.max_passage_tokens), room, sizes.min_passage_tokens)
        if lengths is None:
            raise PromptTooLong(
                f"{request_id}: {len(passages)} passages of at least {sizes.min_passage_tokens} tokens do not fit into "
                f"the {room} tokens that the query leaves of max_prompt_tokens = {sizes.max_prompt_tokens}."
            )
        cut = np.flatnonzero(full > lengths).tolist()
        pieces = list(passages) if fields is None else list(map(self._passages.joined, fields.pieces, passages))
        for place in cut:
            pieces[place] = self._cut(place, passages, fields, int(lengths[place]))
        return Prompt(
            request_id=request_id,
            window=window,
            decode_mode=self.mode.name,
            prompt_token_ids=frame.around(pieces),
            form=self.mode.form(window),
            num_scored_tokens=frame.num_scored_tokens,
            opened_answer=self.mode.opened_answer,
            truncated_passages=len(cut),
            truncated_tokens=sum(int(full[place]) - len(pieces[place]) for place in cut),
        )

    def build_content_free(self, request_id: str, window: Window, sizes: PromptSizes) -> Prompt:
        """The prompt of a window whose query and passages say nothing (contextual calibration, arXiv:2102.09690)."""
        (piece,) = self.encode_passages([NOTHING_SAID])
        num = len(window.docs)
        return self.build(request_id, window, NOTHING_SAID, [piece] * num, [len(piece)] * num, sizes)

    def _cut(
        self, place: int, passages: Sequence[np.ndarray], fields: FieldPieces | None, num_tokens: int
    ) -> np.ndarray:
        if fields is None:
            return self._passages.cut(passages[place], num_tokens)
        own = fields.pieces[place], int(fields.num_tokens[place])
        return self._passages.cut_joined(*own, passages[place], num_tokens)

    def _encode_frame(self, num_passages: int, ask: int, query: str) -> _Frame:
        pieces = self._render(num_passages, ask)
        first, last = self._ends(num_passages, ask)
        data = self.template.data(query)
        as_pieces = [
            Piece(data, is_data=True) if piece.kind == "query" else Piece(piece.text, is_data=False) for piece in pieces
        ]
        scored = self.tokens.encode_data([data])[0] if self.template.scores_query else NO_IDS
        return _Frame(
            before=np.concatenate([self._bos, self.tokens.encode_pieces(as_pieces[:first])]),
            heads=self._heads(num_passages),
            after=np.concatenate([self.tokens.encode_pieces(as_pieces[last + 1 :]), scored]),
            num_scored_tokens=len(scored),
        )

    def _encode_heads(self, num_passages: int) -> tuple[np.ndarray, ...]:
        """Of the passages after the first; the same for every query."""
        first, last = self._ends(num_passages, num_passages)
        between = self._render(num_passages, num_passages)[first + 1 : last : 2]
        return tuple(self.tokens.encode_words(piece.text) for piece in between)

    def _ends(self, num_passages: int, ask: int) -> tuple[int, int]:
        """The places of the first and the last passage among the frame's pieces; between two stand words."""
        first = next(place for place, piece in enumerate(self._render(num_passages, ask)) if piece.kind == "passage")
        return first, first + 2 * (num_passages - 1)

    def _check_pieces(self) -> None:
        """Whether passages of another form than " {text}" and a line break can be tokenised apart.

        GPT-2 splits two line breaks before a mark, and the texts' own line breaks are joined with those behind them.

        Raises:
            ConfigError: the ids would not be those of the whole text.
        """
        plain_tails = {self.template.passage_tail, self.template.form.tail} == {PLAIN_TAIL}
        if plain_tails and (self._lead, self.template.lines) == (" ", "one"):
            return
        probes = PROBES_WITH_LINES if self.template.lines == "keep" else PROBES
        num = self.template.max_identifiers or len(probes)
        batches = [probes[place : place + num] for place in range(0, len(probes), num)]
        if not (self._stand_apart() and all(map(self._is_as_one, batches))):
            raise ConfigError(
                f"the prompt template ends a passage with {self.template.passage_tail!r} and has lines = "
                f"{self.template.lines!r}: the model's tokenizer joins such a passage with what stands beside it, so "
                "passages could not be tokenised once. End it with one line break, keep lines = 'one', or take another "
                "template."
            )

    def _stand_apart(self) -> bool:
        """Whether passages without a space before or a line break behind have an added token there instead."""
        num = min(2, self.template.max_identifiers or 2)
        pieces = self._render(num, num)
        places = [place for place, piece in enumerate(pieces) if piece.kind == "passage"]
        begin = self._lead or all(place == 0 or self._ends_anew(pieces[place - 1].text) for place in places)
        behind = ["".join(piece.text for piece in pieces[place + 1 : place + 2]) for place in places]
        end = self.template.form.tail or all(map(self.tokens.begins_with_added, behind))
        return bool(begin and end)

    def _ends_anew(self, words: str) -> bool:
        is_new_line = words.endswith("\n") and self.template.lines == "one"
        return is_new_line or self.tokens.ends_with_added(words)

    def _is_as_one(self, texts: Sequence[str]) -> bool:
        """Whether a prompt of these passages has the ids that it has as one text."""
        frame = self._encode_frame(len(texts), len(texts), "a")
        shown = [self.passage_lines([None] * len(texts), texts)]
        if self.template.fields:
            fields = self.field_lines([[text] * len(self.template.fields) for text in texts])
            shown.insert(len(shown) * self.template.form.text_first, fields)
        lines = map("".join, zip(*shown, strict=True))
        whole = [
            Piece(piece.text, is_data=False)
            if piece.kind == "words"
            else Piece("a" if piece.kind == "query" else next(lines), is_data=True)
            for piece in self._render(len(texts), len(texts))
        ]
        ids = np.concatenate([self._bos, self.tokens.encode_pieces(whole)])
        pieces = zip(*(self.encode_lines(each).split() for each in shown), strict=True)
        around = frame.around(list(map(np.concatenate, pieces)))
        return np.array_equal(ids, around[: len(around) - frame.num_scored_tokens])
