"""TREC, BEIR and RankLLM files imported as our input.

Lines are split on any white space, so ids of TREC files have none. The folder appears under its name only when it is
complete.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import TypeAdapter

from tasks.evaluation.json_records import BeirDocument, BeirQuery, RankllmRequest, parse_json
from tasks.inputs.qrels import read_judgments
from tasks.inputs.text_columns import named_columns, numbered_lines, numbers, read_columns
from tasks.report.summary_tables import SummaryTable, pairs
from tasks.system.atomic_files import whole_folder
from tasks.system.errors import ConfigError, InputError

DOCUMENTS_A_WRITE = 2_048
QUERIES = pa.schema([("query_id", pa.string()), ("text", pa.string())])
DOCUMENTS = pa.schema([("doc_id", pa.string()), ("title", pa.string()), ("text", pa.string())])
CANDIDATES = pa.schema(
    [("query_id", pa.string()), ("doc_id", pa.string()), ("rank", pa.int64()), ("score", pa.float64())]
)


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
    query_ids, doc_ids = set(rows["query_id"]), set(rows["doc_id"])
    found = _named_records(sources.queries, TypeAdapter(BeirQuery), "query_id", query_ids)
    queries = _write_rows(folder / "queries.parquet", QUERIES, found)
    _check_found(sources.queries, sources.run, "queries", queries, query_ids)
    found = _named_records(sources.corpus, TypeAdapter(BeirDocument), "doc_id", doc_ids)
    documents = _write_rows(folder / "documents.parquet", DOCUMENTS, found)
    _check_found(sources.corpus, sources.run, "documents", documents, doc_ids)
    return Imported(
        folder=folder,
        num_candidates=_write_candidates(folder, rows),
        num_queries=queries,
        num_documents=documents,
        num_judgments=_write_judgments(folder, sources.qrels),
        num_missing_queries=len(query_ids) - queries,
        num_missing_documents=len(doc_ids) - documents,
    )


def _import_requests(folder: Path, sources: ImportSources) -> Imported:
    assert sources.rankllm is not None
    queries: dict[str, str] = {}
    rows: list[tuple[str, str, int, float]] = []
    documents = _request_documents(sources.rankllm, queries, rows)
    num_documents = _write_rows(folder / "documents.parquet", DOCUMENTS, documents)
    if not rows:
        raise InputError(f"{sources.rankllm}: no request with candidates. Expected RankLLM's requests.")
    texts = ({"query_id": query_id, "text": text} for query_id, text in queries.items())
    return Imported(
        folder=folder,
        num_candidates=_write_candidates(folder, pd.DataFrame(rows, columns=CANDIDATES.names)),
        num_queries=_write_rows(folder / "queries.parquet", QUERIES, texts),
        num_documents=num_documents,
        num_judgments=_write_judgments(folder, sources.qrels),
        num_missing_queries=0,
        num_missing_documents=0,
    )


def _write_candidates(folder: Path, rows: pd.DataFrame) -> int:
    """Writes the rows, queries in the order in which they came, each best first."""
    scores = rows.groupby("query_id", sort=False)["score"]
    says_nothing = scores.transform("min") == scores.transform("max")
    best_first = rows["rank"].where(says_nothing, -rows["score"])
    rows = rows.iloc[np.lexsort((best_first, scores.ngroup()))]  # stable: equal ones stay in file order
    rows = rows.assign(rank=rows.groupby("query_id").cumcount() + 1)
    table = pa.Table.from_pandas(rows, CANDIDATES, preserve_index=False)
    pq.write_table(table, folder / "candidates.parquet", write_page_checksum=True)
    return len(rows)


def _write_judgments(folder: Path, path: str | None) -> int | None:
    if path is None:
        return None
    judgments, _ = read_judgments(path)
    pq.write_table(judgments, folder / "qrels.parquet", write_page_checksum=True)
    return int(judgments.num_rows)


def _read_run(path: str) -> pd.DataFrame:
    rows = named_columns(path, read_columns(path), "query_id Q0 doc_id rank score tag")
    if rows.empty:
        raise InputError(f"{path}: no lines. Expected a TREC run: query_id Q0 doc_id rank score tag.")
    rows["rank"] = numbers(path, rows["rank"], r"[+-]?[0-9]{1,18}", "a whole number of at most 18 digits")
    rows["score"] = numbers(path, rows["score"], ".+", "a number")
    again = rows[rows.duplicated(["query_id", "doc_id"])]
    for line, row in again[:1].iterrows():
        raise InputError(
            f"{path}, line {line}: query {row['query_id']!r} lists document {row['doc_id']!r} again "
            f"({len(again)} such rows). Keep one row a pair."
        )
    return rows


def _named_records(path: str, kind: TypeAdapter[Any], id_name: str, wanted: set[str]) -> Iterator[dict[str, Any]]:
    """The lines whose id is wanted; one that comes twice has two texts, of which neither is right."""
    seen: set[str] = set()
    for number, line in numbered_lines(path):
        where = f"{path}, line {number}"
        record = parse_json(kind, where, line).model_dump()
        name = record[id_name]
        if name not in wanted:
            continue
        if name in seen:
            raise InputError(f"{where}: _id {name!r} comes a second time. Keep one line an id.")
        seen.add(name)
        yield record


def _read_requests(path: str) -> Iterator[tuple[str, RankllmRequest]]:
    """The requests of a file, with where each stands: a line each, or one array, which is read at once."""
    lines = numbered_lines(path)
    for number, line in lines:
        if number == 1 and line.lstrip().startswith("["):
            text = "\n".join([line, *(rest for _, rest in lines)])
            for place, request in enumerate(parse_json(TypeAdapter(list[RankllmRequest]), path, text)):
                yield f"{path}: {place}", request
        else:
            yield f"{path}, line {number}", parse_json(TypeAdapter(RankllmRequest), f"{path}, line {number}", line)


def _request_documents(
    path: str, queries: dict[str, str], rows: list[tuple[str, str, int, float]]
) -> Iterator[dict[str, Any]]:
    """Each document once, as it comes; queries and candidates are noted on the way."""
    marks: dict[str, int] = {}  # of each document's text: texts are not kept
    for where, request in _read_requests(path):
        query_id = request.query.query_id
        if query_id in queries:
            raise InputError(f"{where}: query {query_id!r} comes a second time. Keep one request a query.")
        queries[query_id] = request.query.text
        listed: set[str] = set()
        for place, candidate in enumerate(request.candidates):
            doc_id, document = candidate.doc_id, candidate.doc
            spot, mark = f"{where}: candidates.{place}: document {doc_id!r}", hash((document.title, document.text))
            if doc_id in listed:
                raise InputError(f"{spot} is listed again. Keep one candidate a document.")
            if marks.get(doc_id, mark) != mark:
                raise InputError(f"{spot} has another text than before. Keep one.")
            listed.add(doc_id)
            rows.append((query_id, doc_id, place + 1, candidate.score))
            if doc_id not in marks:
                marks[doc_id] = mark
                yield {"doc_id": doc_id, "title": document.title, "text": document.text}


def _check_found(path: str, run: str, what: str, num_found: int, wanted: set[str]) -> None:
    if num_found == 0:
        raise InputError(
            f"{path}: has none of the {len(wanted)} {what} that {run} names (such as {min(wanted)!r}). "
            "Give the files that belong together."
        )


def _write_rows(path: Path, schema: pa.Schema, rows: Iterator[dict[str, Any]]) -> int:
    """Writes rows as they come, a few thousand at a time; returns how many."""
    num_rows = 0
    with pq.ParquetWriter(path, schema, write_page_checksum=True) as writer:
        while batch := list(islice(rows, DOCUMENTS_A_WRITE)):
            writer.write_table(pa.Table.from_pylist(batch, schema))
            num_rows += len(batch)
    return num_rows
