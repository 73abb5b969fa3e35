"""A run's order as a file for other tools: TREC, Parquet or JSON lines.

A file appears under its name only when it is complete.
"""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import BinaryIO, Literal

import pyarrow as pa
import pyarrow.parquet as pq

from tasks.report.run_lookup import find_ranked_run
from tasks.report.sql_shell import read_rows
from tasks.store.score_tables import EXPORT_SCHEMA, Tally, score_tables
from tasks.system.atomic_files import whole_file
from tasks.system.database import read_sql
from tasks.system.errors import ConfigError, InputError

TableForm = Literal["parquet", "jsonl"]
ExportForm = Literal["trec"] | TableForm
Writer = Callable[[BinaryIO, Iterable[pa.Table]], None]
FORMS: Mapping[str, ExportForm] = {  # by how a file's name ends
    ".parquet": "parquet",
    ".jsonl": "jsonl",
    **dict.fromkeys((".trec", ".run", ".txt"), "trec"),
}
SCORE_DIGITS = 9  # every float32 has its own nine digits: a strict order stays one


@dataclass(frozen=True, slots=True)
class Exported:
    """What an export wrote."""

    output: Path
    num_queries: int
    num_rows: int


def form_of(output: Path) -> ExportForm:
    """The form that a file's name says.

    Raises:
        ConfigError: it ends in none that is known.
    """
    if output.suffix not in FORMS:
        raise ConfigError(f"--output {output}: the extension must be one of {', '.join(FORMS)}; else give --format.")
    return FORMS[output.suffix]


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
        raise ConfigError(f"--top-k {top_k}: expected 1 or more.")
    require_folder(output)
    run = find_ranked_run(database, run_id)
    write = _trec_writer(run.name) if form == "trec" else table_writer(form, EXPORT_SCHEMA)
    tally = Tally()
    with whole_file(output) as stream:
        write(stream, tally.counted(score_tables(partial(_read_file, database), run_id, top_k)))
    return Exported(output, tally.num_queries, tally.num_rows)


def require_folder(output: Path) -> None:
    """Raises ConfigError where a file cannot be written because of where it is to be."""
    if output.is_dir() or not output.parent.is_dir():
        raise ConfigError(f"--output {output}: expected a file in an existing folder.")


def _read_file(database: Path, name: str, parameters: Mapping[str, object]) -> pa.Table:
    return read_rows(database, read_sql(name), parameters)


def table_writer(form: TableForm, schema: pa.Schema) -> Writer:
    """What writes tables of a schema: a row group or more each, or an object a row."""
    return partial(_write_parquet, schema=schema) if form == "parquet" else _write_jsonl


def _trec_writer(tag: str) -> Writer:
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


def _write_parquet(stream: BinaryIO, tables: Iterable[pa.Table], *, schema: pa.Schema) -> None:
    with pq.ParquetWriter(stream, schema, write_page_checksum=True) as writer:
        for table in tables:
            writer.write_table(table)
