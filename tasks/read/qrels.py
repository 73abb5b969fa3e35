"""Judgments: Parquet, or one text file of the field's kinds. Found and checked before a night, read after it.

Knows nothing of measures.
"""

from dataclasses import replace
from datetime import date

import fsspec

from tasks.read.files.footers import MAGIC
from tasks.read.files.locations import file_errors
from tasks.read.parquet_files import Column, ParquetInput, open_input
from tasks.read.staging import resolve_path, wanted_files
from tasks.settings import InputSettings


def check_qrels(settings: InputSettings, night: date) -> None:
    """Whether `[inputs] qrels`, where given, can be read at all: a night must not find out after it has ranked.

    Raises:
        InputError: no such file, a damaged one, or columns that are not judgments.
    """
    if settings.qrels is not None and not is_text_file(resolve_path(settings.qrels)):
        open_qrels(settings, night)


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
