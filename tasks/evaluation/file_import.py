"""TREC, BEIR and RankLLM files imported as our input.

Lines are split on any white space, so ids of TREC files have none. The folder appears under its name only when it is
complete.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tasks.evaluation.candidate_rows import CandidateRows
from tasks.evaluation.json_records import (
    finite_number,
    id_field,
    is_json_array,
    json_array,
    json_lines,
    text_field,
    title_field,
)
from tasks.inputs.qrels import numbered_lines, read_judgments, whole_number
from tasks.report.summary_tables import SummaryTable, pairs
from tasks.system.atomic_files import whole_folder
from tasks.system.errors import ConfigError, InputError

DOCUMENTS_A_WRITE = 2_048
RANKLLM_TEXTS = ("text", "segment", "contents", "content", "body", "passage")  # in the order that RankLLM looks
QUERIES = pa.schema([("query_id", pa.string()), ("text", pa.string())])
DOCUMENTS = pa.schema([("doc_id", pa.string()), ("title", pa.string()), ("text", pa.string())])


@dataclass(frozen=True, slots=True)
class ImportSources:
    """Files to import, each a path or URL, possibly .gz: a run with its texts, or requests that hold both."""

    run: str | None = None  # TREC: query_id Q0 doc_id rank score tag
    queries: str | None = None  # BEIR: {"_id", "text"} a line
    corpus: str | None = None  # BEIR: {"_id", "title", "text"} a line
    rankllm: str | None = None  # {"query": {"qid", "text"}, "candidates": [{"docid", "score", "doc"}]}: array or lines
    qrels: str | None = None  # TREC or BEIR


@dataclass(frozen=True, slots=True)
class Imported:
    """What an import wrote, and what the sources lack."""

    folder: Path
    num_candidates: int
    num_queries: int
    num_documents: int
    num_judgments: int | None  # None: no judgments were given
    num_missing_queries: int  # named by the run, without a text
    num_missing_documents: int

    @property
    def table(self) -> SummaryTable:
        """The counts."""
        figures = [
            ("queries", self.num_queries),
            ("documents", self.num_documents),
            ("candidates", self.num_candidates),
            ("judgments", self.num_judgments),
        ]
        return pairs(f"Imported into {self.folder}", figures, self._missing())

    @property
    def inputs_lines(self) -> str:
        """The section to paste into a settings file."""
        names = ["queries", "documents", "candidates", *(["qrels"] if self.num_judgments is not None else [])]
        lines = [f"{name} = {json.dumps(str(self.folder / f'{name}.parquet'), ensure_ascii=False)}" for name in names]
        return "\n".join(["[inputs]", *lines])

    def _missing(self) -> str | None:
        if not self.num_missing_queries and not self.num_missing_documents:
            return None
        return (
            f"Without a text: {self.num_missing_documents} documents and {self.num_missing_queries} queries that the "
            "run names. Their candidates are kept: a night sets them aside in quarantine."
        )


def import_files(folder: Path, sources: ImportSources) -> Imported:
    """Makes our four Parquet files of other tools' files, in a new or empty folder.

    Ids are text; a rank is recomputed from the score, best first, equal scores in file order; where all scores of a
    query are equal, from the file's own rank. Only queries and documents that the run names are written.

    Raises:
        ConfigError: the folder holds something, or the sources do not belong together.
        InputError: naming file and line, where one cannot be read or a document is listed twice; or nothing matches.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(f"{folder}: is there and not an empty folder. Name a new one.")
    flat = (sources.run, sources.queries, sources.corpus)
    if (sources.rankllm is None) == (None in flat) or (sources.rankllm is not None and any(flat)):
        raise ConfigError("import: give --run, --queries and --corpus, or --rankllm alone; --qrels goes with either.")
    with whole_folder(folder) as aside:
        made = _import_requests(aside, sources) if sources.rankllm is not None else _import_trec(aside, sources)
    return replace(made, folder=folder.absolute())


def _import_trec(folder: Path, sources: ImportSources) -> Imported:
    assert sources.run is not None
    assert sources.queries is not None
    assert sources.corpus is not None
    rows = _read_run(sources.run)
    queries = _write_rows(folder / "queries.parquet", QUERIES, _beir_queries(sources.queries, rows.query_numbers))
    _check_found(sources.queries, sources.run, "queries", queries, rows.query_numbers)
    documents = _write_rows(folder / "documents.parquet", DOCUMENTS, _beir_documents(sources.corpus, rows.doc_numbers))
    _check_found(sources.corpus, sources.run, "documents", documents, rows.doc_numbers)
    return Imported(
        folder=folder,
        num_candidates=_write_candidates(folder, rows),
        num_queries=queries,
        num_documents=documents,
        num_judgments=_write_judgments(folder, sources.qrels),
        num_missing_queries=len(rows.query_numbers) - queries,
        num_missing_documents=len(rows.doc_numbers) - documents,
    )


def _import_requests(folder: Path, sources: ImportSources) -> Imported:
    assert sources.rankllm is not None
    rows, texts = CandidateRows(), _Texts()
    documents = _request_documents(sources.rankllm, rows, texts)
    num_documents = _write_rows(folder / "documents.parquet", DOCUMENTS, documents)
    if not rows.query_numbers:
        raise InputError(f"{sources.rankllm}: no request with candidates. Wanted RankLLM's requests.")
    queries = [{"query_id": query, "text": text} for query, text in texts.queries.items()]
    return Imported(
        folder=folder,
        num_candidates=_write_candidates(folder, rows),
        num_queries=_write_rows(folder / "queries.parquet", QUERIES, queries),
        num_documents=num_documents,
        num_judgments=_write_judgments(folder, sources.qrels),
        num_missing_queries=0,
        num_missing_documents=0,
    )


