"""Loads the first stage's candidates, joins them with queries and documents, and settles each query's order.

A list is ordered by the given rank, ties by score and then doc_id; a list with a null rank, an input without ranks, or
one of which the settings say so, by score and then doc_id. Duplicates of a document in a list keep the best place.
Knows nothing of texts.
"""

import logging
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tasks.inputs.documents import nested_score, nested_struct, unroll
from tasks.inputs.fields import NOTHING_WANTED, PassageFields, WantedFields, field_columns
from tasks.inputs.parquet_files import ParquetInput, read_batches
from tasks.inputs.parquet_schema import Column, type_at
from tasks.inputs.query_subsets import CountTokens, IsOwn, check_no_null_ids, check_one_text_each, own_rows
from tasks.system.database import Database
from tasks.system.errors import InputError

logger = logging.getLogger(__name__)

OrderBy = Literal["rank", "score"] | None  # None: by rank where there is one

MAX_CANDIDATES = 65_535  # places in a list are stored as USMALLINT
MAX_CONTRADICTED_SHARE = 0.2  # places at which rank and score disagree; two retrievers' lists joined have some 0.5
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
    order_by: OrderBy = None
    lower_score_is_better: bool = False

    @property
    def order(self) -> dict[str, object]:
        """How the statements of sql/staging.sql are told which place is better."""
        return {"order_by_score": self.order_by == "score", "direction": -1 if self.lower_score_is_better else 1}


def candidate_columns(names: dict[str, str], fields: WantedFields = NOTHING_WANTED) -> tuple[Column, ...]:
    """The columns of `candidates`, under their names in the files; rank or score is needed."""
    return (
        Column("query_id", "id", names.get("query_id", "query_id")),
        Column("doc_id", "id", names.get("doc_id", "doc_id")),
        Column("rank", "rank", names.get("rank", "rank"), is_required=False, is_all_or_none=True),
        Column("score", "score", names.get("score", "score"), is_required=False, is_all_or_none=True),
        *field_columns(fields.of("candidates"), names, ("rank", "score")),
    )


def check_first_stage_order(opened: ParquetInput, order_by: OrderBy) -> None:
    """Row order in Parquet is no order.

    Raises:
        InputError: the candidates have neither rank nor score, or not the one that orders them.
    """
    if opened.source == "nested":
        file, name = opened.files[0], opened.column("candidates").file_name
        struct, field = nested_struct(opened), nested_score(opened).file_name
        if order_by == "score" and struct is not None and type_at(struct, field) is None:
            raise InputError(
                f"nested: {file.path}: [inputs] order_by = 'score', but {name!r} has no field {field!r} "
                f"({opened.type_of('candidates')}). Write it, or leave order_by out: the list's own order is taken."
            )
        return
    if not opened.files_with_rows:
        return
    file, rank, score = opened.files_with_rows[0], opened.column("rank"), opened.column("score")
    found = f"(found: {', '.join(file.schema.names)})"
    if order_by is not None and not opened.has(order_by):
        raise InputError(
            f"{opened.source}: {file.path} ({file.num_rows} rows): [inputs] order_by = {order_by!r}, but there is no "
            f"column {opened.column(order_by).file_name!r} {found}. Write it, or leave order_by out."
        )
    if not opened.has("rank") and not opened.has("score"):
        raise InputError(
            f"{opened.source}: {file.path} ({file.num_rows} rows): neither {rank.file_name!r} nor {score.file_name!r} "
            f"{found}: the first-stage order is unknown. Write one of them."
        )


def stage_candidates(database: Database, opened: ParquetInput, limits: CandidateLimits, fields: PassageFields) -> None:
    """Fills `candidate_rows` from flat candidates.

    Raises:
        InputError: a rank below `rank_base`.
    """
    rank_base = limits.rank_base
    own = fields.of("candidates")
    for file, batch in read_batches(opened, list(dict.fromkeys(["query_id", "doc_id", "rank", "score", *own]))):
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
                **({"fields": fields.rows("candidates", batch, batch.num_rows)} if own else {}),
            }
        )
        database.execute("staging/insert_candidate_rows", tables={"rows": own_rows(rows, limits.is_own)})


