"""Every passage of the night tokenised once, in a flat int32 file that is read in place; and the fields beside it.

Written once in document order: 10^7 passages of 120 tokens are 4.8 GB on disk and little in memory (ADR 13).
A passage is kept up to `max_passage_tokens`; its full length is kept beside it, so that every cut can be counted.
Knows nothing of tokenizers: the encoder is handed in.
"""

import os
from array import array
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from io import FileIO
from pathlib import Path
from typing import Protocol, Self, TypeVar

import numpy as np

from tasks.inputs.documents import TextChunk
from tasks.system.errors import StoreError

TOKENS_FILE = "passages.int32"
OFFSETS_FILE = "passage_offsets.npy"
LENGTHS_FILE = "passage_lengths.npy"
DIGESTS_FILE = "passage_digests.npy"
TOKEN_BYTES = 4
MAPPED_BYTES = 512 << 20  # of tokens: 10^6 passages are 350 MB
KEPT_BYTES = 64 << 20  # of passages read last: 70,000 of 160 tokens
ARRAY_BYTES = 300  # of an array beside its content, and of its place among those kept
CHUNKS_AHEAD = 2
Chunk = TypeVar("Chunk")


class Encoded(Protocol):
    """Passages as token ids, end to end."""

    @property
    def ids(self) -> np.ndarray:
        """1D int32, all passages."""
        ...

    @property
    def lengths(self) -> np.ndarray:
        """1D int64, of each."""
        ...


class PassageEncoder(Protocol):
    """What staging needs of the model's tokenizer."""

    def count_query_tokens(self, texts: Sequence[str]) -> np.ndarray:
        """The tokens of each query as it stands in a prompt, int32; 0 for a blank one."""
        ...

    def passage_lines(self, titles: Sequence[str | None], texts: Sequence[str]) -> list[str]:
        """Each passage as it stands in a prompt; empty for a blank text."""
        ...

    def field_lines(self, values: Sequence[Sequence[str | None]]) -> list[str]:
        """The fields of each passage as they stand in a prompt."""
        ...

    def encode_lines(self, lines: Sequence[str]) -> Encoded:
        """The token ids of those."""
        ...


@dataclass(frozen=True, slots=True)
class FieldChunk:
    """The fields of some candidates: parallel lists, each entry with the texts of all fields."""

    values: Sequence[Sequence[str | None]]
    of_candidate: Sequence[Sequence[str | None]]  # without those that documents have


