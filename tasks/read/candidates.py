"""Loads the first stage's candidates, joins them with queries and documents, and settles each query's order.

A list is ordered by the given rank, ties by score and then doc_id; a list with a null rank, or an input without
ranks, by score and then doc_id. Duplicates of a document in a list keep the best place. Knows nothing of texts.
"""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tasks.database import Database
from tasks.errors import InputError
from tasks.read.documents import unroll
from tasks.read.parquet_files import Column, ParquetInput, read_batches
from tasks.read.queries import CountTokens, IsOwn, check_no_null_ids, check_one_text_each, own_rows

MAX_CANDIDATES = 65_535  # places in a list are stored as USMALLINT
FEW_ROWS = 1_000  # of a shard's candidates say little of the night's: a share is not judged by them


@dataclass(frozen=True, slots=True)
class CandidateLimits:
    """What `[inputs]` and `[checks]` say of candidates."""

    rank_base: int
    top_k: int | None
    max_unmatched_share: float
    limit_queries: int | None
    max_query_tokens: int
    is_own: IsOwn | None = None  # of which queries rows are staged at all; of all if not given
    only_named: bool = False  # documents that no staged candidate names are read past


def candidate_columns(names: dict[str, str]) -> tuple[Column, ...]:
    """The columns of `candidates`, under their names in the files; rank or score is needed."""
    return (
        Column("query_id", "id", names.get("query_id", "query_id")),
        Column("doc_id", "id", names.get("doc_id", "doc_id")),
        Column("rank", "rank", names.get("rank", "rank"), is_required=False, is_all_or_none=True),
        Column("score", "score", names.get("score", "score"), is_required=False, is_all_or_none=True),
    )


def nested_columns(names: dict[str, str]) -> tuple[Column, ...]:
    """The columns of the nested layout, under their names in the files."""
    return (
        Column("query_id", "id", names.get("query_id", "query_id")),
        Column("text", "text", names.get("text", "text")),
        Column("candidates", "nested", names.get("candidates", "candidates")),
    )


def check_first_stage_order(opened: ParquetInput) -> None:
    """Row order in Parquet is no order.

    Raises:
        InputError: the candidates have neither rank nor score.
    """
    rank, score = opened.column("rank"), opened.column("score")
    if not opened.has("rank") and not opened.has("score"):
        file = opened.files[0]
        raise InputError(
            f"{opened.source}: {file.path} ({file.num_rows} rows): neither {rank.file_name!r} nor {score.file_name!r} "
            f"(found: {', '.join(file.schema.names)}): the first-stage order is unknown. Write one of them."
        )


def stage_candidates(database: Database, opened: ParquetInput, limits: CandidateLimits) -> None:
    """Fills `candidate_rows` from flat candidates.

    Raises:
        InputError: a rank below `rank_base`.
    """
    rank_base = limits.rank_base
    for file, batch in read_batches(opened, ["query_id", "doc_id", "rank", "score"]):
        ranks = batch.column("rank")
        too_low = pc.less(ranks, rank_base)
        num_too_low = pc.sum(too_low).as_py() or 0
        if num_too_low:
            raise InputError(
                f"{opened.source}: {file.path}: column {opened.column('rank').file_name!r} is below {rank_base} in "
                f"{num_too_low} of {file.num_rows} rows (smallest {pc.min(ranks).as_py()}). Ranks start at "
                f"{rank_base}; set [inputs] rank_base = 0 for lists that start at 0."
            )
        rows = pa.table(
            {
                "query_id": batch.column("query_id"),
                "doc_id": batch.column("doc_id"),
                "given_rank": ranks,
                "given_score": batch.column("score"),
            }
        )
        database.execute("stage/insert_candidate_rows", tables={"rows": own_rows(rows, limits.is_own)})


