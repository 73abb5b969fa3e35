"""Other tools' files: a run exported as TREC, Parquet or JSONL; TREC, BEIR and RankLLM files imported as our input.

Lines are split on any white space, so ids of TREC files have none. What is written appears under its name only when it
is complete. Knows nothing of measures.
"""

import gzip
import json
import os
import shutil
import zlib
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from hashlib import sha256
from math import isfinite
from pathlib import Path
from typing import Any, BinaryIO, Literal

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tasks.database import read_sql
from tasks.errors import ConfigError, InputError, PackrankError, StoreError, first_line
from tasks.judge.queries import find_ranked_run, read_rows
from tasks.judge.summary import SummaryTable, pairs
from tasks.keep.tables import SCHEMAS

ExportForm = Literal["trec", "parquet", "jsonl"]
Query = Callable[[str, Mapping[str, object]], pa.Table]  # name of a SQL file, its parameters -> its rows

QUERIES_A_READ = 2_000  # bounds memory, and the time for which a writer waits
DOCUMENTS_A_WRITE = 2_048
SCORE_DIGITS = 9  # every float32 has its own nine digits: a strict order stays one
EXPORT_SCHEMA = SCHEMAS["scores"].remove(SCHEMAS["scores"].get_field_index("run_id"))
BEIR_QRELS_HEADER = ["query-id", "corpus-id", "score"]
RANKLLM_TEXTS = ("text", "segment", "contents", "content", "body", "passage")  # in the order that RankLLM looks

CANDIDATES = pa.schema(
    [("query_id", pa.string()), ("doc_id", pa.string()), ("rank", pa.int64()), ("score", pa.float64())]
)
QUERIES = pa.schema([("query_id", pa.string()), ("text", pa.string())])
DOCUMENTS = pa.schema([("doc_id", pa.string()), ("title", pa.string()), ("text", pa.string())])
QRELS = pa.schema([("query_id", pa.string()), ("doc_id", pa.string()), ("relevance", pa.int64())])


@dataclass(frozen=True, slots=True)
class Exported:
    """What an export wrote."""

    output: Path
    num_queries: int
    num_rows: int


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


def export_run(database: Path, run_id: str, form: ExportForm, output: Path, *, top_k: int | None = None) -> Exported:
    """Writes a finished run's order, rows of queries that it reused included.

    Args:
        database: where the run lies; it is open for one span of queries at a time.
        run_id: a complete or published run.
        form: 'trec' (tag: the run's name), 'parquet' or 'jsonl' (the columns of `scores`).
        output: replaced when the new file is complete.
        top_k: only the first so many of each query.

    Raises:
        ConfigError: the file's folder is not there, or `top_k` is below 1.
        InputError: an id with white space or without a character, which a TREC run cannot carry.
        StoreError: the run's rows have no strict order; or see `read_rows`.
        PackrankError: no such run, an unfinished one, or the file cannot be written.
    """
    if top_k is not None and top_k < 1:
        raise ConfigError(f"--top-k {top_k}: wanted 1 or more.")
    if output.is_dir() or not output.parent.is_dir():
        raise ConfigError(f"--output {output}: wanted a file in a folder that is there.")
    run = find_ranked_run(database, run_id)
    write = {"trec": _trec_writer(run.name), "parquet": _write_parquet, "jsonl": _write_jsonl}[form]
    tally = Tally()
    with whole_file(output) as stream:
        write(stream, tally.counted(score_tables(partial(_read_file, database), run_id, top_k)))
    return Exported(output, tally.num_queries, tally.num_rows)