class TokenStore:
    """The passages by doc_index, or the fields of the staged candidates by their place.

    A small store is mapped. A large one is read by offset, since all that was ever read of a mapping counts as this
    process's memory; what was read last is kept, as half of a window's passages were in the window before it.
    """

    def __init__(self, folder: Path, mapped_bytes: int = MAPPED_BYTES, kept_bytes: int = KEPT_BYTES) -> None:
        """Opens what `write_token_store` wrote; maps up to `mapped_bytes`, keeps up to `kept_bytes` of a larger one."""
        self.lengths = _mapped(folder / LENGTHS_FILE)  # 1D int32, tokens before max_passage_tokens cut them
        self.digests = _mapped(folder / DIGESTS_FILE)  # 1D uint64, of title, text and the document's fields
        self._offsets = _mapped(folder / OFFSETS_FILE)  # 1D int64, num_documents + 1
        path = folder / TOKENS_FILE  # int32, all passages end to end
        self._passage = self._slices(path) if path.stat().st_size <= mapped_bytes else self._reads(path, kept_bytes)

    def passage(self, doc_index: int) -> np.ndarray:
        """The kept token ids of one passage, 1D int32, read-only.

        Raises:
            StoreError: the file of a large store has been cut off.
        """
        return self._passage(doc_index)

    def passages(self, doc_indexes: np.ndarray) -> list[np.ndarray]:
        """The kept token ids of several passages, 1D int32 each; see `passage`."""
        return list(map(self._passage, doc_indexes.tolist()))

    def _slices(self, path: Path) -> Callable[[int], np.ndarray]:
        tokens, offsets = mapped_array(path, "<i4"), self._offsets
        return lambda doc_index: tokens[offsets[doc_index] : offsets[doc_index + 1]]

    def _reads(self, path: Path, kept_bytes: int) -> Callable[[int], np.ndarray]:
        tokens_file, offsets = FileIO(path), self._offsets

        def read(doc_index: int) -> np.ndarray:
            start, end = int(offsets[doc_index]), int(offsets[doc_index + 1])
            content = os.pread(tokens_file.fileno(), (end - start) * TOKEN_BYTES, start * TOKEN_BYTES)
            if len(content) < (end - start) * TOKEN_BYTES:
                raise StoreError(f"{path}: token {end} is missing. Run the same command again.")
            return np.frombuffer(content, "<i4")

        longest_bytes = int(np.diff(offsets).max(initial=0)) * TOKEN_BYTES
        return lru_cache(maxsize=kept_bytes // (longest_bytes + ARRAY_BYTES))(read)


class _StoreWriter:
    """Writes the files of a store, text by text."""

    def __init__(self, folder: Path, max_tokens: int) -> None:
        folder.mkdir(exist_ok=True)
        self._folder = folder
        self._max_tokens = max_tokens
        self._file = (folder / TOKENS_FILE).open("wb")
        self._lengths, self._kept = array("i"), array("i")  # 10^7 Python ints would be 280 MB a column
        self._digests = array("Q")

    @property
    def num_texts(self) -> int:
        """So far."""
        return len(self._lengths)

    def add(self, encoded: Encoded, digests: Iterable[int]) -> None:
        """Appends texts, each cut at `max_tokens`."""
        kept = np.minimum(encoded.lengths, self._max_tokens)
        self._file.write(_cut(encoded, kept).astype("<i4", copy=False).tobytes())
        self._lengths.frombytes(encoded.lengths.astype(np.int32).tobytes())
        self._kept.frombytes(kept.astype(np.int32).tobytes())
        self._digests.extend(digests)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._file.close()
        if kind is None:
            offsets = np.zeros(len(self._lengths) + 1, np.int64)
            np.cumsum(np.frombuffer(self._kept, np.int32), out=offsets[1:])
            np.save(self._folder / OFFSETS_FILE, offsets)
            np.save(self._folder / LENGTHS_FILE, np.frombuffer(self._lengths, np.int32))
            np.save(self._folder / DIGESTS_FILE, np.frombuffer(self._digests, np.uint64))


def write_token_store(
    folder: Path, chunks: Iterator[TextChunk], encoder: PassageEncoder, max_passage_tokens: int
) -> dict[int, str]:
    """Encodes the chunks in order; returns, for each document that has no passage, its place and the reason."""
    reasons: dict[int, str] = {}
    lined = ((chunk, encoder.passage_lines(chunk.titles, [text or "" for text in chunk.texts])) for chunk in chunks)
    with _StoreWriter(folder, max_passage_tokens) as store:
        for chunk, encoded in _encoded_ahead(lined, encoder):
            for place in np.flatnonzero(encoded.lengths == 0).tolist():
                reasons[store.num_texts + place] = _reason(chunk, place)
            store.add(encoded, (text_digest(*each) for each in chunk.contents()))
    return reasons


def write_field_store(
    folder: Path, chunks: Iterator[FieldChunk], encoder: PassageEncoder, max_passage_tokens: int
) -> int:
    """Encodes the fields of candidates in order; returns how many alone are longer than a passage may be.

    Their digests are of what the candidates' own input has: that of documents is in the documents' digests.
    """
    num_cut = 0
    lined = ((chunk, encoder.field_lines(chunk.values)) for chunk in chunks)
    with _StoreWriter(folder, max_passage_tokens) as store:
        for chunk, encoded in _encoded_ahead(lined, encoder):
            num_cut += int((encoded.lengths > max_passage_tokens).sum())
            store.add(encoded, (text_digest(*each) for each in chunk.of_candidate))
    return num_cut


def _reason(chunk: TextChunk, place: int) -> str:
    if chunk.is_undecodable[place]:
        return "document text or title is not UTF-8"
    return "null document text" if chunk.texts[place] is None else "empty document text"


def _encoded_ahead(
    lined: Iterator[tuple[Chunk, list[str]]], encoder: PassageEncoder
) -> Iterator[tuple[Chunk, Encoded]]:
    """Each chunk with the ids of its lines, in order; later chunks are encoded meanwhile.

    The tokenizer works on all cores and outside of Python's lock; what Python does of a chunk, reading, lines and ids
    as an array, takes a fifth of its time on two cores. So two are encoded at once: one core stays busy with the other.
    """
    with ThreadPoolExecutor(max_workers=CHUNKS_AHEAD, thread_name_prefix="encode") as threads:
        ahead: deque[tuple[Chunk, Future[Encoded]]] = deque()
        for chunk, lines in lined:
            ahead.append((chunk, threads.submit(encoder.encode_lines, lines)))
            if len(ahead) > CHUNKS_AHEAD:
                first, encoded = ahead.popleft()
                yield first, encoded.result()
        while ahead:
            first, encoded = ahead.popleft()
            yield first, encoded.result()


def _cut(encoded: Encoded, kept: np.ndarray) -> np.ndarray:
    """The first `kept` ids of each passage, end to end."""
    if np.array_equal(kept, encoded.lengths):
        return encoded.ids
    starts = np.cumsum(encoded.lengths) - encoded.lengths
    places = np.arange(len(encoded.ids)) - np.repeat(starts, encoded.lengths)
    cut: np.ndarray = encoded.ids[places < np.repeat(kept, encoded.lengths)]
    return cut


def mapped_array(path: Path, dtype: str) -> np.ndarray:
    """A file of numbers as a plain array: a slice of numpy's own class for mapped files takes ten times as long."""
    return np.empty(0, dtype) if path.stat().st_size == 0 else np.asarray(np.memmap(path, dtype=dtype, mode="r"))


def _mapped(path: Path) -> np.ndarray:
    return np.asarray(np.load(path, mmap_mode="r"))


def text_digest(*parts: str | None) -> int:
    """64 bits of BLAKE2b over the parts; null differs from empty."""
    digest = blake2b(digest_size=8)
    for part in parts:
        digest.update(b"\x00" if part is None else b"\x01" + part.encode("utf-8", "surrogatepass") + b"\x02")
    return int.from_bytes(digest.digest(), "little")
