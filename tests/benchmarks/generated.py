"""Inputs of any size from a seed: every passage is another text, as long as DL19's are.

    python -m tests.benchmarks.generated FOLDER [--queries 10000] [--candidates 100] [--seed 7]

DL19's passages have 63 words (standard deviation 25) and 87 tokens (37) of the sample's tokenizer. Words are drawn by
Zipf's law from a hundred common ones and 20,000 made of syllables. Texts stream into Parquet, so memory is a chunk's.
"""

import argparse
import json
import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

COMMON_WORDS = """
the of and a to in is that it for on are as with they at be this have from or had by but some what there we
can out other were all your when up use word how each which do their time if will way about many then them
would like so these her long make thing see him two has look more day could go come did my sound no most
number who over know water than call first people may down side been now find any new work part take get place
made where after back
"""
ONSETS = ("", *"bcdfghlmnprstvw", "st", "tr", "ch", "th", "pr")
VOWELS = (*"aeiou", "ea", "ou", "ai")
CODAS = ("", "", *"nrstld", "ng", "st")
MADE_WORDS = 20_000
ZIPF = 1.28
POOL = 1 << 18  # of word numbers, drawn from with equal chances: faster than weights
WORDS_MEAN, WORDS_SD = 62.5, 26.0
WORDS_RANGE = (8, 400)
QUERY_WORDS = 6
CHUNK = 100_000  # passages at once


def write_inputs(folder: Path, lengths: Sequence[int] | np.ndarray, seed: int = 7) -> dict[str, str]:
    """Queries with lists of the given lengths, no passage in two of them; returns [inputs] paths.

    A folder that holds them already is taken as it is.
    """
    paths = {f"inputs.{name}": str(folder / f"{name}.parquet") for name in ("queries", "documents", "candidates")}
    told = folder / "generated.json"
    asked = {"lengths": [len(lengths), int(np.sum(lengths)), int(np.max(lengths))], "seed": seed}
    if told.exists() and json.loads(told.read_text()) == asked:
        return paths
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    rng = np.random.default_rng(seed)
    lexicon = pa.array([*COMMON_WORDS.split(), *_made_words(rng)])
    pool = _zipf_pool(len(lexicon))
    _write_documents(folder / "documents.parquet", int(np.sum(lengths)), lexicon.take(pool), rng)
    _write_queries(folder / "queries.parquet", len(lengths), lexicon.take(pool), rng)
    _write_candidates(folder / "candidates.parquet", np.asarray(lengths), rng)
    told.write_text(json.dumps(asked), encoding="utf-8")
    return paths


def kept_inputs(folder: Path, num_queries: int, num_candidates: int, seed: int = 7) -> Path:
    """A folder of equal lists under `folder`: made once, and kept for the next bench."""
    folder = folder / f"{num_queries}x{num_candidates}-{seed}"
    write_inputs(folder, np.full(num_queries, num_candidates), seed)
    return folder


def _made_words(rng: np.random.Generator) -> list[str]:
    found: dict[str, None] = {}
    while len(found) < MADE_WORDS:
        syllables = 1 + int(rng.integers(0, 3)) if len(found) > MADE_WORDS // 20 else 1 + int(rng.integers(0, 2))
        parts = [(rng.choice(ONSETS), rng.choice(VOWELS), rng.choice(CODAS)) for _ in range(syllables)]
        found["".join("".join(part) for part in parts)] = None
    return [word for word in found if word not in COMMON_WORDS.split()]


def _zipf_pool(num_words: int) -> pa.Array:
    weights = 1 / np.arange(1, num_words + 1) ** ZIPF
    bounds = np.cumsum(weights / weights.sum())
    return pa.array(np.searchsorted(bounds, (np.arange(POOL) + 0.5) / POOL).astype(np.int32))


def _texts(lengths: np.ndarray, pool: pa.Array, rng: np.random.Generator) -> pa.Array:
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    words = pool.take(pa.array(rng.integers(0, POOL, offsets[-1], dtype=np.int32)))
    return pc.binary_join(pa.ListArray.from_arrays(pa.array(offsets), words), " ")


def _write_documents(path: Path, num_documents: int, pool: pa.Array, rng: np.random.Generator) -> None:
    spread = np.log1p((WORDS_SD / WORDS_MEAN) ** 2)
    schema = pa.schema([("doc_id", pa.string()), ("text", pa.string())])
    with pq.ParquetWriter(path, schema, compression="zstd", compression_level=1) as writer:
        for first in range(0, num_documents, CHUNK):
            numbers = pa.array(np.arange(first, min(first + CHUNK, num_documents))).cast(pa.string())
            words = rng.lognormal(np.log(WORDS_MEAN) - spread / 2, np.sqrt(spread), len(numbers))
            texts = _texts(np.clip(words, *WORDS_RANGE).astype(np.int32), pool, rng)
            texts = pc.binary_join_element_wise(texts, numbers, " ")  # no two are the same
            ids = pc.binary_join_element_wise("d", numbers, "")
            writer.write_table(pa.table([ids, texts], schema=schema))


def _write_queries(path: Path, num_queries: int, pool: pa.Array, rng: np.random.Generator) -> None:
    texts = _texts(np.full(num_queries, QUERY_WORDS), pool, rng)
    pq.write_table(pa.table({"query_id": _query_ids(0, num_queries), "text": texts}), path)


def _write_candidates(path: Path, lengths: np.ndarray, rng: np.random.Generator) -> None:
    """Every document once, in no order, so that reading a list jumps about in the store as it would on real data."""
    schema = pa.schema([("query_id", pa.string()), ("doc_id", pa.string()), ("rank", pa.int32())])
    documents = rng.permutation(int(lengths.sum()))
    ends = np.cumsum(lengths)
    with pq.ParquetWriter(path, schema) as writer:
        for first in range(0, len(lengths), 10_000):
            some = lengths[first : first + 10_000]
            rows = documents[ends[first] - lengths[first] : ends[first + len(some) - 1]]
            ids = pc.binary_join_element_wise("d", pa.array(rows).cast(pa.string()), "")
            queries = _query_ids(first, first + len(some)).take(pa.array(np.repeat(np.arange(len(some)), some)))
            ranks = np.concatenate([np.arange(1, length + 1) for length in some]).astype(np.int32)
            writer.write_table(pa.table([queries, ids, ranks], schema=schema))


def _query_ids(first: int, last: int) -> pa.Array:
    return pa.array([f"q{number:07d}" for number in range(first, last)])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--queries", type=int, default=10_000)
    parser.add_argument("--candidates", type=int, default=100)
    parser.add_argument("--seed", type=int, default=7)
    asked = parser.parse_args()
    write_inputs(asked.folder, np.full(asked.queries, asked.candidates), asked.seed)
