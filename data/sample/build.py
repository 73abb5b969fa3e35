"""Builds the sample's Parquet files from `source/*.toml`: documents, queries, judgments, and BM25 candidates.

    python data/sample/build.py

BM25 is Lucene's (k1 = 1.5, b = 0.75) by bm25s, over title and text: words in English, overlapping character pairs
inside each word in Korean. Up to 100 candidates a query with a score above 0; ties by doc_id, descending, as
trec_eval breaks them.
"""

import re
import tomllib
import unicodedata
from pathlib import Path
from typing import Any

import bm25s
import pyarrow as pa
import pyarrow.parquet as pq

FOLDER = Path(__file__).resolve().parent
TOP_K = 100


def build(source: Path, target: Path) -> None:
    """Writes the four files into `target`."""
    fields = [tomllib.loads(path.read_text(encoding="utf-8")) for path in sorted(source.glob("*.toml"))]
    documents = [
        {"doc_id": each["doc_id"], "title": each.get("title"), "text": each["text"].strip()}
        for field in fields
        for each in field["documents"]
    ]
    queries = sorted((each for field in fields for each in field["queries"]), key=lambda each: each["query_id"])
    write(
        target / "documents.parquet",
        documents,
        [("doc_id", pa.string()), ("title", pa.string()), ("text", pa.string())],
    )
    write(target / "queries.parquet", queries, [("query_id", pa.string()), ("text", pa.string())])
    qrels = [
        {"query_id": query["query_id"], "doc_id": doc_id, "relevance": relevance}
        for query in queries
        for doc_id, relevance in query["relevance"].items()
    ]
    pair = [("query_id", pa.string()), ("doc_id", pa.string())]
    write(target / "qrels.parquet", qrels, [*pair, ("relevance", pa.int32())])
    write(
        target / "candidates.parquet",
        retrieve(documents, queries),
        [*pair, ("rank", pa.int32()), ("score", pa.float64())],
    )


def retrieve(documents: list[dict[str, Any]], queries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The first stage: BM25's best documents of each query."""
    index = bm25s.BM25(method="lucene", k1=1.5, b=0.75)
    index.index([tokens(f"{each['title'] or ''} {each['text']}") for each in documents], show_progress=False)
    rows = []
    for query in queries:
        scores = index.get_scores(tokens(query["text"]))
        found = sorted(((float(score), each["doc_id"]) for score, each in zip(scores, documents, strict=True)))[::-1]
        rows += [
            {"query_id": query["query_id"], "doc_id": doc_id, "rank": rank, "score": score}
            for rank, (score, doc_id) in enumerate(found[:TOP_K], start=1)
            if score > 0
        ]
    return rows


def tokens(text: str) -> list[str]:
    """Lower-case words; a word with Hangul as its overlapping pairs of characters."""
    words = re.findall(r"\w+", unicodedata.normalize("NFKC", text).lower())
    return [token for word in words for token in (pairs(word) if re.search(r"[가-힣]", word) else [word])]


def pairs(word: str) -> list[str]:
    """'김치찌개' -> 김치, 치찌, 찌개."""
    return [word[place : place + 2] for place in range(max(len(word) - 1, 1))]


def write(path: Path, rows: list[dict[str, Any]], columns: list[tuple[str, pa.DataType]]) -> None:
    """One Parquet file."""
    table = pa.Table.from_pylist(rows, pa.schema(columns))
    pq.write_table(table, path, compression="zstd", write_page_checksum=True)


if __name__ == "__main__":
    build(FOLDER / "source", FOLDER)