def read_judgments(path: str) -> tuple[pa.Table, str]:
    """A TREC qrels file or BEIR's tsv: columns query_id, doc_id, relevance; and the SHA-256 of its lines.

    Raises:
        InputError: naming file and line, where a line is something else; or there is no line.
    """
    columns: dict[str, list[Any]] = {name: [] for name in QRELS.names}
    digest = sha256()
    is_beir = False
    for number, line in _numbered_lines(path):
        digest.update(line.encode() + b"\n")
        parts = line.split()
        if not columns["query_id"] and not is_beir and parts == BEIR_QRELS_HEADER:
            is_beir = True
            continue
        if len(parts) != (3 if is_beir else 4):
            wanted = "3 (query-id corpus-id score)" if is_beir else "4 (query_id 0 doc_id relevance)"
            raise InputError(f"{path}, line {number}: {len(parts)} columns, wanted {wanted}. Write the line again.")
        for name, value in zip(QRELS.names, (parts[0], parts[-2], _whole(path, number, parts[-1])), strict=True):
            columns[name].append(value)
    if not columns["query_id"]:
        raise InputError(f"{path}: no judgments. Wanted a TREC qrels file, or a BEIR tsv with its header.")
    return pa.table(columns, schema=QRELS), digest.hexdigest()


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
    with _whole_folder(folder) as aside:
        made = _import_requests(aside, sources) if sources.rankllm is not None else _import_trec(aside, sources)
    return replace(made, folder=folder.absolute())


