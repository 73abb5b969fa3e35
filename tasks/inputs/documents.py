"""Finds which document rows a night needs, then streams their titles and texts once.

Flat documents are keyed by doc_id. In the nested layout each query brings its own text, so the key is the doc_id with
the text's hash. Texts never stay: they are handed on in small chunks. Knows nothing of tokens.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tasks.inputs.fields import NO_FIELDS, NOTHING_WANTED, PassageFields, WantedFields, field_columns
from tasks.inputs.parquet_files import ParquetInput, decoded_texts, normalised_values, read_batches
from tasks.inputs.parquet_schema import Column, inner_struct, type_at, values_at
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
    fields: list[list[str | None]]  # of each document the texts of all fields; none where no field is of documents

    def contents(self) -> Iterator[tuple[str | None, ...]]:
        """Of each document all that a prompt may show of it."""
        if not self.fields:
            return zip(self.titles, self.texts, strict=True)
        shown = zip(self.titles, self.texts, self.fields, strict=True)
        return ((title, text, *fields) for title, text, fields in shown)


def document_columns(names: dict[str, str], fields: WantedFields = NOTHING_WANTED) -> tuple[Column, ...]:
    """The columns of `documents`, under their names in the files; a title is optional."""
    return (
        Column("doc_id", "id", names.get("doc_id", "doc_id")),
        Column("text", "text", names.get("text", "text")),
        Column("title", "text", names.get("title", "title"), is_required=False),
        *field_columns(fields.of("documents"), names, ()),
    )


def nested_columns(names: dict[str, str], fields: WantedFields = NOTHING_WANTED) -> tuple[Column, ...]:
    """The columns of the nested layout, under their names in the files."""
    return (
        Column("query_id", "id", names.get("query_id", "query_id")),
        Column("text", "text", names.get("text", "text")),
        Column(
            "candidates",
            "nested",
            names.get("candidates", "candidates"),
            fields=(
                Column("candidates.doc_id", "id", names.get("candidates.doc_id", "doc_id")),
                Column("candidates.text", "text", names.get("candidates.text", "text")),
                Column("candidates.score", "score", names.get("candidates.score", "score"), is_required=False),
                *field_columns(fields.of("candidates"), names, ("score",), "candidates."),
            ),
        ),
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


def read_texts(opened: ParquetInput, row_nos: np.ndarray, fields: PassageFields = NO_FIELDS) -> Iterator[TextChunk]:
    """Streams the rows `row_nos` (int64, ascending) of flat documents, or of nested candidates unrolled."""
    chunks = _nested_chunks(opened) if opened.source == "nested" else _flat_chunks(opened, fields)
    first = 0
    for titles, texts, is_undecodable, shown in chunks:
        low, high = np.searchsorted(row_nos, [first, first + len(texts)])
        wanted = row_nos[low:high]
        if len(wanted):
            places = pa.array(wanted - first)
            marks = is_undecodable.take(places).to_numpy(zero_copy_only=False)
            rows = [] if shown is None else shown.take(places).to_pylist()
            yield TextChunk(wanted, titles.take(places).to_pylist(), texts.take(places).to_pylist(), marks, rows)
        first += len(texts)


def check_duplicates(database: Database, opened: ParquetInput, fields: PassageFields = NO_FIELDS) -> None:
    """One doc_id with two contents cannot be a document; the same row twice is kept once and noted.

    Raises:
        InputError: naming the id and its rows.
    """
    repeated = database.query("staging/find_repeated_documents")
    if repeated.num_rows == 0:
        return
    contents: dict[str, tuple[str | None, ...]] = {}
    rows = dict(zip(repeated.column("row_no").to_pylist(), repeated.column("doc_id").to_pylist(), strict=True))
    for chunk in read_texts(opened, np.array(sorted(rows), np.int64), fields):
        for row_no, content in zip(chunk.row_nos.tolist(), chunk.contents(), strict=True):
            doc_id = rows[row_no]
            if contents.setdefault(doc_id, content) != content:
                num_rows = list(rows.values()).count(doc_id)
                raise InputError(
                    f"{opened.source}: {opened.files[0].path}: doc_id {doc_id!r} comes in {num_rows} rows with "
                    "different contents. Keep one row an id."
                )


def nested_score(opened: ParquetInput) -> Column:
    """The score inside the nested layout's lists, which they may lack."""
    return next(field for field in opened.column("candidates").fields if field.name == "candidates.score")


def nested_struct(opened: ParquetInput) -> pa.StructType | None:
    """What is inside the nested layout's lists; None where no part has a row."""
    lists = opened.column("candidates").file_name
    structs = [inner_struct(type_at(file.schema, lists)) for file in opened.files_with_rows]
    return next((each for each in structs if each is not None and each.num_fields), None)


def unroll(opened: ParquetInput, path: str, batch: pa.RecordBatch, fields: PassageFields = NO_FIELDS) -> pa.Table:
    """Nested rows as flat candidates, in list order: query_id, doc_id, text, is_undecodable, given_rank, given_score.

    The rank is the place in the list, from 1. Null and empty lists give no row. The last column is `fields`, of a
    night that has some.
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
    inside = {
        field.name.partition(".")[2]: pa.nulls(len(structs)) if values is None else values
        for field in opened.column("candidates").fields
        for values in (values_at(structs, field.file_name),)
    }
    doc_ids, texts, scores = (inside[name] for name in ("doc_id", "text", "score"))
    texts, is_undecodable = decoded_texts(texts)
    where = f"{opened.source}: {path}: candidates"
    rows = pa.table(
        {
            "query_id": batch.column("query_id").take(parents),
            "doc_id": normalised_values(doc_ids, "id", f"{where} doc_id"),
            "text": texts,
            "is_undecodable": is_undecodable,
            "given_rank": ranks,
            "given_score": normalised_values(scores, "score", f"{where} score"),
        }
    )
    return rows.append_column("fields", fields.rows("candidates", inside, len(structs))) if fields.names else rows


_Columns = tuple[pa.Array, pa.Array, pa.Array, pa.Array | None]  # titles, texts, which are undecodable, and fields


def _flat_chunks(opened: ParquetInput, fields: PassageFields) -> Iterator[_Columns]:
    own = fields.of("documents")
    for _, batch in read_batches(opened, ["title", "text", *own], mark_undecodable=True):
        titles, texts, is_undecodable = (batch.column(name) for name in ("title", "text", "is_undecodable"))
        if pc.any(is_undecodable).as_py():
            texts = pc.if_else(is_undecodable, pa.scalar(None, pa.string()), texts)
        yield titles, texts, is_undecodable, fields.rows("documents", batch, len(texts)) if own else None


def _nested_chunks(opened: ParquetInput) -> Iterator[_Columns]:
    for file, batch in read_batches(opened, ["query_id", "candidates"]):
        rows = unroll(opened, file.path, batch).combine_chunks()
        texts, marks = (rows.column(name).combine_chunks() for name in ("text", "is_undecodable"))
        yield pa.nulls(len(texts), pa.string()), texts, marks, None