def _write_candidates(folder: Path, rows: CandidateRows) -> int:
    ranked = rows.ranked()
    pq.write_table(ranked, folder / "candidates.parquet", write_page_checksum=True)
    return int(ranked.num_rows)


def _write_judgments(folder: Path, path: str | None) -> int | None:
    if path is None:
        return None
    judgments, _ = read_judgments(path)
    pq.write_table(judgments, folder / "qrels.parquet", write_page_checksum=True)
    return int(judgments.num_rows)


def _read_run(path: str) -> CandidateRows:
    rows = CandidateRows()
    for number, line in numbered_lines(path):
        parts = line.split()
        if len(parts) != 6:
            raise InputError(
                f"{path}, line {number}: {len(parts)} columns, wanted 6 (query_id Q0 doc_id rank score tag). "
                "Ids must not hold white space."
            )
        query_id, _, doc_id, rank, score, _ = parts
        rows.add(
            query_id, doc_id, whole_number(path, number, rank), finite_number(f"{path}, line {number}", score), number
        )
    if not rows.query_numbers:
        raise InputError(f"{path}: no line. Wanted a TREC run: query_id Q0 doc_id rank score tag.")
    rows.check_once(path)
    return rows


def _beir_queries(path: str, wanted: Mapping[str, int]) -> Iterator[dict[str, Any]]:
    for where, found in _needed_objects(path, wanted):
        yield {"query_id": id_field(where, found, "_id"), "text": text_field(where, found, "text")}


def _beir_documents(path: str, wanted: Mapping[str, int]) -> Iterator[dict[str, Any]]:
    for where, found in _needed_objects(path, wanted):
        yield {
            "doc_id": id_field(where, found, "_id"),
            "title": title_field(where, found),
            "text": text_field(where, found, "text"),
        }


def _needed_objects(path: str, wanted: Mapping[str, int]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The lines whose `_id` is wanted; one that comes twice has two texts, of which neither is right."""
    seen: set[str] = set()
    for where, found in json_lines(path):
        name = id_field(where, found, "_id")
        if name not in wanted:
            continue
        if name in seen:
            raise InputError(f"{where}: _id {name!r} comes a second time. Keep one line an id.")
        seen.add(name)
        yield where, found


class _Texts:
    """What requests say of queries, and a mark of each document's text."""

    def __init__(self) -> None:
        self.queries: dict[str, str] = {}
        self._marks: dict[str, bytes] = {}

    def is_new(self, where: str, document: Mapping[str, Any]) -> bool:
        """Whether the document was not met before; raises InputError where it was, with another text."""
        doc_id = document["doc_id"]
        mark = sha256(repr((document["title"], document["text"])).encode()).digest()
        if doc_id not in self._marks:
            self._marks[doc_id] = mark
            return True
        if self._marks[doc_id] != mark:
            raise InputError(f"{where}: document {doc_id!r} has another text than before. Keep one.")
        return False


def _request_documents(path: str, rows: CandidateRows, texts: _Texts) -> Iterator[dict[str, Any]]:
    """Each document once, as it comes; queries and candidates are noted on the way."""
    for where, request in json_array(path) if is_json_array(path) else json_lines(path):
        query, candidates = request.get("query"), request.get("candidates")
        if not isinstance(query, dict) or not isinstance(candidates, list):
            raise InputError(f'{where}: wanted {{"query": {{...}}, "candidates": [...]}} as RankLLM writes it.')
        query_id = id_field(where, query, "qid")
        if query_id in texts.queries:
            raise InputError(f"{where}: query {query_id!r} comes a second time. Keep one request a query.")
        texts.queries[query_id] = text_field(where, query, "text")
        listed: set[str] = set()
        for number, candidate in enumerate(candidates, 1):
            spot = f"{where}, candidate {number}"
            document = _request_document(spot, candidate)
            if document["doc_id"] in listed:
                raise InputError(
                    f"{spot}: document {document['doc_id']!r} is listed again. Keep one candidate a document."
                )
            listed.add(document["doc_id"])
            rows.add(query_id, document["doc_id"], number, finite_number(spot, candidate.get("score")))
            if texts.is_new(spot, document):
                yield document


def _request_document(where: str, candidate: object) -> dict[str, Any]:
    document = candidate.get("doc") if isinstance(candidate, dict) else None
    if not isinstance(candidate, dict) or not isinstance(document, dict):
        raise InputError(f'{where}: wanted {{"docid", "score", "doc": {{...}}}} as RankLLM writes it.')
    key = next((name for name in RANKLLM_TEXTS if name in document), RANKLLM_TEXTS[0])
    return {
        "doc_id": id_field(where, candidate, "docid"),
        "title": title_field(where, document),
        "text": text_field(where, document, key),
    }


def _check_found(path: str, run: str, what: str, num_found: int, wanted: Mapping[str, int]) -> None:
    if num_found == 0:
        raise InputError(
            f"{path}: has none of the {len(wanted)} {what} that {run} names (such as {next(iter(wanted))!r}). "
            "Give the files that belong together."
        )


def _write_rows(path: Path, schema: pa.Schema, rows: Iterable[Mapping[str, Any]]) -> int:
    """Writes rows as they come, a few thousand at a time; returns how many."""
    num_rows = 0
    batch: list[Mapping[str, Any]] = []
    with pq.ParquetWriter(path, schema, write_page_checksum=True) as writer:
        for row in rows:
            batch.append(row)
            if len(batch) == DOCUMENTS_A_WRITE:
                writer.write_table(pa.Table.from_pylist(batch, schema))
                num_rows += len(batch)
                batch = []
        writer.write_table(pa.Table.from_pylist(batch, schema))
    return num_rows + len(batch)