class Tally:
    """Counts what an export streams."""

    def __init__(self) -> None:
        self.num_queries = 0
        self.num_rows = 0

    def counted(self, tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
        """The same tables, counted as they pass."""
        for table in tables:
            self.num_queries += len(table.column("query_id").unique())
            self.num_rows += table.num_rows
            yield table


def score_tables(query: Query, run_id: str, top_k: int | None = None) -> Iterator[pa.Table]:
    """The run's rows by query_id and rank, whole queries at a time, so that others get their turn at the database.

    Raises:
        StoreError: the rows have no strict order.
    """
    listed = query("summary/list_queries", {"run_id": run_id})
    queries = sorted(listed.column("query_id").to_pylist())
    for start in range(0, len(queries), QUERIES_A_READ):
        span = queries[start : start + QUERIES_A_READ]
        names = {"run_id": run_id, "first_query_id": span[0], "last_query_id": span[-1], "top_k": top_k}
        table = query("judge/list_scores", names).cast(EXPORT_SCHEMA)
        _check_order(run_id, table)
        yield table


def _read_file(database: Path, name: str, parameters: Mapping[str, object]) -> pa.Table:
    return read_rows(database, read_sql(name), parameters)


def _check_order(run_id: str, table: pa.Table) -> None:
    """A run that failed its checks may have rows that another tool would read in another order."""
    if table.num_rows == 0:
        return
    counts = table.group_by(["query_id", "doc_id"]).aggregate([([], "count_all")])
    repeated = counts.filter(pc.greater(counts.column("count_all"), 1)).to_pylist()
    queries = table.column("query_id").to_numpy()
    scores = table.column("score").to_numpy()
    wrong = np.flatnonzero((queries[1:] == queries[:-1]) & ~(scores[1:] < scores[:-1]))
    if repeated or len(wrong):
        query = repeated[0]["query_id"] if repeated else queries[wrong[0]]
        what = f"lists {repeated[0]['doc_id']!r} twice" if repeated else "has scores that do not fall with the rank"
        raise StoreError(f"run {run_id}: query {query!r} {what}. See check_results; compute it again with --rerun.")


def _trec_writer(tag: str) -> Callable[[BinaryIO, Iterable[pa.Table]], None]:
    def write(stream: BinaryIO, tables: Iterable[pa.Table]) -> None:
        for table in tables:
            columns = [table.column(name).to_pylist() for name in ("query_id", "doc_id", "rank", "score")]
            lines = [trec_line(*row, tag=tag) for row in zip(*columns, strict=True)]
            stream.write("".join(lines).encode())

    return write


def trec_line(query_id: str, doc_id: str, rank: int, score: float, *, tag: str) -> str:
    """One line of a TREC run; the score is a float32 and reads back as the same one.

    Raises:
        InputError: an id that would not be read back as one column.
    """
    for what, name in (("query", query_id), ("document", doc_id)):
        if name.split() != [name]:
            raise InputError(
                f"export: {what} id {name!r} of query {query_id!r} is empty or holds white space, which separates the "
                "columns of a TREC run. Use --format parquet or jsonl."
            )
    return f"{query_id} Q0 {doc_id} {rank} {score:.{SCORE_DIGITS}g} {tag}\n"


def _write_jsonl(stream: BinaryIO, tables: Iterable[pa.Table]) -> None:
    for table in tables:
        lines = [json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n" for row in table.to_pylist()]
        stream.write("".join(lines).encode())


def _write_parquet(stream: BinaryIO, tables: Iterable[pa.Table]) -> None:
    with pq.ParquetWriter(stream, EXPORT_SCHEMA, write_page_checksum=True) as writer:
        for table in tables:
            writer.write_table(table)


@contextmanager
def whole_file(output: Path) -> Iterator[BinaryIO]:
    """A file beside the output that takes its name at the end, and is removed if there is no end."""
    aside = output.with_name(f".{output.name}.{os.getpid()}.part")
    try:
        with aside.open("wb") as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        aside.replace(output)
    except OSError as error:
        raise PackrankError(f"{output}: cannot be written: {first_line(error)}") from error
    finally:
        aside.unlink(missing_ok=True)


@contextmanager
def _whole_folder(folder: Path) -> Iterator[Path]:
    """As `whole_file`, for a new or empty folder."""
    aside = folder.absolute().with_name(f".{folder.absolute().name}.{os.getpid()}.part")
    try:
        aside.mkdir(parents=True)
        yield aside
        aside.replace(folder)
    except OSError as error:
        raise PackrankError(f"{folder}: cannot be written: {first_line(error)}") from error
    finally:
        shutil.rmtree(aside, ignore_errors=True)


class _RunRows:
    """Candidate rows in file order, as numbers: ids are kept once."""

    def __init__(self) -> None:
        self.query_numbers: dict[str, int] = {}
        self.doc_numbers: dict[str, int] = {}
        self._queries = array("q")
        self._docs = array("q")
        self._ranks = array("q")
        self._scores = array("d")
        self._lines = array("q")

    def add(self, query_id: str, doc_id: str, rank: int, score: float, line: int = 0) -> None:
        """One row; `line` is where it stands, for `check_once`."""
        self._queries.append(self.query_numbers.setdefault(query_id, len(self.query_numbers)))
        self._docs.append(self.doc_numbers.setdefault(doc_id, len(self.doc_numbers)))
        self._ranks.append(rank)
        self._scores.append(score)
        self._lines.append(line)

    def check_once(self, path: str) -> None:
        """Raises InputError at the first row that lists a document of its query again."""
        pair = np.array(self._queries) * max(len(self.doc_numbers), 1) + np.array(self._docs)
        order = np.argsort(pair, kind="stable")
        again = order[1:][pair[order][1:] == pair[order][:-1]]
        if len(again):
            row = int(again.min())
            query, doc = list(self.query_numbers)[self._queries[row]], list(self.doc_numbers)[self._docs[row]]
            raise InputError(
                f"{path}, line {self._lines[row]}: query {query!r} lists document {doc!r} again "
                f"({len(again)} such rows). Keep one row a pair."
            )

    def ranked(self) -> pa.Table:
        """The rows of CANDIDATES: queries in the order in which they came, each best first."""
        queries, scores = np.array(self._queries), np.array(self._scores)
        lowest, highest = np.full(len(self.query_numbers), np.inf), np.full(len(self.query_numbers), -np.inf)
        np.minimum.at(lowest, queries, scores)
        np.maximum.at(highest, queries, scores)
        says_nothing = (lowest == highest)[queries]
        order = np.lexsort((np.where(says_nothing, np.array(self._ranks), -scores), queries))  # stable: file order
        queries = queries[order]
        starts = np.searchsorted(queries, np.arange(len(self.query_numbers)))
        columns = {
            "query_id": pa.array(list(self.query_numbers), pa.string()).take(queries),
            "doc_id": pa.array(list(self.doc_numbers), pa.string()).take(np.array(self._docs)[order]),
            "rank": np.arange(len(queries)) - starts[queries] + 1,
            "score": scores[order],
        }
        return pa.table(columns, schema=CANDIDATES)


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
    rows, texts = _RunRows(), _Texts()
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


def _write_candidates(folder: Path, rows: _RunRows) -> int:
    ranked = rows.ranked()
    pq.write_table(ranked, folder / "candidates.parquet", write_page_checksum=True)
    return int(ranked.num_rows)


def _write_judgments(folder: Path, path: str | None) -> int | None:
    if path is None:
        return None
    judgments, _ = read_judgments(path)
    pq.write_table(judgments, folder / "qrels.parquet", write_page_checksum=True)
    return int(judgments.num_rows)


def _read_run(path: str) -> _RunRows:
    rows = _RunRows()
    for number, line in _numbered_lines(path):
        parts = line.split()
        if len(parts) != 6:
            raise InputError(
                f"{path}, line {number}: {len(parts)} columns, wanted 6 (query_id Q0 doc_id rank score tag). "
                "Ids must not hold white space."
            )
        query_id, _, doc_id, rank, score, _ = parts
        rows.add(query_id, doc_id, _whole(path, number, rank), _number(f"{path}, line {number}", score), number)
    if not rows.query_numbers:
        raise InputError(f"{path}: no line. Wanted a TREC run: query_id Q0 doc_id rank score tag.")
    rows.check_once(path)
    return rows


def _beir_queries(path: str, wanted: Mapping[str, int]) -> Iterator[dict[str, Any]]:
    for where, found in _needed_objects(path, wanted):
        yield {"query_id": _id(where, found, "_id"), "text": _text(where, found, "text")}


def _beir_documents(path: str, wanted: Mapping[str, int]) -> Iterator[dict[str, Any]]:
    for where, found in _needed_objects(path, wanted):
        yield {
            "doc_id": _id(where, found, "_id"),
            "title": _title(where, found),
            "text": _text(where, found, "text"),
        }


def _needed_objects(path: str, wanted: Mapping[str, int]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The lines whose `_id` is wanted; one that comes twice has two texts, of which neither is right."""
    seen: set[str] = set()
    for where, found in _json_lines(path):
        name = _id(where, found, "_id")
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


def _request_documents(path: str, rows: _RunRows, texts: _Texts) -> Iterator[dict[str, Any]]:
    """Each document once, as it comes; queries and candidates are noted on the way."""
    for where, request in _json_array(path) if _is_array(path) else _json_lines(path):
        query, candidates = request.get("query"), request.get("candidates")
        if not isinstance(query, dict) or not isinstance(candidates, list):
            raise InputError(f'{where}: wanted {{"query": {{...}}, "candidates": [...]}} as RankLLM writes it.')
        query_id = _id(where, query, "qid")
        if query_id in texts.queries:
            raise InputError(f"{where}: query {query_id!r} comes a second time. Keep one request a query.")
        texts.queries[query_id] = _text(where, query, "text")
        listed: set[str] = set()
        for number, candidate in enumerate(candidates, 1):
            spot = f"{where}, candidate {number}"
            document = _request_document(spot, candidate)
            if document["doc_id"] in listed:
                raise InputError(
                    f"{spot}: document {document['doc_id']!r} is listed again. Keep one candidate a document."
                )
            listed.add(document["doc_id"])
            rows.add(query_id, document["doc_id"], number, _number(spot, candidate.get("score")))
            if texts.is_new(spot, document):
                yield document


def _request_document(where: str, candidate: object) -> dict[str, Any]:
    document = candidate.get("doc") if isinstance(candidate, dict) else None
    if not isinstance(candidate, dict) or not isinstance(document, dict):
        raise InputError(f'{where}: wanted {{"docid", "score", "doc": {{...}}}} as RankLLM writes it.')
    key = next((name for name in RANKLLM_TEXTS if name in document), RANKLLM_TEXTS[0])
    return {
        "doc_id": _id(where, candidate, "docid"),
        "title": _title(where, document),
        "text": _text(where, document, key),
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


def _numbered_lines(path: str) -> Iterator[tuple[int, str]]:
    """The lines that are not blank, from 1, of a file that may be compressed (.gz)."""
    number = 0
    try:
        with fsspec.open(path, "rb", compression="infer") as stream:
            for number, line in enumerate(stream, 1):
                text = line.decode("utf-8-sig" if number == 1 else "utf-8")
                if text.strip():
                    yield number, text.rstrip("\r\n")
    except UnicodeDecodeError as error:
        raise InputError(f"{path}, line {number}: not UTF-8: {first_line(error)}. Write the file again.") from error
    except (OSError, EOFError, zlib.error, gzip.BadGzipFile, ImportError, ValueError) as error:
        raise InputError(f"{path}: cannot be read: {first_line(error)}") from error


def _json_lines(path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    for number, line in _numbered_lines(path):
        where = f"{path}, line {number}"
        try:
            found = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise InputError(f"{where}: not JSON: {first_line(error)}. Write the line again.") from error
        yield where, _as_object(where, found)


def _json_array(path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """The objects of one JSON array, which is read at once."""
    try:
        found = json.loads("\n".join(line for _, line in _numbered_lines(path)))
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: not JSON: {first_line(error)}. Write the file again.") from error
    for number, each in enumerate(found, 1):
        where = f"{path}, request {number}"
        yield where, _as_object(where, each)


def _is_array(path: str) -> bool:
    first = next(_numbered_lines(path), (0, ""))[1]
    return first.lstrip().startswith("[")


def _as_object(where: str, found: object) -> dict[str, Any]:
    if not isinstance(found, dict):
        raise InputError(f"{where}: {type(found).__name__}, wanted a JSON object.")
    return found


def _id(where: str, found: Mapping[str, Any], key: str) -> str:
    """An id as text: numbers in decimal."""
    value = found.get(key)
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if isinstance(value, str) and value:
        return _encodable(where, key, value)
    raise InputError(f"{where}: {key!r} is {type(value).__name__}, wanted a text or a whole number.")


def _text(where: str, found: Mapping[str, Any], key: str) -> str:
    value = found.get(key)
    if not isinstance(value, str):
        raise InputError(f"{where}: {key!r} is {type(value).__name__}, wanted a text.")
    return _encodable(where, key, value)


def _title(where: str, found: Mapping[str, Any]) -> str | None:
    """BEIR writes an empty title where there is none."""
    return _text(where, found, "title") or None if found.get("title") is not None else None


def _encodable(where: str, key: str, value: str) -> str:
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise InputError(f"{where}: {key!r} holds half a character (a lone surrogate). Write it again.") from error
    return value


def _whole(path: str, number: int, text: str) -> int:
    try:
        value = int(text)
    except ValueError as error:
        raise InputError(f"{path}, line {number}: {text!r} where a whole number was wanted.") from error
    if abs(value) >= 1 << 63:
        raise InputError(f"{path}, line {number}: {text!r} does not fit 64 bits.")
    return value


def _number(where: str, found: object) -> float:
    try:
        value = float(found) if isinstance(found, str | int | float) else float("nan")
    except (ValueError, OverflowError):
        value = float("nan")
    if not isfinite(value):
        raise InputError(f"{where}: the score is {found!r}, wanted a number.")
    return value
