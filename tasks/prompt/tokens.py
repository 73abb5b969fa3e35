"""The model's tokenizer, with one rule: no added-token id, special or not, ever comes from data.

White space is ordinary text even where it is an added token, as line breaks and tabs are in Gemma 3. Loads
`tokenizer.json` with the tokenizers library, which needs neither torch nor the model. Knows nothing of prompts.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from tasks.prompt.model_files import read_model_text
from tasks.system.errors import ConfigError, first_line

CONTINUATION_BYTES = range(0x80, 0xC0)  # a token that starts with one of these starts inside a character
WORDS_KEPT = 1_024  # a template has a few stretches for every window size


@dataclass(frozen=True, slots=True)
class EncodedTexts:
    """Texts as ids, end to end: no array a text."""

    ids: np.ndarray  # 1D int32, all texts
    lengths: np.ndarray  # 1D int64, of each

    def split(self) -> list[np.ndarray]:
        """Each text's ids."""
        return np.split(self.ids, np.cumsum(self.lengths)[:-1]) if len(self.lengths) else []


@dataclass(frozen=True, slots=True)
class Piece:
    """A stretch of a prompt: words of ours or of the template, or data."""

    text: str
    is_data: bool


class ModelTokens:
    """Text to token ids and back, for one model."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._tokenizer.encode_special_tokens = True  # '<|im_end|>' in data becomes plain ids
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        added_tokens = {
            added.content: (token_id, added)
            for token_id, added in tokenizer.get_added_tokens_decoder().items()
            if added.content and (added.special or not added.content.isspace())
        }
        self._added = {content: token_id for content, (token_id, _) in added_tokens.items()}
        self._strips_left = {content for content, (_, added) in added_tokens.items() if added.lstrip}
        self._strips_right = {content for content, (_, added) in added_tokens.items() if added.rstrip}
        self._is_added = np.zeros(max(tokenizer.get_vocab(with_added_tokens=True).values(), default=0) + 1, bool)
        self._is_added[list(self._added.values())] = True
        self._added_pattern = re.compile(
            "|".join(
                rf"(?<!\w){re.escape(text)}(?!\w)" if added_tokens[text][1].single_word else re.escape(text)
                for text in sorted(self._added, key=len)[::-1]
            )
        )
        self._words = lru_cache(WORDS_KEPT)(lambda text: self.encode_data([text])[0])
        self._anchor = _anchor(tokenizer)
        self._starts_inside = _starting_inside_a_character(tokenizer)

    @property
    def added_ids(self) -> frozenset[int]:
        """The ids that only the template may write."""
        return frozenset(self._added.values())

    @property
    def vocab_size(self) -> int:
        """Ids are below this."""
        return self._tokenizer.get_vocab_size(with_added_tokens=True)

    def encode_data(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Each text's ids, 1D int32: see `encode_end_to_end`."""
        return self.encode_end_to_end(texts).split()

    def encode_end_to_end(self, texts: Sequence[str]) -> EncodedTexts:
        """The texts' ids, none of them an added token's.

        `encode_special_tokens` covers special tokens only: a text that holds '</think>' as a plain added token is
        split inside it and the halves are encoded apart.
        """
        parts = [self._split(text) if self._holds_added(text) else [text] for text in texts]
        encoded = self._encode([part for halves in parts for part in halves])
        if len(encoded.lengths) == len(texts):
            return encoded
        first_parts = np.concatenate([[0], np.cumsum([len(halves) for halves in parts])[:-1]])
        has_parts = np.array([len(halves) > 0 for halves in parts])
        lengths = np.zeros(len(texts), np.int64)
        lengths[has_parts] = np.add.reduceat(encoded.lengths, first_parts[has_parts])
        return EncodedTexts(encoded.ids, lengths)

    def encode_pieces(self, pieces: Sequence[Piece]) -> np.ndarray:
        """The ids of the joined pieces, 1D int32: as the tokenizer would write the string, but for added tokens.

        An added token's string gives its id where it lies wholly inside words of ours, and takes the white space beside
        it where the tokenizer says so (Phi-3's rstrip); where data takes part in it, it is split.
        """
        text = "".join(piece.text for piece in pieces)
        data_spans = _data_spans(pieces)
        parts, place = [], 0
        for start, end, token_id in self._template_tokens(data_spans, text):
            parts += [self._stretch(text, place, start, data_spans), np.array([token_id], np.int32)]
            place = end
        return np.concatenate([*parts, self._stretch(text, place, len(text), data_spans)])

    def _stretch(self, text: str, first: int, last: int, data_spans: Sequence[tuple[int, int]]) -> np.ndarray:
        """The ids of what stands between two added tokens; words of ours alone are encoded once for all queries."""
        has_data = any(start < last and first < end for start, end in data_spans)
        return self.encode_data([text[first:last]])[0] if has_data else self._words(text[first:last])

    def begins_with_added(self, text: str) -> bool:
        """Whether an added token stands first, so that nothing before it is joined with the text."""
        match = self._added_pattern.match(text) if self._added else None
        return match is not None and match.group() not in self._strips_left

    def ends_with_added(self, text: str) -> bool:
        """Whether an added token stands last, so that nothing behind it is joined with the text."""
        last = max(self._added_pattern.finditer(text), key=re.Match.end, default=None) if self._added else None
        return last is not None and last.end() == len(text) and last.group() not in self._strips_right

    def encode_words(self, text: str) -> np.ndarray:
        """The ids of words of ours, 1D int32: an added token's string gives its id."""
        return self.encode_pieces([Piece(text, is_data=False)])

    def single_token(self, opening: str, text: str) -> int | None:
        """The id of `text` behind `opening`, words of ours; None where it is not one token, or is joined with them."""
        prefix = self.encode_words(opening).tolist() if opening else []
        whole = self.encode_words(opening + text).tolist()
        return whole[-1] if whole[:-1] == prefix and len(whole) == len(prefix) + 1 else None

    def bos_ids(self) -> np.ndarray:
        """What the tokenizer itself puts before a text, for models without a chat template: 1D int32, may be empty."""
        ids = self._tokenizer.encode("a", add_special_tokens=True).ids
        plain = self._tokenizer.encode("a", add_special_tokens=False).ids
        return np.array(ids[: len(ids) - len(plain)] if ids[-len(plain) :] == plain else [], np.int32)

    def character_boundary(self, ids: np.ndarray, num_tokens: int) -> int:
        """The largest k <= num_tokens for which ids[:k] ends between two characters."""
        while 0 < num_tokens < len(ids) and self._starts_inside[ids[num_tokens]]:
            num_tokens -= 1
        return num_tokens

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids, added tokens included."""
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=False))

    def _holds_added(self, text: str) -> bool:
        return bool(self._added) and self._added_pattern.search(text) is not None

    def _split(self, text: str) -> list[str]:
        """Cuts the text inside every occurrence of an added token's string, until none is left."""
        match = self._added_pattern.search(text)
        if match is None:
            return [text]
        middle = match.start() + max(1, (match.end() - match.start()) // 2)
        if len(match.group()) == 1:  # a one-character added token cannot be split: it is left out
            return [part for half in (text[: match.start()], text[match.end() :]) if half for part in self._split(half)]
        return self._split(text[:middle]) + self._split(text[middle:])

    def _encode(self, texts: Sequence[str]) -> EncodedTexts:
        """A normaliser may still build an added token out of other characters; it is left out."""
        anchored = [self._anchor.text + text for text in texts] if self._anchor.text else list(texts)
        if len(anchored) == 1:  # a batch of one would wake the tokenizer's threads: 0.1 ms
            encoded = [self._tokenizer.encode(anchored[0], add_special_tokens=False)]
        else:  # without offsets: an eighth less time
            encoded = self._tokenizer.encode_batch_fast(anchored, add_special_tokens=False)
        listed = [each.ids[self._anchor.num_tokens :] if self._anchor.num_tokens else each.ids for each in encoded]
        lengths = np.fromiter(map(len, listed), np.int64, len(listed))
        ids = np.fromiter(chain.from_iterable(listed), np.int32, lengths.sum())
        is_added = self._is_added[ids]
        if not is_added.any():
            return EncodedTexts(ids, lengths)
        places = np.repeat(np.arange(len(lengths)), lengths)
        return EncodedTexts(ids[~is_added], np.bincount(places[~is_added], minlength=len(lengths)))

    def _template_tokens(self, data_spans: Sequence[tuple[int, int]], text: str) -> Iterator[tuple[int, int, int]]:
        """Start, end and id of each added token that no data takes part in, with the white space that it takes."""
        last = 0
        for match in self._added_pattern.finditer(text) if self._added else ():
            start, end = match.span()
            if start < last or any(first < end and start < final for first, final in data_spans):
                continue
            while match.group() in self._strips_left and start > last and text[start - 1].isspace():
                start -= 1
            while match.group() in self._strips_right and end < len(text) and text[end].isspace():
                end += 1
            yield start, end, self._added[match.group()]
            last = end


def _data_spans(pieces: Sequence[Piece]) -> list[tuple[int, int]]:
    """Where data stands in the joined text."""
    spans, place = [], 0
    for piece in pieces:
        if piece.is_data:
            spans.append((place, place + len(piece.text)))
        place += len(piece.text)
    return spans


def load_model_tokens(model_folder: Path) -> ModelTokens:
    """Reads the folder's `tokenizer.json`.

    Raises:
        ConfigError: no such file, or one that the tokenizers library cannot read.
    """
    path = model_folder / "tokenizer.json"
    if not path.is_file():
        raise ConfigError(
            f"{model_folder}: no tokenizer.json. [engine] model must be a folder with a fast tokenizer, or a model "
            "of the hub that has one."
        )
    text = read_model_text(path)
    try:
        return ModelTokens(Tokenizer.from_str(text))
    except Exception as error:  # the library raises plain Exception
        raise ConfigError(f"{path}: not a tokenizer: {first_line(error)}") from error


@dataclass(frozen=True, slots=True)
class _Anchor:
    """A text put before every encoded piece, and taken off again."""

    text: str
    num_tokens: int


def _anchor(tokenizer: Tokenizer) -> _Anchor:
    """SentencePiece-style tokenizers write a space before every text: pieces are encoded behind a line break instead.

    Raises:
        ConfigError: a tokenizer whose pieces cannot be encoded apart.
    """
    plain = tokenizer.encode("\n", add_special_tokens=False).ids
    joined = tokenizer.encode("\na", add_special_tokens=False).ids
    alone = tokenizer.encode("a", add_special_tokens=False).ids
    if joined[len(plain) :] == alone:
        return _Anchor("", 0)
    if joined[: len(plain)] != plain:
        raise ConfigError("the model's tokenizer joins a line break with the letter after it: pieces cannot be cached")
    return _Anchor("\n", len(plain))


def _starting_inside_a_character(tokenizer: Tokenizer) -> np.ndarray:
    """For each id, whether its first byte continues a UTF-8 character: 1D bool."""
    flags = np.zeros(tokenizer.get_vocab_size(with_added_tokens=True) + 1, bool)
    is_byte_level = "ByteLevel" in f"{tokenizer.pre_tokenizer} {tokenizer.decoder}"
    alphabet = _byte_alphabet() if is_byte_level else {}
    for token, token_id in tokenizer.get_vocab(with_added_tokens=False).items():
        fallback = re.fullmatch(r"<0x([0-9A-F]{2})>", token) if token.startswith("<0x") else None
        first_byte = int(fallback[1], 16) if fallback else alphabet.get(token[:1], 0)
        if token_id < len(flags):
            flags[token_id] = first_byte in CONTINUATION_BYTES
    return flags


def _byte_alphabet() -> dict[str, int]:
    """The characters by which byte-level tokenizers write bytes (GPT-2): printable ones stand for themselves."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(0x100) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + place): byte for place, byte in enumerate(others)}
