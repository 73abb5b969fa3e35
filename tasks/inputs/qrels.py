"""Judgments: Parquet, or one text file of the field's kinds. Read and checked before a night, and again after it.

Measures are computed by native code that trusts its values: a grade of 10^12 gave an nDCG of 10^17, one of 2^62 ended
the process. Knows nothing of measures.
"""

import gzip
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import date
from hashlib import sha256
from typing import Any

import fsspec
import pyarrow as pa
import pyarrow.compute as pc

from tasks.inputs.footers import MAGIC
from tasks.inputs.locations import file_errors
from tasks.inputs.parquet_files import ParquetInput, input_digest, open_input, read_batches
from tasks.inputs.parquet_schema import Column
from tasks.inputs.staging import resolve_path, wanted_files
from tasks.settings import InputSettings
from tasks.system.errors import InputError, first_line

QRELS = pa.schema([("query_id", pa.string()), ("doc_id", pa.string()), ("relevance", pa.int64())])
BEIR_HEADER = ["query-id", "corpus-id", "score"]
LOWEST_GRADE, HIGHEST_GRADE = -10, 1_000  # TREC's junk pages are -2; graded scales go to 4, some to 100


@dataclass(frozen=True, slots=True)
class Judgments:
    """Rows of QRELS, each once, without nulls, one grade a pair of query and document."""

    rows: pa.Table
    digest: str  # of the files: see `input_digest`; of a text file SHA-256 of its lines


def check_qrels(settings: InputSettings, night: date) -> None:
    """Reads `[inputs] qrels`, where given: a night must not find out after it has ranked.

    Raises:
        InputError: see `read_qrels`.
    """
    if settings.qrels is not None:
        read_qrels(settings, night)


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


def open_qrels(settings: InputSettings, night: date) -> ParquetInput:
    """Finds the Parquet files of `[inputs] qrels` and checks footers and schema.

    Raises:
        InputError: see `open_input`.
    """
    assert settings.qrels is not None, "no [inputs] qrels"
    names = settings.columns.qrels
    columns = (
        Column("query_id", "id", names.get("query_id", "query_id")),
        Column("doc_id", "id", names.get("doc_id", "doc_id")),
        Column("relevance", "relevance", names.get("relevance", "relevance")),
    )
    path = resolve_path(settings.qrels)
    wanted = replace(wanted_files(settings, "qrels", night), partition=None)
    return open_input("qrels", path, columns, wanted, allow_empty=settings.allow_empty)


def is_text_file(path: str) -> bool:
    """Whether the path is one file that is no Parquet, by name and first bytes."""
    if path.endswith((".parquet", ".parq")):
        return False
    with file_errors(path):
        filesystem, root = fsspec.core.url_to_fs(path)
        if not filesystem.isfile(root):
            return False
        with filesystem.open(root, "rb") as stream:
            return bool(stream.read(len(MAGIC)) != MAGIC)


def read_judgments(path: str) -> tuple[pa.Table, str]:
    """A TREC qrels file or BEIR's tsv: columns query_id, doc_id, relevance; and the SHA-256 of its lines.

    Raises:
        InputError: naming file and line, where a line is something else or its grade out of range; or there is no line.
    """
    columns: dict[str, list[Any]] = {name: [] for name in QRELS.names}
    digest = sha256()
    is_beir = False
    for number, line in numbered_lines(path):
        digest.update(line.encode() + b"\n")
        parts = line.split()
        if not columns["query_id"] and not is_beir and parts == BEIR_HEADER:
            is_beir = True
            continue
        if len(parts) != (3 if is_beir else 4):
            wanted = "3 (query-id corpus-id score)" if is_beir else "4 (query_id 0 doc_id relevance)"
            raise InputError(f"{path}, line {number}: {len(parts)} columns, wanted {wanted}. Write the line again.")
        grade = whole_number(path, number, parts[-1])
        if not LOWEST_GRADE <= grade <= HIGHEST_GRADE:
            raise _out_of_range(f"{path}, line {number}: the relevance", grade, "Write the line again.")
        for name, value in zip(QRELS.names, (parts[0], parts[-2], grade), strict=True):
            columns[name].append(value)
    if not columns["query_id"]:
        raise InputError(f"{path}: no judgments. Wanted a TREC qrels file, or a BEIR tsv with its header.")
    return pa.table(columns, schema=QRELS), digest.hexdigest()


def numbered_lines(path: str) -> Iterator[tuple[int, str]]:
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


def whole_number(path: str, number: int, text: str) -> int:
    """The number in a line of a file.

    Raises:
        InputError: it is none, or needs more than 64 bits.
    """
    try:
        value = int(text)
    except ValueError as error:
        raise InputError(f"{path}, line {number}: {text!r} where a whole number was wanted.") from error
    if abs(value) >= 1 << 63:
        raise InputError(f"{path}, line {number}: {text!r} does not fit 64 bits.")
    return value


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
            raise _out_of_range(f"{where}: the relevance", row["relevance"], advice)
        batches.append(batch)
    return pa.Table.from_batches(batches, schema=QRELS)


def _out_of_range(what: str, grade: int, advice: str) -> InputError:
    return InputError(f"{what} is {grade}, wanted a whole number from {LOWEST_GRADE} to {HIGHEST_GRADE:,}. {advice}")


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
