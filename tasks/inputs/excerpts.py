"""The beginnings of some queries and passages, for people; streamed, only these are kept."""

import math
import time
from collections.abc import Collection, Mapping

import pyarrow as pa
import pyarrow.compute as pc

from tasks.inputs.documents import unroll
from tasks.inputs.parquet_files import ParquetInput, read_batches


def find_query_texts(
    opened: ParquetInput, query_ids: Collection[str], max_chars: int, give_up_at: float = math.inf
) -> dict[str, str]:
    """The beginnings of some queries' texts, by query_id; those that are not there are left out.

    Args:
        opened: queries, or the nested layout.
        query_ids: whose texts.
        max_chars: of each text.
        give_up_at: monotonic; what is not found by then is left out.

    Raises:
        InputError: see `read_batches`.
    """
    wanted = pa.array(sorted(query_ids), pa.string())
    texts: dict[str, str] = {}
    for _, batch in read_batches(opened, ["query_id", "text"]):
        found = batch.filter(pc.is_in(batch.column("query_id"), value_set=wanted))
        for query_id, text in zip(*(column.to_pylist() for column in found.columns), strict=True):
            texts.setdefault(query_id, (text or "")[:max_chars])
        if len(texts) == len(wanted) or time.monotonic() > give_up_at:
            break
    return texts


def find_passages(
    opened: ParquetInput, wanted: Mapping[str, Collection[str]], max_chars: int
) -> dict[tuple[str, str], str]:
    """The beginnings of some passages, titles first, by (query_id, doc_id); streamed, only these are kept.

    Args:
        opened: flat documents, or the nested layout, where each query has its own text of a document.
        wanted: query_id -> doc_ids.
        max_chars: of each passage.

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


def find_titles(
    opened: ParquetInput, query_id: str, doc_ids: Collection[str], max_chars: int, give_up_at: float
) -> dict[str, str]:
    """The titles of some of a query's documents, by doc_id; of one without a title the beginning of its text.

    Args:
        opened: as for `find_passages`.
        query_id: of the nested layout's row.
        doc_ids: whose titles.
        max_chars: of each.
        give_up_at: monotonic; what is not found by then is left out.

    Raises:
        InputError: see `read_batches`.
    """
    if opened.source == "nested":
        found = _find_nested_passages(opened, {query_id: doc_ids}, max_chars, give_up_at)
        return {doc_id: text for (_, doc_id), text in found.items()}
    wanted = pa.array(sorted(doc_ids), pa.string())
    titles: dict[str, str] = {}
    for _, batch in read_batches(opened, ["doc_id", "title", "text"]):
        rows = batch.filter(pc.is_in(batch.column("doc_id"), value_set=wanted))
        for doc_id, title, text in zip(*(column.to_pylist() for column in rows.columns), strict=True):
            titles.setdefault(doc_id, (title or text or "")[:max_chars])
        if len(titles) == len(wanted) or time.monotonic() > give_up_at:
            break
    return titles


def _find_nested_passages(
    opened: ParquetInput, wanted: Mapping[str, Collection[str]], max_chars: int, give_up_at: float = math.inf
) -> dict[tuple[str, str], str]:
    query_ids = pa.array(sorted(wanted), pa.string())
    texts: dict[tuple[str, str], str] = {}
    for file, batch in read_batches(opened, ["query_id", "candidates"]):
        found = batch.filter(pc.is_in(batch.column("query_id"), value_set=query_ids))
        rows = unroll(opened, file.path, found).select(["query_id", "doc_id", "text"])
        for query_id, doc_id, text in zip(*(column.to_pylist() for column in rows.columns), strict=True):
            if doc_id in wanted[query_id]:
                texts.setdefault((query_id, doc_id), (text or "")[:max_chars])
        if time.monotonic() > give_up_at:
            break
    return texts