def stage_nested(
    database: Database, opened: ParquetInput, count_tokens: CountTokens, is_own: IsOwn | None, fields: PassageFields
) -> None:
    """Fills `query_rows`, `document_rows` and `candidate_rows` from the nested layout.

    Raises:
        InputError: a null query_id, or one query_id with two texts.
    """
    row_no = 0
    for file, batch in read_batches(opened, ["query_id", "text", "candidates"], mark_undecodable=True):
        check_no_null_ids(opened, file.path, file.num_rows, batch.column("query_id"))
        queries = own_rows(pa.Table.from_batches([batch.select(["query_id", "text", "is_undecodable"])]), is_own)
        lengths = count_tokens([text or "" for text in queries.column("text").to_pylist()])
        database.append("query_rows", queries.append_column("num_tokens", pa.array(lengths, pa.int32())))
        flat = unroll(opened, file.path, batch, fields)
        rows = own_rows(flat.append_column("row_no", pa.array(np.arange(row_no, row_no + flat.num_rows))), is_own)
        database.execute("staging/insert_nested_documents", tables={"rows": rows})
        database.execute("staging/insert_nested_candidates", tables={"rows": rows})
        row_no += flat.num_rows
    check_one_text_each(database, opened)


def match_candidates(database: Database, inputs: dict[str, ParquetInput], limits: CandidateLimits) -> int:
    """Numbers the queries, sets unmatched rows aside, orders each list, and numbers the documents that it needs.

    Fills `queries`, `quarantine`, `notes`, `ordered` and `documents`.

    Returns:
        How many candidates the longest list has.

    Raises:
        InputError: candidates that match no query or no document, or too many of them.
    """
    if "nested" in inputs:
        database.execute("staging/find_other_chunks", limits.order)
        database.execute("staging/drop_other_chunks")
    database.execute(
        "staging/number_queries", {"limit_queries": limits.limit_queries, "max_query_tokens": limits.max_query_tokens}
    )
    database.execute("staging/number_documents")
    _check_matches(database, inputs, limits)
    _check_order_is_known(database, inputs, limits)
    database.execute("staging/quarantine_queries", {"max_query_tokens": limits.max_query_tokens})
    database.execute("staging/quarantine_candidates", {"max_query_tokens": limits.max_query_tokens})
    has_rank = "nested" in inputs or inputs["candidates"].has("rank")
    database.execute("staging/order_candidates", {"top_k": limits.top_k, **limits.order})
    longest = _longest_list(database, inputs)
    database.execute("staging/note_repairs", {"has_rank": has_rank and limits.order_by != "score"})
    if limits.order_by is None:
        _warn_of_contradictions(database, inputs.get("nested") or inputs["candidates"], limits, has_rank=has_rank)
    database.execute("staging/keep_needed_documents")
    return longest


def _warn_of_contradictions(
    database: Database, candidates: ParquetInput, limits: CandidateLimits, *, has_rank: bool
) -> None:
    """Scores that rise with the rank are distances, or of something else than the rank."""
    where = f"{candidates.source}: {candidates.files[0].path}"
    is_lower = limits.lower_score_is_better
    distance = "is not a distance" if is_lower else "is a distance"
    advice = f"[inputs] lower_score_is_better = {str(not is_lower).lower()} if the score {distance}"
    if has_rank:
        (found,) = database.query("staging/count_contradictions").to_pylist()
        if found["num_contradictions"] > MAX_CONTRADICTED_SHARE * found["num_places"]:
            logger.warning(
                "%s: the score %s with the rank at %d of %d places. Lists are in the order of their ranks. Set %s, "
                'order_by = "score" if the rank is wrong, or order_by = "rank" if both are as they should be.',
                where,
                "falls" if is_lower else "rises",
                found["num_contradictions"],
                found["num_places"],
                advice,
            )
    elif "dist" in candidates.column("score").file_name.lower() and not is_lower:
        logger.warning(
            '%s: lists are ordered by column %r, the highest first. Set %s, or order_by = "score" if it is not.',
            where,
            candidates.column("score").file_name,
            advice,
        )


