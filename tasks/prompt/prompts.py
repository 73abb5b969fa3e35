"""A window's passages and its query, set into the frame as token ids that are sure to fit.

    | template + query | [A] passage | [B] passage | ... | query + template + opened answer | answer |
    |<------------------------------ max_prompt_tokens ------------------------------------>| max_tokens |

Sizes are resolved once, from settings and template: every query up to `max_query_tokens` then fits in every window.
Knows nothing of blocks, batches or engines.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np

from tasks.errors import ConfigError, PromptTooLong
from tasks.prompt.templates import ChatTemplate, PromptTemplate, one_line, passage_text, render_frame
from tasks.prompt.tokens import ModelTokens, Piece
from tasks.prompt.truncation import fair_lengths
from tasks.schedule.windows import Window

DecodeMode = Literal["first_token", "permutation"]

DEFAULT_WINDOW_SIZE = 20  # where "auto" starts: RankGPT's
ANSWER_SLACK_TOKENS = 4  # a leading space or line break, and the end-of-turn token
JOIN_SLACK_TOKENS = 8  # a query joined to the words around it may take a token more than alone
MAX_LOGPROB_TOKEN_IDS = 128  # vllm/sampling_params.py
FRAMES_KEPT = 8_192


@dataclass(frozen=True, slots=True)
class PromptSizes:
    """The lengths that every prompt of a run keeps to: part of the run's identity."""

    window_size: int
    max_model_len: int
    max_prompt_tokens: int
    max_query_tokens: int
    max_passage_tokens: int
    min_passage_tokens: int


@dataclass(frozen=True, slots=True)
class Prompt:
    """What the engine is asked about one window."""

    request_id: str
    window: Window
    prompt_token_ids: np.ndarray  # 1D int32
    max_tokens: int
    logprob_token_ids: tuple[int, ...] | None  # of the identifiers, in prompt order; only for first_token
    truncated_passages: int
    truncated_tokens: int  # passage tokens left out

    @property
    def prompt_tokens(self) -> int:
        """Its length as sent."""
        return len(self.prompt_token_ids)


@dataclass(frozen=True, slots=True)
class _Frame:
    """The prompt's fixed parts for one query and number of passages: 1D int32 each."""

    before: np.ndarray  # up to and with the first passage's head
    heads: tuple[np.ndarray, ...]  # of the passages after the first
    after: np.ndarray

    @property
    def num_tokens(self) -> int:
        return len(self.before) + sum(map(len, self.heads)) + len(self.after)


class PromptBuilder:
    """Builds the prompts of one run."""

    def __init__(
        self, tokens: ModelTokens, template: PromptTemplate, chat: ChatTemplate, decode_mode: DecodeMode
    ) -> None:
        self.tokens = tokens
        self.decode_mode = decode_mode
        self.identifiers = template.identifiers
        self._template = template
        self._chat = chat
        self._line_break = tokens.encode_data(["\n"])[0]
        self._bos = tokens.bos_ids() if chat.source is None else np.empty(0, np.int32)
        self._render = lru_cache(maxsize=None)(lambda num: render_frame(template, chat, num))
        self._frame = lru_cache(maxsize=FRAMES_KEPT)(self._encode_frame)
        self._max_tokens = lru_cache(maxsize=None)(self._answer_tokens)
        self.identifier_ids = self._identifier_ids() if decode_mode == "first_token" else None

    def count_query_tokens(self, texts: Sequence[str]) -> np.ndarray:
        """The tokens of each query as it stands in a prompt, 1D int32; 0 for a blank one."""
        encoded = self.tokens.encode_data([one_line(text) for text in texts])
        return np.array([len(ids) for ids in encoded], np.int32)

    def encode_passages(self, titles: Sequence[str | None], texts: Sequence[str]) -> list[np.ndarray]:
        """Each passage's piece, a space before it and a line break after it, 1D int32; empty for a blank text."""
        lines = [passage_text(title, text) for title, text in zip(titles, texts, strict=True)]
        return self.tokens.encode_data([f" {line}\n" if line else "" for line in lines])

    def answer_tokens(self, num_passages: int) -> int:
        """`max_tokens` for a window of this many passages."""
        return self._max_tokens(num_passages)

    def fixed_tokens(self, num_passages: int, max_query_tokens: int) -> int:
        """The most that a prompt holds beside its passages."""
        pieces = self._render(num_passages)
        num_queries = sum(piece.kind == "query" for piece in pieces)
        empty = self._encode_frame(num_passages, "")
        return empty.num_tokens + num_queries * (max_query_tokens + JOIN_SLACK_TOKENS)

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
        frame = self._frame(len(passages), query)
        full = np.fromiter(passage_tokens, np.int64, len(passages))
        room = sizes.max_prompt_tokens - frame.num_tokens
        lengths = fair_lengths(np.minimum(full, sizes.max_passage_tokens), room, sizes.min_passage_tokens)
        if lengths is None:
            raise PromptTooLong(
                f"{request_id}: {len(passages)} passages of at least {sizes.min_passage_tokens} tokens do not fit into "
                f"the {room} tokens that the query leaves of max_prompt_tokens = {sizes.max_prompt_tokens}."
            )
        pieces = [self._cut(*each) for each in zip(passages, full.tolist(), lengths.tolist(), strict=True)]
        heads = (np.empty(0, np.int32), *frame.heads)
        ids = [frame.before, *(part for pair in zip(heads, pieces, strict=True) for part in pair), frame.after]
        cut = [length - len(piece) for length, piece in zip(full.tolist(), pieces, strict=True)]
        return Prompt(
            request_id=request_id,
            window=window,
            prompt_token_ids=np.concatenate(ids),
            max_tokens=self.answer_tokens(len(passages)),
            logprob_token_ids=self.identifier_ids[: len(passages)] if self.identifier_ids is not None else None,
            truncated_passages=sum(tokens > 0 for tokens in cut),
            truncated_tokens=sum(cut),
        )

    def max_window_size(self) -> int | None:
        """How many passages the template and the engine can tell apart; None: any number."""
        if self.identifier_ids is None:
            return self._template.max_identifiers
        return min(len(self.identifier_ids), MAX_LOGPROB_TOKEN_IDS)

    def _cut(self, passage: np.ndarray, full_length: int, length: int) -> np.ndarray:
        """The piece in at most `length` tokens: whole characters, and a line break of our own at the cut."""
        if full_length <= length:
            return passage
        kept = self.tokens.character_boundary(passage, max(length - len(self._line_break), 0))
        return np.concatenate([passage[:kept], self._line_break])

    def _encode_frame(self, num_passages: int, query: str) -> _Frame:
        pieces = self._render(num_passages)
        place = next(number for number, piece in enumerate(pieces) if piece.kind == "passages")
        query_line = one_line(query)
        as_pieces = [
            Piece(query_line, is_data=True) if piece.kind == "query" else Piece(piece.text, is_data=False)
            for piece in pieces
        ]
        heads = [self._template.passage_head(number) for number in range(num_passages)]
        before = self.tokens.encode_pieces([*as_pieces[:place], Piece(heads[0], is_data=False)])
        return _Frame(
            before=np.concatenate([self._bos, before]),
            heads=tuple(self.tokens.encode_data(heads[1:])),
            after=self.tokens.encode_pieces(as_pieces[place + 1 :]),
        )

    def _answer_tokens(self, num_passages: int) -> int:
        if self.decode_mode == "first_token":
            return 1
        whole = " > ".join(f"[{self._template.identifier(place)}]" for place in range(num_passages))
        return len(self.tokens.encode_data([whole])[0]) + ANSWER_SLACK_TOKENS

    def _identifier_ids(self) -> tuple[int, ...]:
        """The token id of each letter behind the opened answer.

        Raises:
            ConfigError: the template names by numbers, or the tokenizer joins a letter with what stands before it.
        """
        limit = self._template.max_identifiers
        if limit is None:
            raise ConfigError("decode_mode first_token needs a prompt template with identifiers = 'letters'")
        opening = self._template.answer_prefix
        prefix = self.tokens.encode_data([opening])[0].tolist() if opening else []
        ids: list[int] = []
        for place in range(limit):
            encoded = self.tokens.encode_data([opening + self._template.identifier(place)])[0].tolist()
            if encoded[: len(prefix)] != prefix or len(encoded) != len(prefix) + 1 or encoded[-1] in ids:
                break
            ids.append(encoded[-1])
        if len(ids) < 2:
            raise ConfigError(
                f"decode_mode first_token: the model's tokenizer has no single token for a letter after {opening!r}. "
                "Change answer_prefix in the prompt template, or set [strategy] decode_mode = 'permutation'."
            )
        return tuple(ids)


