"""Judgments: Parquet, or one text file of the field's kinds. Read and checked before a night, and again after it.

Measures are computed by native code that trusts its values: a grade of 10^12 gave an nDCG of 10^17, one of 2^62 ended
the process. Knows nothing of measures.
"""

from dataclasses import dataclass, replace
from datetime import date
from hashlib import sha256

import fsspec
import pyarrow as pa
import pyarrow.compute as pc

from tasks.inputs.footers import MAGIC
from tasks.inputs.locations import TEXT_SUFFIXES, file_errors, resolve_path, wanted_files
from tasks.inputs.missing_columns import MissingColumns
from tasks.inputs.parquet_files import ParquetInput, input_digest, open_input, read_batches
from tasks.inputs.parquet_schema import Column
from tasks.inputs.text_columns import named_columns, numbers, read_columns
from tasks.settings import InputSettings
from tasks.system.errors import InputError

QRELS = pa.schema([("query_id", pa.string()), ("doc_id", pa.string()), ("relevance", pa.int64())])
BEIR_HEADER = ["query-id", "corpus-id", "score"]
LOWEST_GRADE, HIGHEST_GRADE = -10, 1_000  # TREC's junk pages are -2; graded scales go to 4, some to 100
GRADE = f"a whole number from {LOWEST_GRADE} to {HIGHEST_GRADE:,}"


@dataclass(frozen=True, slots=True)
class Judgments:
    """Rows of QRELS, each once, without nulls, one grade a pair of query and document."""

    rows: pa.Table
    digest: str  # of the files: see `input_digest`; of a text file SHA-256 of what it says


def read_qrels(settings: InputSettings, night: date) -> Judgments:
    """Reads `[inputs] qrels`: Parquet, a TREC qrels file, or BEIR's tsv.

    Raises:
        InputError: no such file, a damaged one, columns that are no judgments, a null, a grade out of range, or a pair
            judged in several ways.
    """
    assert settings.qrels is not None, "no [inputs] qrels"
    path = resolve_path(settings.qrels)
    if is_text_file(path):
        rows, digest = read_judgments(path)
    else:
        opened = open_qrels(settings, night)
        rows, digest, path = _parquet_rows(opened), input_digest([opened]), opened.files[0].path
    rows = rows.group_by(QRELS.names).aggregate([]).select(QRELS.names)  # each row once
    _check_pairs(path, rows)
    return Judgments(rows, digest)


def qrels_columns(names: dict[str, str]) -> tuple[Column, ...]:
    """The columns of judgments, under their names in the files."""
    return (
        Column("query_id", "id", names.get("query_id", "query_id")),
        Column("doc_id", "id", names.get("doc_id", "doc_id")),
        Column("relevance", "relevance", names.get("relevance", "relevance")),
    )


def open_qrels(settings: InputSettings, night: date) -> ParquetInput:
    """Finds the Parquet files of `[inputs] qrels` and checks footers and schema.

    Raises:
        InputError: see `open_input`.
    """
    assert settings.qrels is not None, "no [inputs] qrels"
    columns = qrels_columns(settings.columns.qrels)
    path = resolve_path(settings.qrels)
    wanted = replace(wanted_files(settings, "qrels", night), partition=None)
    return open_input("qrels", path, columns, wanted, allow_empty=settings.allow_empty)


def qrels_missing(settings: InputSettings, night: date) -> list[MissingColumns]:
    """What `[inputs] qrels` lacks, to be told with what other inputs lack; what else is wrong is told after that."""
    try:
        if settings.qrels is not None and not is_text_file(resolve_path(settings.qrels)):
            open_qrels(settings, night)
    except MissingColumns as error:
        return [error]
    except InputError:
        pass
    return []


def is_text_file(path: str) -> bool:
    """Whether the path is one file of TREC's or BEIR's kind, by name and first bytes: no table that has our columns."""
    if path.endswith((".parquet", ".parq", *(each for each in TEXT_SUFFIXES if ".tsv" not in each))):
        return False
    with file_errors(path):
        filesystem, root = fsspec.core.url_to_fs(path)
        if not filesystem.isfile(root):
            return False
        with filesystem.open(root, "rb") as stream:
            return bool(stream.read(len(MAGIC)) != MAGIC)


def read_judgments(path: str) -> tuple[pa.Table, str]:
    """A TREC qrels file or BEIR's tsv: columns query_id, doc_id, relevance; and the SHA-256 of what they say.

    Raises:
        InputError: naming file and line, where a line is something else or its grade out of range; or there is no line.
    """
    rows = read_columns(path)
    if list(rows.iloc[:1, :3].to_numpy().flat) == BEIR_HEADER:
        rows = named_columns(path, rows[1:], "query_id doc_id relevance")
    else:
        rows = named_columns(path, rows, "query_id 0 doc_id relevance")
    if rows.empty:
        raise InputError(f"{path}: no judgments. Expected a TREC qrels file, or a BEIR tsv with its header.")
    rows["relevance"] = numbers(path, rows["relevance"], r"[+-]?[0-9]{1,4}", GRADE, (LOWEST_GRADE, HIGHEST_GRADE))
    said = rows[QRELS.names]
    digest = sha256(said.to_csv(index=False).encode()).hexdigest()
    return pa.Table.from_pandas(said, QRELS, preserve_index=False), digest


def _parquet_rows(opened: ParquetInput) -> pa.Table:
    batches = []
    for file, batch in read_batches(opened, QRELS.names):
        grades = batch.column("relevance")
        is_outside = pc.or_(pc.less(grades, LOWEST_GRADE), pc.greater(grades, HIGHEST_GRADE))
        if pc.any(is_outside).as_py():
            row = batch.filter(is_outside).to_pylist()[0]
            column = opened.column("relevance").file_name
            where = f"qrels: {file.path}: column {column!r}, query {row['query_id']!r}, document {row['doc_id']!r}"
            advice = "Name the column of judgments in [inputs.columns.qrels] relevance."
            raise InputError(f"{where}: the relevance is {row['relevance']}, expected {GRADE}. {advice}")
        batches.append(batch)
    return pa.Table.from_batches(batches, schema=QRELS)


def _check_pairs(where: str, rows: pa.Table) -> None:
    """Of distinct rows, whether each pair of query and document has one grade."""
    if any(column.null_count for column in rows.columns):
        raise InputError(f"qrels: {where}: a null among query_id, doc_id and relevance.")
    pairs = rows.group_by(["query_id", "doc_id"]).aggregate([([], "count_all")])
    repeated = pairs.filter(pc.greater(pairs.column("count_all"), 1))
    if repeated.num_rows:
        first = repeated.slice(0, 1).to_pylist()[0]
        raise InputError(
            f"qrels: {where}: {first['query_id']!r}, {first['doc_id']!r} is judged in several ways "
            f"({pc.sum(repeated.column('count_all')).as_py()} rows). Keep one row a pair."
        )
