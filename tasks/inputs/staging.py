"""Reads a night's input once, and lays it out for ranking: queries in a fixed order, lists best first, tokens mapped.

    Parquet -> checked batches -> staging database (joins, orders, sets aside) -> flat files, read in place

Everything here is scratch: the folder can be thrown away at any time. Bounded memory: the database spills, texts
stream. Knows nothing of models, windows or runs.
"""

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import date
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tasks.inputs.candidates import (
    CandidateLimits,
    candidate_columns,
    check_first_stage_order,
    check_repetitions,
    match_candidates,
    stage_candidates,
    stage_nested,
)
from tasks.inputs.documents import (
    TextChunk,
    check_duplicates,
    document_columns,
    nested_columns,
    read_texts,
    stage_document_ids,
)
from tasks.inputs.fields import NO_FIELDS, NOTHING_WANTED, PassageFields, WantedFields, find_fields
from tasks.inputs.locations import resolve_path, wanted_files
from tasks.inputs.missing_columns import MissingColumns, told_together
from tasks.inputs.parquet_files import ParquetInput, check_partition_setting, input_digest, open_input
from tasks.inputs.parquet_schema import Column
from tasks.inputs.partitions import day_of
from tasks.inputs.qrels import qrels_missing
from tasks.inputs.query_subsets import query_columns, stage_queries
from tasks.inputs.token_store import (
    FieldChunk,
    PassageEncoder,
    TokenStore,
    mapped_array,
    write_field_store,
    write_token_store,
)
from tasks.settings import InputName, InputSettings
from tasks.system.database import Database, DatabaseLimits, open_scratch
from tasks.system.errors import OutOfMemory

DOC_INDEX_FILE = "candidate_documents.int32"
SCORES_FILE = "candidate_scores.float64"
FIELDS_FOLDER = "candidate_fields"
QUARANTINE_SCHEMA = pa.schema([(name, pa.string()) for name in ("source", "query_id", "doc_id", "reason", "detail")])
ROWS_PER_READ = 262_144
FIELDS_PER_READ = 16_384

OnMatched = Callable[[int], None]  # told the longest list's length


@dataclass(frozen=True, slots=True)
class NightInput:
    """The checked files of a night, not yet read."""

    inputs: dict[str, ParquetInput]  # by source
    digest: str  # SHA-256 over paths, sizes and footers
    partition: str | None  # 'candidates: dt=2026-11-28' where one was chosen
    fields: PassageFields = NO_FIELDS  # what stands beside the passages

    @property
    def num_candidate_rows(self) -> int | None:
        """By the footers; unknown before reading in the nested layout."""
        return self.inputs["candidates"].num_rows if "candidates" in self.inputs else None

    def dates(self) -> dict[str, date]:
        """The day that an input's partition is of, by source; inputs without such a partition are left out."""
        found = {source: day_of(each.partition or "") for source, each in self.inputs.items()}
        return {source: day for source, day in found.items() if day is not None}


@dataclass(frozen=True, slots=True)
class StagedInput:
    """What ranking reads. Queries are numbered 0 ..; query q's candidates are rows offsets[q] .. offsets[q + 1]."""

    query_ids: list[str]
    query_texts: list[str | None]
    query_status: list[str]  # ready, no_candidates, quarantined
    offsets: np.ndarray  # 1D int64, num_queries + 1
    doc_index: np.ndarray  # 1D int32, memory-mapped: each candidate's document, best first
    first_stage_score: np.ndarray  # 1D float64, memory-mapped, NaN: none
    lower_score_is_better: bool  # than a higher one
    doc_ids: pa.ChunkedArray  # by doc_index
    tokens: TokenStore
    field_tokens: TokenStore | None  # of each candidate, by its row; None where passages have no fields
    quarantine: pa.Table  # rows set aside, each with its reason
    notes: dict[str, int]  # repairs made, and how many rows they met

    @property
    def num_queries(self) -> int:
        """All of the run, those that cannot be ranked included."""
        return len(self.query_ids)

    @property
    def num_candidates(self) -> int:
        """Rows that get a score."""
        return int(self.offsets[-1])

    def list_length(self, query_index: int) -> int:
        """How many candidates the query has."""
        return int(self.offsets[query_index + 1] - self.offsets[query_index])