def resolve_sizes(
    builder: PromptBuilder,
    *,
    window_size: int | Literal["auto"],
    max_model_len: int,
    max_prompt_tokens: int | None,
    max_query_tokens: int,
    max_passage_tokens: int,
    min_passage_tokens: int,
) -> PromptSizes:
    """Settles the window and the prompt's length from settings and template alone.

    Raises:
        ConfigError: more passages a window than identifiers, or a prompt longer than the engine takes.
        PromptTooLong: the window does not fit; the message says which one would.
    """
    limit = builder.max_window_size()
    if window_size != "auto" and limit is not None and window_size > limit:
        raise ConfigError(
            f"[strategy] window_size = {window_size} must be at most {limit}: the prompt has {limit} identifiers of "
            "one token. Use a smaller window, or decode_mode = 'permutation' with numbers."
        )
    wanted = min(DEFAULT_WINDOW_SIZE, limit or DEFAULT_WINDOW_SIZE) if window_size == "auto" else window_size

    def prompt_limit(size: int) -> int:
        longest = max_model_len - builder.answer_tokens(size)
        return longest if max_prompt_tokens is None else min(max_prompt_tokens, longest)

    def needed(size: int) -> int:
        return builder.fixed_tokens(size, max_query_tokens) + size * min_passage_tokens

    if max_prompt_tokens is not None and max_prompt_tokens > max_model_len - builder.answer_tokens(wanted):
        raise ConfigError(
            f"[prompt] max_prompt_tokens = {max_prompt_tokens} and an answer of {builder.answer_tokens(wanted)} tokens "
            f"do not fit into [engine] max_model_len = {max_model_len}. At most "
            f"{max_model_len - builder.answer_tokens(wanted)} would."
        )
    fitting = next((size for size in range(wanted, 1, -1) if needed(size) <= prompt_limit(size)), None)
    if fitting is None or (window_size != "auto" and fitting < wanted):
        advice = f"window_size <= {fitting} would fit" if fitting else "no window fits: raise max_model_len"
        raise PromptTooLong(
            f"[strategy] window_size = {wanted}: a prompt may need {needed(wanted)} tokens (query up to "
            f"{max_query_tokens}, each passage at least {min_passage_tokens}), but only {prompt_limit(wanted)} fit. "
            f"{advice}, or lower [prompt] max_query_tokens or min_passage_tokens."
        )
    return PromptSizes(
        window_size=fitting,
        max_model_len=max_model_len,
        max_prompt_tokens=prompt_limit(fitting),
        max_query_tokens=max_query_tokens,
        max_passage_tokens=max_passage_tokens,
        min_passage_tokens=min_passage_tokens,
    )
