"""Writes a large input for `packrank plan`: queries, documents that they share, candidates by rank.

    python -m tests.benchmarks.plan_input FOLDER --queries 100000 --candidates 100 --documents 1000000
    /usr/bin/time -v packrank plan FOLDER/plan.toml

Lists are of different lengths, half of --candidates to --candidates and half more, so that a sample has something to err in.
"""

import argparse
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tests.makers import WORDS

ROWS = 1_000_000
SETTINGS = """preset = "sample"

[inputs]
queries = "{folder}/queries.parquet"
documents = "{folder}/documents.parquet"
candidates = "{folder}/candidates.parquet"

[strategy]
name = "sliding"
decode_mode = "first_token"
window_size = 20
depth = 100

[engine]
model = "models/sample"
max_model_len = 4096

[store]
database = "{folder}/var/plan.duckdb"
"""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--queries", type=int, default=100_000)
    parser.add_argument("--candidates", type=int, default=100)
    parser.add_argument("--documents", type=int, default=1_000_000)
    given = parser.parse_args()
    folder = given.folder.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    texts = [" ".join(rng.choice(WORDS, size)) for size in rng.integers(20, 160, 5_000)]
    write(folder / "queries.parquet", given.queries, lambda ids: queries(ids, rng))
    write(folder / "documents.parquet", given.documents, lambda ids: documents(ids, texts))
    with pq.ParquetWriter(folder / "candidates.parquet", pa.schema(CANDIDATES)) as writer:
        for first in range(0, given.queries, 10_000):
            writer.write_table(candidates(range(first, min(first + 10_000, given.queries)), given, rng))
    (folder / "plan.toml").write_text(SETTINGS.format(folder=folder), encoding="utf-8")
    print(folder / "plan.toml")


CANDIDATES = [("query_id", pa.string()), ("doc_id", pa.string()), ("rank", pa.int32())]


def write(path, num_rows, make) -> None:
    with pq.ParquetWriter(path, make(range(1)).schema) as writer:
        for first in range(0, num_rows, ROWS):
            writer.write_table(make(range(first, min(first + ROWS, num_rows))))


def queries(ids, rng) -> pa.Table:
    words = rng.integers(0, len(WORDS), (len(ids), 2))
    return pa.table(
        {
            "query_id": [f"q{each:08d}" for each in ids],
            "text": [
                f"what is {WORDS[first]} {WORDS[second]} {each}"
                for each, (first, second) in zip(ids, words, strict=True)
            ],
        }
    )


def documents(ids, texts) -> pa.Table:
    return pa.table(
        {"doc_id": [f"d{each:08d}" for each in ids], "text": [f"{each} {texts[each % len(texts)]}" for each in ids]}
    )


def candidates(ids, given, rng) -> pa.Table:
    lengths = rng.integers(given.candidates // 2, given.candidates + given.candidates // 2 + 1, len(ids))
    places = np.concatenate([np.arange(length) for length in lengths])
    docs = (np.repeat(rng.integers(0, given.documents, len(ids)), lengths) + 7 * places) % given.documents
    names = np.repeat(np.array([f"q{each:08d}" for each in ids]), lengths)
    columns = [names, np.char.add("d", np.char.zfill(docs.astype(str), 8)), (places + 1).astype(np.int32)]
    return pa.table(columns, schema=pa.schema(CANDIDATES))


if __name__ == "__main__":
    main()
