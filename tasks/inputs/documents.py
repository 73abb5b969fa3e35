"""Finds which document rows a night needs, then streams their titles and texts once.

Flat documents are keyed by doc_id. In the nested layout each query brings its own text, so the key is the doc_id with
the text's hash. Texts never stay: they are handed on in small chunks. Knows nothing of tokens.
"""

import math
import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tasks.inputs.parquet_files import ParquetInput, decoded_texts, normalised_values, read_batches
from tasks.inputs.parquet_schema import Column
from tasks.inputs.query_subsets import check_no_null_ids
from tasks.system.database import Database
from tasks.system.errors import InputError


@dataclass(frozen=True, slots=True)
class TextChunk:
    """Some needed documents: parallel lists, in input order."""

    row_nos: np.ndarray  # int64, place in the input
    titles: list[str | None]
    texts: list[str | None]
    is_undecodable: np.ndarray  # bool, 1D: whether title or text is not UTF-8; the text is then null


def document_columns(names: dict[str, str]) -> tuple[Column, ...]:
    """The columns of `documents`, under their names in the files; a title is optional."""
    return (
        Column("doc_id", "id", names.get("doc_id", "doc_id")),
        Column("text", "text", names.get("text", "text")),
        Column("title", "text", names.get("title", "title"), is_required=False),
    )


def stage_document_ids(database: Database, opened: ParquetInput, *, only_named: bool) -> None:
    """Fills `document_rows` from flat documents; with `only_named` from those that the staged candidates name.

    Raises:
        InputError: a null doc_id.
    """
    row_no = 0
    for file, batch in read_batches(opened, ["doc_id"]):
        ids = batch.column("doc_id")
        check_no_null_ids(opened, file.path, file.num_rows, ids)
        rows = pa.table({"row_no": np.arange(row_no, row_no + len(ids)), "doc_id": ids, "doc_key": ids})
        database.execute("staging/insert_document_rows", {"only_named": only_named}, {"rows": rows})
        row_no += len(ids)


def read_texts(opened: ParquetInput, row_nos: np.ndarray) -> Iterator[TextChunk]:
    """Streams the rows `row_nos` (int64, ascending) of flat documents, or of nested candidates unrolled."""
    chunks = _nested_chunks(opened) if opened.source == "nested" else _flat_chunks(opened)
    first = 0
    for titles, texts, is_undecodable in chunks:
        low, high = np.searchsorted(row_nos, [first, first + len(texts)])
        wanted = row_nos[low:high]
        if len(wanted):
            places = pa.array(wanted - first)
            marks = is_undecodable.take(places).to_numpy(zero_copy_only=False)
            yield TextChunk(wanted, titles.take(places).to_pylist(), texts.take(places).to_pylist(), marks)
        first += len(texts)


def check_duplicates(database: Database, opened: ParquetInput) -> None:
    """One doc_id with two contents cannot be a document; the same row twice is kept once and noted.

    Raises:
        InputError: naming the id and its rows.
    """
    repeated = database.query("staging/find_repeated_documents")
    if repeated.num_rows == 0:
        return
    contents: dict[str, tuple[str | None, str | None]] = {}
    rows = dict(zip(repeated.column("row_no").to_pylist(), repeated.column("doc_id").to_pylist(), strict=True))
    for chunk in read_texts(opened, np.array(sorted(rows), np.int64)):
        for row_no, title, text in zip(chunk.row_nos.tolist(), chunk.titles, chunk.texts, strict=True):
            doc_id = rows[row_no]
            if contents.setdefault(doc_id, (title, text)) != (title, text):
                num_rows = list(rows.values()).count(doc_id)
                raise InputError(
                    f"{opened.source}: {opened.files[0].path}: doc_id {doc_id!r} comes in {num_rows} rows with "
                    "different contents. Keep one row an id."
                )


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


