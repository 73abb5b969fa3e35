"""The texts of some queries and passages, or their beginnings, for people; streamed, only these are kept."""

import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from math import inf

import pyarrow as pa
import pyarrow.compute as pc

from tasks.inputs.documents import unroll
from tasks.inputs.parquet_files import ParquetInput, read_batches


def find_query_texts(opened: ParquetInput, query_ids: Collection[str], give_up_at: float = inf) -> dict[str, str]:
    """Some queries' texts, by query_id; those that are not found until `give_up_at`, monotonic, are left out.

    Raises:
        InputError: see `read_batches`.
    """
    return _first_texts(_flat_rows(opened, ["query_id", "text"]), query_ids, give_up_at)


def find_passages(
    opened: ParquetInput, wanted: Mapping[str, Collection[str]], max_chars: int | None = None
) -> dict[tuple[str, str], str]:
    """Some passages or their beginnings, titles first, by (query_id, doc_id); streamed, only these are kept.

    Args:
        opened: flat documents, or the nested layout, where each query has its own text of a document.
        wanted: query_id -> doc_ids.
        max_chars: of each passage; all if not given.

    Raises:
        InputError: see `read_batches`.
    """
    if opened.source == "nested":
        return _find_nested_passages(opened, wanted, max_chars)
    doc_ids = pa.array(sorted({doc_id for each in wanted.values() for doc_id in each}), pa.string())
    texts: dict[str, str] = {}
    for _, batch in read_batches(opened, ["doc_id", "title", "text"]):
        found = batch.filter(pc.is_in(batch.column("doc_id"), value_set=doc_ids))
        for doc_id, title, text in zip(*(column.to_pylist() for column in found.columns), strict=True):
            texts.setdefault(doc_id, ": ".join(part for part in (title, text) if part)[:max_chars])
        if len(texts) == len(doc_ids):
            break
    return {(query, doc): texts[doc] for query, docs in wanted.items() for doc in docs if doc in texts}


def _find_nested_passages(
    opened: ParquetInput, wanted: Mapping[str, Collection[str]], max_chars: int | None
) -> dict[tuple[str, str], str]:
    query_ids = pa.array(sorted(wanted), pa.string())
    texts: dict[tuple[str, str], str] = {}
    for file, batch in read_batches(opened, ["query_id", "candidates"]):
        found = batch.filter(pc.is_in(batch.column("query_id"), value_set=query_ids))
        rows = unroll(opened, file.path, found).select(["query_id", "doc_id", "text"])
        for query_id, doc_id, text in zip(*(column.to_pylist() for column in rows.columns), strict=True):
            if doc_id in wanted[query_id]:
                texts.setdefault((query_id, doc_id), (text or "")[:max_chars])
    return texts


def find_titles(opened: ParquetInput, query_id: str, doc_ids: Collection[str], give_up_at: float) -> dict[str, str]:
    """The titles of some of a query's documents, by doc_id; of one without a title its text.

    Args:
        opened: flat documents, or the nested layout, where each query has its own text of a document.
        query_id: of the nested layout's row.
        doc_ids: whose titles.
        give_up_at: monotonic; what is not found by then is left out.

    Raises:
        InputError: see `read_batches`.
    """
    is_nested = opened.source == "nested"
    rows = _nested_rows(opened, query_id) if is_nested else _flat_rows(opened, ["doc_id", "title", "text"])
    return _first_texts(rows, doc_ids, give_up_at)


def _flat_rows(opened: ParquetInput, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
    return (batch for _, batch in read_batches(opened, names))


def _nested_rows(opened: ParquetInput, query_id: str) -> Iterator[pa.Table]:
    for file, batch in read_batches(opened, ["query_id", "candidates"]):
        found = batch.filter(pc.equal(batch.column("query_id"), query_id))
        yield unroll(opened, file.path, found).select(["doc_id", "text"])


def _first_texts(
    batches: Iterator[pa.RecordBatch | pa.Table], ids: Collection[str], give_up_at: float
) -> dict[str, str]:
    """Of rows (id, text, text if that is missing, ...) the texts of `ids`; each batch is looked at in turn."""
    wanted = pa.array(sorted(ids), pa.string())
    texts: dict[str, str] = {}
    for batch in batches:
        rows = batch.filter(pc.is_in(batch.column(0), value_set=wanted))
        for row_id, *found in zip(*(column.to_pylist() for column in rows.columns), strict=True):
            texts.setdefault(row_id, next(filter(None, found), ""))
        if len(texts) == len(wanted) or time.monotonic() > give_up_at:
            break
    return texts