def _longest_list(database: Database, inputs: dict[str, ParquetInput]) -> int:
    (longest,) = database.query("staging/find_longest_list").to_pylist() or [{"num_candidates": 0}]
    if longest["num_candidates"] > MAX_CANDIDATES:
        source = inputs.get("candidates") or inputs["nested"]
        raise InputError(
            f"{source.source}: {source.files[0].path}: query {longest['query_id']!r} has "
            f"{longest['num_candidates']} candidates, at most {MAX_CANDIDATES} can be kept. Set [inputs] top_k."
        )
    return int(longest["num_candidates"])


def _check_order_is_known(database: Database, inputs: dict[str, ParquetInput], limits: CandidateLimits) -> None:
    (found,) = database.query("staging/count_ordered_rows", {"order_by_score": limits.order_by == "score"}).to_pylist()
    if found["num_ordered"] > 0 or found["num_rows"] == 0:
        return
    if limits.is_own is not None and found["num_rows"] < FEW_ROWS:
        return  # a shard's few rows say nothing of the night's
    source = inputs.get("candidates") or inputs["nested"]
    wanted = "score, which [inputs] order_by names" if limits.order_by == "score" else "rank or a score"
    raise InputError(
        f"{source.source}: {source.files[0].path}: none of {found['num_rows']} rows has a {wanted} (null, NaN and "
        "infinity do not count): the first-stage order is unknown. Write one."
    )


def check_repetitions(database: Database, inputs: dict[str, ParquetInput]) -> None:
    """After the memory was not enough: whether that is the input's fault.

    Raises:
        InputError: one pair of query and document comes more often than a list may be long.
    """
    found = database.query("staging/find_longest_repetition", {"max_candidates": MAX_CANDIDATES}).to_pylist()
    if found:
        source = inputs.get("candidates") or inputs["nested"]
        raise InputError(
            f"{source.source}: {source.files[0].path}: query {found[0]['query_id']!r} has document "
            f"{found[0]['doc_id']!r} in {found[0]['num_rows']} rows, which do not fit into [store] "
            "memory_limit. Write each pair once."
        )


def _check_matches(database: Database, inputs: dict[str, ParquetInput], limits: CandidateLimits) -> None:
    if "nested" in inputs:
        return  # each query brings its own documents
    for side, column in (("queries", "query_id"), ("documents", "doc_id")):
        (found,) = database.query(f"staging/count_unmatched_{side}").to_pylist()
        _check_side(database, inputs["candidates"], inputs[side], column, found, limits)


def _check_side(  # noqa: PLR0913  two sides of a join and what was found
    database: Database,
    candidates: ParquetInput,
    other: ParquetInput,
    column: str,
    found: dict[str, object],
    limits: CandidateLimits,
) -> None:
    max_unmatched_share = limits.max_unmatched_share
    num_rows, num_unmatched = int(str(found["num_rows"])), int(str(found["num_unmatched"]))
    if num_unmatched == 0:
        return
    tells_types = other.num_rows > 0 and not candidates.is_text and not other.is_text
    mixes_types = tells_types and candidates.holds_integers(column) != other.holds_integers(column)
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
        + _near(database, other.source, column)
    )


def _near(database: Database, side: str, column: str) -> str:
    """How ids that are missing differ from ones that are there, where that cannot be seen."""
    (found,) = database.query(f"staging/count_unmatched_{side}_near").to_pylist()
    return "".join(
        f" {num_ids} of the missing ids differ from one that is there only in {name}: write both as {sql}, in DuckDB."
        for num_ids, name, sql in (
            (found["by_normalization"], "Unicode normalisation (NFC, NFD)", f"nfc_normalize({column})"),
            (found["by_white_space"], "white space around them", f"trim({column})"),
            (found["by_case"], "upper and lower case", f"lower({column})"),
        )
        if num_ids
    )