def nested_fields(opened: ParquetInput) -> list[str]:
    """The names inside the nested layout's lists; none where no part has a row."""
    lists = opened.column("candidates").file_name
    types = [file.schema.field(lists).type for file in opened.files_with_rows]
    structs = [each.value_type for each in types if pa.types.is_nested(each) and pa.types.is_struct(each.value_type)]
    return [field.name for field in structs[0]] if structs else []


def unroll(batch: pa.RecordBatch, where: str) -> pa.Table:
    """Nested rows as flat candidates: (query_id, doc_id, text, is_undecodable, given_rank, given_score), in list order.

    The rank is the place in the list, from 1. Null and empty lists give no row.
    """
    lists = batch.column("candidates")
    if pa.types.is_dictionary(lists.type):
        lists = lists.dictionary_decode()
    if pa.types.is_null(lists.type) or pa.types.is_null(lists.type.value_type):
        lists = lists.cast(pa.list_(pa.struct([("doc_id", pa.string()), ("text", pa.string())])))  # of nothing
    parents = pc.list_parent_indices(lists)
    structs = pc.list_flatten(lists)
    starts = np.zeros(len(lists) + 1, np.int64)
    np.cumsum(pc.fill_null(pc.list_value_length(lists), 0).to_numpy(zero_copy_only=False), out=starts[1:])
    parent_rows = parents.to_numpy(zero_copy_only=False).astype(np.int64)
    ranks = np.arange(len(structs)) - starts[parent_rows] + 1
    texts, is_undecodable = decoded_texts(_field(structs, "text"))
    return pa.table(
        {
            "query_id": batch.column("query_id").take(parents),
            "doc_id": normalised_values(_field(structs, "doc_id"), "id", f"{where} doc_id"),
            "text": texts,
            "is_undecodable": is_undecodable,
            "given_rank": ranks,
            "given_score": normalised_values(_field(structs, "score"), "score", f"{where} score"),
        }
    )


def _find_nested_passages(
    opened: ParquetInput, wanted: Mapping[str, Collection[str]], max_chars: int, give_up_at: float = math.inf
) -> dict[tuple[str, str], str]:
    query_ids = pa.array(sorted(wanted), pa.string())
    texts: dict[tuple[str, str], str] = {}
    for file, batch in read_batches(opened, ["query_id", "candidates"]):
        found = batch.filter(pc.is_in(batch.column("query_id"), value_set=query_ids))
        rows = unroll(found, f"{opened.source}: {file.path}: candidates").select(["query_id", "doc_id", "text"])
        for query_id, doc_id, text in zip(*(column.to_pylist() for column in rows.columns), strict=True):
            if doc_id in wanted[query_id]:
                texts.setdefault((query_id, doc_id), (text or "")[:max_chars])
        if time.monotonic() > give_up_at:
            break
    return texts


def _field(structs: pa.StructArray, name: str) -> pa.Array:
    if name not in {field.name for field in structs.type}:
        return pa.nulls(len(structs))
    return pc.struct_field(structs, name)


def _flat_chunks(opened: ParquetInput) -> Iterator[tuple[pa.Array, pa.Array, pa.Array]]:
    for _, batch in read_batches(opened, ["title", "text"], mark_undecodable=True):
        titles, texts, is_undecodable = batch.columns
        if pc.any(is_undecodable).as_py():
            texts = pc.if_else(is_undecodable, pa.scalar(None, pa.string()), texts)
        yield titles, texts, is_undecodable


def _nested_chunks(opened: ParquetInput) -> Iterator[tuple[pa.Array, pa.Array, pa.Array]]:
    for file, batch in read_batches(opened, ["query_id", "candidates"]):
        rows = unroll(batch, f"{opened.source}: {file.path}: candidates").combine_chunks()
        texts, marks = (rows.column(name).combine_chunks() for name in ("text", "is_undecodable"))
        yield pa.nulls(len(texts), pa.string()), texts, marks
