"""A window's passages and its query, set into the frame as token ids that are sure to fit.

    | template + query | [A] passage | [B] passage | ... | query + template + opened answer | answer |
    |<------------------------------ max_prompt_tokens ------------------------------------>| max_tokens |

Every query up to `max_query_tokens` fits in every window, since sizes are resolved before the first prompt. Knows
nothing of blocks, batches or engines.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from tasks.errors import ConfigError, PromptTooLong
from tasks.prompt.answer_forms import AnswerForm, AnswerForms, DecodeMode
from tasks.prompt.sizes import JOIN_SLACK_TOKENS, PromptSizes
from tasks.prompt.templates import (
    THINK_START,
    ChatTemplate,
    PromptTemplate,
    is_thinking,
    one_line,
    passage_text,
    render_frame,
)
from tasks.prompt.tokens import EncodedTexts, ModelTokens, Piece
from tasks.prompt.truncation import fair_lengths
from tasks.schedule.windows import Window

FRAMES_KEPT = 8_192
NO_IDS = np.empty(0, np.int32)
NOTHING_SAID = "N/A"  # the query and every passage of a content-free prompt


@dataclass(frozen=True, slots=True)
class Prompt:
    """What the engine is asked about one window."""

    request_id: str
    window: Window
    decode_mode: DecodeMode
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


class PromptBuilder:
    """Builds the prompts of one decode mode."""

    def __init__(
        self,
        tokens: ModelTokens,
        template: PromptTemplate,
        chat: ChatTemplate,
        decode_mode: DecodeMode,
        thinking_budget_tokens: int = 1024,
    ) -> None:
        """Raises ConfigError where template, tokenizer and decode mode do not go together."""
        self.tokens = tokens
        self.decode_mode = decode_mode
        self.identifiers = template.identifiers
        self._template = template
        self._chat = chat
        self._tail = tokens.encode_data([template.passage_tail])[0]
        self._bos = tokens.bos_ids() if chat.source is None else np.empty(0, np.int32)
        self._render = lru_cache(maxsize=None)(lambda num, ask: render_frame(template, chat, num, ask))
        self._frame = lru_cache(maxsize=FRAMES_KEPT)(self._encode_frame)
        self._heads = lru_cache(maxsize=None)(self._encode_heads)
        self._opened_answer = self._check_thinking()
        self._check_tail()
        self.answers = AnswerForms(tokens, template, decode_mode, thinking_budget_tokens)

    @property
    def max_passages(self) -> int | None:
        """How many passages a prompt can tell apart; None: any number."""
        return self.answers.max_passages

    def count_query_tokens(self, texts: Sequence[str]) -> np.ndarray:
        """The tokens of each query as it stands in a prompt, 1D int32; 0 for a blank one."""
        return self.tokens.encode_end_to_end([one_line(text) for text in texts]).lengths.astype(np.int32)

    def passage_lines(self, titles: Sequence[str | None], texts: Sequence[str]) -> list[str]:
        """Each passage as it stands in a prompt, a space before it and line breaks after it; empty for a blank text."""
        tail = self._template.passage_tail
        lines = [passage_text(title, text) for title, text in zip(titles, texts, strict=True)]
        return [f" {line}{tail}" if line else "" for line in lines]

    def encode_lines(self, lines: Sequence[str]) -> EncodedTexts:
        """The token ids of passages as `passage_lines` gives them."""
        return self.tokens.encode_end_to_end(lines)

    def encode_passages(self, texts: Sequence[str]) -> list[np.ndarray]:
        """A few passages' pieces, 1D int32 each."""
        return self.encode_lines(self.passage_lines([None] * len(texts), texts)).split()

    def fixed_tokens(self, num_passages: int, max_query_tokens: int) -> int:
        """The most that a prompt holds beside its passages."""
        asks = {1, num_passages}
        num_queries = self._template.scores_query + max(
            sum(piece.kind == "query" for piece in self._render(num_passages, ask)) for ask in asks
        )
        empty = max(self._encode_frame(num_passages, ask, "").num_tokens for ask in asks)
        return empty + num_queries * (max_query_tokens + JOIN_SLACK_TOKENS)

    def frame_tokens(self, num_passages: int, num_asked: int, query: str) -> int:
        """What the prompt of a window holds beside its passages."""
        return self._frame(num_passages, num_asked, query).num_tokens

    def build(
        self,
        request_id: str,
        window: Window,
        query: str,
        passages: Sequence[np.ndarray],
        passage_tokens: Sequence[int],
        sizes: PromptSizes,
    ) -> Prompt:
        """The prompt of a window.

        Args:
            request_id: names it in every message and row.
            window: the candidates, in prompt order.
            query: its text.
            passages: their pieces, 1D int32 each, cut at `max_passage_tokens` by the token store.
            passage_tokens: their full lengths.
            sizes: what it must keep to.

        Raises:
            PromptTooLong: even passages of `min_passage_tokens` do not fit; cannot happen for a query within
                `max_query_tokens`.
        """
        frame = self._frame(len(passages), window.num_asked, query)
        full = np.fromiter(passage_tokens, np.int64, len(passages))
        room = sizes.max_prompt_tokens - frame.num_tokens
        lengths = fair_lengths(np.minimum(full, sizes.max_passage_tokens), room, sizes.min_passage_tokens)
        if lengths is None:
            raise PromptTooLong(
                f"{request_id}: {len(passages)} passages of at least {sizes.min_passage_tokens} tokens do not fit into "
                f"the {room} tokens that the query leaves of max_prompt_tokens = {sizes.max_prompt_tokens}."
            )
        pieces = list(passages)
        cut = np.flatnonzero(full > lengths).tolist()
        for place in cut:
            pieces[place] = self._cut(passages[place], int(lengths[place]))
        parts = [frame.before, *([NO_IDS] * (2 * len(pieces))), frame.after]
        parts[2:-1:2] = pieces
        parts[3:-1:2] = frame.heads
        return Prompt(
            request_id=request_id,
            window=window,
            decode_mode=self.decode_mode,
            prompt_token_ids=np.concatenate(parts),
            form=self.answers.form(window),
            num_scored_tokens=frame.num_scored_tokens,
            opened_answer=self._opened_answer,
            truncated_passages=len(cut),
            truncated_tokens=sum(int(full[place]) - len(pieces[place]) for place in cut),
        )

    def build_content_free(self, request_id: str, num_passages: int, sizes: PromptSizes) -> Prompt:
        """The prompt of a window whose query and passages say nothing (CapCal, arXiv:2604.10150)."""
        (piece,) = self.encode_passages([NOTHING_SAID])
        window = Window(tuple(range(num_passages)))
        return self.build(request_id, window, NOTHING_SAID, [piece] * num_passages, [len(piece)] * num_passages, sizes)

    def _cut(self, passage: np.ndarray, length: int) -> np.ndarray:
        """The piece in at most `length` tokens: whole characters, and line breaks of our own at the cut."""
        kept = self.tokens.character_boundary(passage, max(length - len(self._tail), 0))
        return np.concatenate([passage[:kept], self._tail])

    def _encode_frame(self, num_passages: int, ask: int, query: str) -> _Frame:
        pieces = self._render(num_passages, ask)
        place = next(number for number, piece in enumerate(pieces) if piece.kind == "passages")
        query_line = one_line(query)
        as_pieces = [
            Piece(query_line, is_data=True) if piece.kind == "query" else Piece(piece.text, is_data=False)
            for piece in pieces
        ]
        first_head = Piece(self._template.passage_head(0), is_data=False)
        before = self.tokens.encode_pieces([*as_pieces[:place], first_head])
        scored = self.tokens.encode_data([query_line])[0] if self._template.scores_query else np.empty(0, np.int32)
        return _Frame(
            before=np.concatenate([self._bos, before]),
            heads=self._heads(num_passages),
            after=np.concatenate([self.tokens.encode_pieces(as_pieces[place + 1 :]), scored]),
            num_scored_tokens=len(scored),
        )

    def _encode_heads(self, num_passages: int) -> tuple[np.ndarray, ...]:
        """Of the passages after the first; the same for every query."""
        heads = [self._template.passage_head(number) for number in range(1, num_passages)]
        return tuple(self.tokens.encode_data(heads))

    def _check_thinking(self) -> str:
        """What of the model's turn stands in every prompt: nothing, or an opened think block.

        Raises:
            ConfigError: a think block is open where the first token is to be the answer: it would be a thought's, the
                same for all (lilbee#503: every score 0.0, order unchanged, no error).
        """
        opened = is_thinking("".join(piece.text for piece in self._render(1, 1)))
        if opened and self.decode_mode != "reasoning":
            raise ConfigError(
                f"decode_mode {self.decode_mode}: the model's chat template opens a {THINK_START} block, so the first "
                "token would be a thought and no answer. Set [prompt] chat_template_kwargs = {enable_thinking = false} "
                "if the template knows it, or decode_mode = 'reasoning'."
            )
        return THINK_START if opened else ""

    def _check_tail(self) -> None:
        """Whether passages that end in two line breaks can be tokenised apart: GPT-2 splits such a run before a mark.

        Raises:
            ConfigError: the ids would not be those of the whole text.
        """
        tail = self._template.passage_tail
        parts = ["[1]", f" a.{tail}", "[2]", f" b{tail}", "[3]"]
        apart = np.concatenate(self.tokens.encode_data(parts))
        if len(tail) > 1 and not np.array_equal(apart, self.tokens.encode_data(["".join(parts)])[0]):
            raise ConfigError(
                f"the prompt template ends a passage with {tail!r}, which the tokenizer joins with what follows: "
                "passages could not be tokenised once. End it with one line break, or take another template."
            )