def stage_nested(database: Database, opened: ParquetInput, count_tokens: CountTokens, is_own: IsOwn | None) -> None:
    """Fills `query_rows`, `document_rows` and `candidate_rows` from the nested layout.

    Raises:
        InputError: a null query_id, or one query_id with two texts.
    """
    row_no = 0
    for file, batch in read_batches(opened, ["query_id", "text", "candidates"]):
        check_no_null_ids(opened, file.path, file.num_rows, batch.column("query_id"))
        queries = own_rows(pa.Table.from_batches([batch.select(["query_id", "text"])]), is_own)
        lengths = count_tokens([text or "" for text in queries.column("text").to_pylist()])
        queries = queries.append_column("num_tokens", pa.array(lengths, pa.int32()))
        database.execute("stage/insert_query_rows", tables={"rows": queries})
        flat = unroll(batch, f"{opened.source}: {file.path}: candidates")
        rows = own_rows(flat.append_column("row_no", pa.array(np.arange(row_no, row_no + flat.num_rows))), is_own)
        database.execute("stage/insert_nested_documents", tables={"rows": rows})
        database.execute("stage/insert_nested_candidates", tables={"rows": rows})
        row_no += flat.num_rows
    check_one_text_each(database, opened)


def match_candidates(database: Database, inputs: dict[str, ParquetInput], limits: CandidateLimits) -> None:
    """Numbers the queries, sets unmatched rows aside, orders each list, and numbers the documents that it needs.

    Fills `queries`, `quarantine`, `notes`, `ordered` and `documents`.

    Raises:
        InputError: candidates that match no query or no document, or too many of them.
    """
    database.execute(
        "stage/number_queries", {"limit_queries": limits.limit_queries, "max_query_tokens": limits.max_query_tokens}
    )
    database.execute("stage/number_documents")
    _check_matches(database, inputs, limits)
    database.execute("stage/quarantine_queries", {"max_query_tokens": limits.max_query_tokens})
    database.execute("stage/quarantine_candidates", {"max_query_tokens": limits.max_query_tokens})
    database.execute("stage/order_candidates", {"top_k": limits.top_k})
    _check_lengths(database, inputs)
    database.execute("stage/note_repairs", {"has_rank": "nested" in inputs or inputs["candidates"].has("rank")})
    database.execute("stage/keep_needed_documents")


def _check_lengths(database: Database, inputs: dict[str, ParquetInput]) -> None:
    longest = database.query("stage/find_longest_list", {"max_candidates": MAX_CANDIDATES}).to_pylist()
    if longest:
        source = inputs.get("candidates") or inputs["nested"]
        raise InputError(
            f"{source.source}: {source.files[0].path}: query {longest[0]['query_id']!r} has "
            f"{longest[0]['num_candidates']} candidates, at most {MAX_CANDIDATES} can be kept. Set [inputs] top_k."
        )


def _check_matches(database: Database, inputs: dict[str, ParquetInput], limits: CandidateLimits) -> None:
    if "nested" in inputs:
        return  # each query brings its own documents
    for side, column in (("queries", "query_id"), ("documents", "doc_id")):
        (found,) = database.query(f"stage/count_unmatched_{side}").to_pylist()
        _check_side(inputs["candidates"], inputs[side], column, found, limits)


def _check_side(
    candidates: ParquetInput, other: ParquetInput, column: str, found: dict[str, object], limits: CandidateLimits
) -> None:
    max_unmatched_share = limits.max_unmatched_share
    num_rows, num_unmatched = int(str(found["num_rows"])), int(str(found["num_unmatched"]))
    if num_unmatched == 0:
        return
    mixes_types = candidates.holds_integers(column) != other.holds_integers(column)
    if num_unmatched < num_rows and not mixes_types and num_unmatched <= max_unmatched_share * num_rows:
        return
    if limits.is_own is not None and num_rows < FEW_ROWS and not mixes_types:
        return  # the check of the rows that were set aside sees them all
    missing, there = found["missing"], found["there"]
    raise InputError(
        f"candidates: {candidates.files[0].path}: {column} ({candidates.type_of(column)}): "
        f"{num_rows - num_unmatched} of {num_rows} rows match {other.source}: {other.files[0].path}: "
        f"{column} ({other.type_of(column)}). Missing: {missing}; there: {there}. Ids are compared as text; "
        + (
            "write both as text, zeros included."
            if mixes_types
            else f"at most a share of {max_unmatched_share} may be missing ([checks] max_unmatched_share)."
        )
    )