def open_night_input(settings: InputSettings, night: date, fields: WantedFields = NOTHING_WANTED) -> NightInput:
    """Finds the files and checks footers and schemas; reads no page of data.

    Raises:
        InputError: see `open_input`, `find_fields`.
        ConfigError: a partition that no input has.
    """
    columns: dict[InputName, tuple[Column, ...]] = {
        "queries": query_columns(settings.columns.queries),
        "documents": document_columns(settings.columns.documents, fields),
        "candidates": candidate_columns(settings.columns.candidates, fields),
        "nested": nested_columns(settings.columns.nested, fields),
    }
    inputs: dict[str, ParquetInput] = {}
    missing: list[MissingColumns] = []
    for source, names in columns.items():
        path, wanted = getattr(settings, source), wanted_files(settings, source, night)
        try:
            if path is not None:
                inputs[source] = open_input(source, resolve_path(path), names, wanted, allow_empty=settings.allow_empty)
        except MissingColumns as error:
            missing.append(error)
    found, lacking = find_fields(fields, inputs, missing)
    missing += lacking
    if missing:
        raise told_together([*missing, *qrels_missing(settings, night)], settings.columns.model_dump())
    check_partition_setting(settings.partition, list(inputs.values()))
    check_first_stage_order(inputs.get("nested") or inputs["candidates"], settings.order_by)
    chosen = [f"{source}: {each.partition}" for source, each in inputs.items() if each.partition is not None]
    return NightInput(inputs, input_digest(list(inputs.values())), ", ".join(chosen) or None, found)


def stage_input(  # noqa: PLR0913  input, limits and where it goes, once a night
    found: NightInput,
    folder: Path,
    encoder: PassageEncoder,
    limits: CandidateLimits,
    max_passage_tokens: int,
    database_limits: DatabaseLimits,
    on_matched: OnMatched | None = None,
) -> StagedInput:
    """Reads, checks, joins and lays out the night's input in `folder`, which is emptied first.

    `on_matched` is called when queries, candidates and documents are known to fit together; tokenising, most of the
    time, comes after that.

    Raises:
        InputError: naming file, column, rows, what was found and what is wanted.
        OutOfMemory: `[store] memory_limit` is not enough, and the input is not at fault.
    """
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    with open_scratch(folder / "staging.duckdb", database_limits) as database:
        database.execute("staging/create_rows")
        try:
            _stage_rows(database, found, encoder, limits)
            longest = match_candidates(database, found.inputs, limits)
        except OutOfMemory:
            check_repetitions(database, found.inputs)
            raise
        if on_matched is not None:
            on_matched(longest)
        reasons = write_token_store(folder, _needed_texts(database, found), encoder, max_passage_tokens)
        _quarantine_documents(database, reasons)
        database.execute("staging/stage_queries")
        _write_candidates(database, folder)
        if found.fields.of("candidates"):
            database.execute("staging/choose_candidate_fields", limits.order)
        if found.fields.names:
            _write_fields(database, folder, encoder, max_passage_tokens)
        return _open_staged(database, folder, lower_score_is_better=limits.lower_score_is_better)


def _stage_rows(database: Database, found: NightInput, encoder: PassageEncoder, limits: CandidateLimits) -> None:
    inputs = found.inputs
    if found.fields.names:
        database.execute("staging/add_field_columns")
    if "nested" in inputs:
        stage_nested(database, inputs["nested"], encoder.count_query_tokens, limits.is_own, found.fields)
        return
    stage_queries(database, inputs["queries"], encoder.count_query_tokens, limits.is_own)
    stage_candidates(database, inputs["candidates"], limits, found.fields)
    stage_document_ids(database, inputs["documents"], only_named=limits.only_named)
    check_duplicates(database, inputs["documents"], found.fields)


def _needed_texts(database: Database, found: NightInput) -> Iterator[TextChunk]:
    """The documents by doc_index; their fields stay in the staging database until their candidates need them."""
    texts = found.inputs.get("documents") or found.inputs["nested"]
    row_nos = database.query("staging/list_document_rows").column("row_no").to_numpy()
    first = 0
    for chunk in read_texts(texts, row_nos, found.fields):
        if chunk.fields:
            numbers = pa.array(range(first, first + len(chunk.fields)), pa.int32())
            shown = pa.array(chunk.fields, pa.list_(pa.string()))
            database.append("document_fields", pa.table({"doc_index": numbers, "fields": shown}))
        first += len(chunk.texts)
        yield chunk


def _quarantine_documents(database: Database, reasons: dict[int, str]) -> None:
    """Sets aside the candidates whose document has no text; `reasons` by doc_index."""
    bad = pa.table(
        {"doc_index": pa.array(list(reasons), pa.int32()), "reason": pa.array(list(reasons.values()), pa.string())}
    )
    database.execute("staging/quarantine_documents", tables={"bad": bad})


def _write_candidates(database: Database, folder: Path) -> None:
    with (folder / DOC_INDEX_FILE).open("wb") as doc_indexes, (folder / SCORES_FILE).open("wb") as scores:
        for batch in database.stream("staging/list_candidates", ROWS_PER_READ):
            doc_indexes.write(batch.column("doc_index").to_numpy().astype("<i4", copy=False).tobytes())
            scores.write(batch.column("first_stage_score").to_numpy().astype("<f8", copy=False).tobytes())


def _write_fields(database: Database, folder: Path, encoder: PassageEncoder, max_passage_tokens: int) -> None:
    """The fields of each candidate as token ids: a pair's own, since the first stage scores pairs."""
    batches = database.stream("staging/list_candidate_fields", FIELDS_PER_READ)
    chunks = (_field_chunk(*batch.columns) for batch in batches)
    num_cut = write_field_store(folder / FIELDS_FOLDER, chunks, encoder, max_passage_tokens)
    if num_cut:
        note = {"note": ["candidates whose fields alone are longer than max_passage_tokens"], "num_rows": [num_cut]}
        database.append("notes", pa.table(note))


def _field_chunk(of_candidate: pa.ListArray, of_document: pa.ListArray) -> FieldChunk:
    """Both columns have a list in every row, or in none: fields are of one input or of both."""
    num_rows = len(of_candidate)
    if of_document.null_count == num_rows:
        values = of_candidate.to_pylist()
        return FieldChunk(values, values)
    if of_candidate.null_count == num_rows:
        return FieldChunk(of_document.to_pylist(), [()] * num_rows)
    both = pc.coalesce(of_candidate.flatten(), of_document.flatten())
    offsets = pa.array(np.linspace(0, len(both), num_rows + 1, dtype=np.int32))
    return FieldChunk(pa.ListArray.from_arrays(offsets, both).to_pylist(), of_candidate.to_pylist())


def _open_staged(database: Database, folder: Path, *, lower_score_is_better: bool) -> StagedInput:
    queries = database.query("staging/list_queries")
    lengths = queries.column("num_candidates").to_numpy()
    notes = database.query("staging/list_notes").to_pylist()
    return StagedInput(
        query_ids=queries.column("query_id").to_pylist(),
        query_texts=queries.column("text").to_pylist(),
        query_status=queries.column("status").to_pylist(),
        offsets=np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]),
        doc_index=mapped_array(folder / DOC_INDEX_FILE, "<i4"),
        first_stage_score=mapped_array(folder / SCORES_FILE, "<f8"),
        lower_score_is_better=lower_score_is_better,
        doc_ids=_in_one_chunk(database.query("staging/list_documents").column("doc_id")),
        tokens=TokenStore(folder),
        field_tokens=TokenStore(folder / FIELDS_FOLDER) if (folder / FIELDS_FOLDER).is_dir() else None,
        quarantine=database.query("staging/list_quarantine").cast(QUARANTINE_SCHEMA),
        notes={row["note"]: row["num_rows"] for row in notes},
    )


def _in_one_chunk(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """DuckDB gives a chunk every few thousand rows, and each `take` looks through all of them."""
    return pa.chunked_array([column.combine_chunks()])
