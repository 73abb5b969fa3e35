"""Looks through a folder of somebody's data: which file is which input, and what its columns are called.

Only files in the folder, or in folders inside it, are looked at: Parquet, CSV, JSON Lines, TREC's runs and
judgments, BEIR's layout. Decides by columns first, then by names; what is not clear is left to its owner.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path

import pyarrow.compute as pc

from tasks.inputs.candidates import candidate_columns
from tasks.inputs.documents import document_columns, nested_columns
from tasks.inputs.locations import SUFFIXES, TEXT_SUFFIXES, Wanted
from tasks.inputs.missing_columns import UNKNOWN, names_for
from tasks.inputs.parquet_files import ParquetInput, open_input, read_batches
from tasks.inputs.parquet_schema import Column, lacking_columns, type_at
from tasks.inputs.qrels import BEIR_HEADER, qrels_columns, read_judgments
from tasks.inputs.query_subsets import query_columns
from tasks.inputs.text_columns import numbered_lines
from tasks.settings import InputName
from tasks.system.errors import InputError

COLUMNS: Mapping[InputName, Sequence[Column]] = {  # in the order in which inputs are looked for
    "nested": nested_columns({}),
    "qrels": qrels_columns({}),
    "candidates": candidate_columns({}),
    "queries": query_columns({}),
    "documents": document_columns({}),
}
NAMED = {  # what files are called that hold it
    "nested": ("nested",),
    "qrels": ("qrel", "judg", "label", "relevance"),
    "candidates": ("cand", "run", "bm25", "result", "hit", "first"),
    "queries": ("quer", "topic", "question"),
    "documents": ("doc", "corpus", "passage", "collection", "item", "product"),
}
DATA_SUFFIXES = (*SUFFIXES, *TEXT_SUFFIXES)
JUDGED_SUFFIXES = (".txt", ".tsv", ".qrels", ".qrel")
SPLITS = ("test", "dev", "train")  # of BEIR's judgments, the first that is there


@dataclass(frozen=True, slots=True)
class FoundInput:
    """A file or folder that is one of the inputs."""

    source: InputName
    path: str  # seen from the folder
    num_rows: int
    names: Mapping[str, str]  # our columns -> the file's, where they differ; UNKNOWN where that is not clear
    rank_base: int = 1


@dataclass(frozen=True, slots=True)
class _Entry:
    """Something in the folder that may be an input."""

    path: str
    opened: ParquetInput | None  # None: judgments of TREC or BEIR
    num_rows: int

    def is_named(self, source: InputName) -> bool:
        return any(word in self.path.lower() for word in NAMED[source])

    def is_named_otherwise(self, source: InputName) -> bool:
        return not self.is_named(source) and any(self.is_named(each) for each in COLUMNS)

    def names(self, source: InputName) -> dict[str, str] | None:
        """How its columns are called as that input; None if it cannot be that."""
        if self.opened is None:
            return {} if source == "qrels" else None
        columns, (file, *_) = COLUMNS[source], self.opened.files_with_rows
        lacking = lacking_columns(file, columns)
        names = names_for(file, columns, lacking)
        if any(each.kind == "nested" for each in lacking) and names.get("candidates", UNKNOWN) == UNKNOWN:
            return None
        is_there = {each.name for each in columns if type_at(file.schema, each.file_name) is not None} | names.keys()
        if source == "candidates" and not is_there & {"rank", "score"}:
            return None
        if source == "qrels" and names.get("relevance") == "score" and not self.is_named(source):
            return None  # the first stage's
        return names


def find_inputs(folder: Path) -> tuple[list[FoundInput], list[str]]:
    """The inputs in a folder, and a line on everything else in it that looks like data.

    Raises:
        InputError: it cannot be looked through.
    """
    entries, lines = _entries(folder)
    found: list[FoundInput] = []
    for is_clear in (True, False):
        for source in COLUMNS:
            if any(each.source in (source, "nested") and source != "qrels" for each in found):
                continue
            if any(each.source == source for each in found):
                continue
            options = [
                (entry, names) for entry in entries if (names := _names(entry, source, is_clear=is_clear)) is not None
            ]
            if options:
                entry, names = min(options, key=lambda option: _doubt(option[0], source))
                found.append(FoundInput(source, entry.path, entry.num_rows, names, _rank_base(entry, source, names)))
                entries.remove(entry)
    return found, [*lines, *(f"{entry.path}: not used ({entry.num_rows:,} rows)" for entry in entries)]


def _names(entry: _Entry, source: InputName, *, is_clear: bool) -> dict[str, str] | None:
    """First what is clear by its columns, then what is only named so."""
    names = entry.names(source)
    if names is None or (is_clear and (UNKNOWN in names.values() or entry.is_named_otherwise(source))):
        return None
    return names if is_clear or UNKNOWN not in names.values() or entry.is_named(source) else None


def _doubt(entry: _Entry, source: InputName) -> tuple[bool, int, int, str]:
    """How doubtful it is that this is the input: by its name, for judgments by the split, else by its size."""
    split = next((place for place, name in enumerate(SPLITS) if name in entry.path), len(SPLITS))
    rows = entry.num_rows if source == "queries" else -entry.num_rows
    return not entry.is_named(source), split, rows, entry.path


def _entries(folder: Path) -> tuple[list[_Entry], list[str]]:
    entries, lines = [], []
    try:
        children = sorted(each for each in folder.iterdir() if each.name[0] not in "._")
    except OSError as error:
        raise InputError(
            f"{folder}: cannot be looked through: {error.strerror}. Give the folder of your data."
        ) from None
    inside = [each for child in children if child.is_dir() for each in sorted(child.glob("*.tsv")) if _is_judged(each)]
    for path in [*children, *inside]:
        name = str(path.relative_to(folder))
        if path.is_dir() and any(each.parent == path for each in inside):
            continue
        try:
            if path.suffix in JUDGED_SUFFIXES and _is_judged(path):
                entries.append(_Entry(name, None, read_judgments(str(path))[0].num_rows))
            elif any(each.name.lower().endswith(DATA_SUFFIXES) for each in ([path], path.rglob("*"))[path.is_dir()]):
                opened = open_input(name, str(path), (), Wanted(date.today()), allow_empty=True)
                if opened.files_with_rows:
                    entries.append(_Entry(name, opened, opened.num_rows))
            elif path.suffix in JUDGED_SUFFIXES and len(_first_line(path)) == 6:
                lines.append(f"{name}: a TREC run? Call it {path.stem}.run to have it read.")
        except InputError as error:
            lines.append(str(error))
    return entries, lines


def _is_judged(path: Path) -> bool:
    parts = _first_line(path)
    return parts == BEIR_HEADER or (len(parts) == 4 and parts[1] in ("0", "Q0") and parts[3].lstrip("-").isdecimal())


def _first_line(path: Path) -> list[str]:
    return next(numbered_lines(str(path)), (0, ""))[1].split()


def _rank_base(entry: _Entry, source: InputName, names: Mapping[str, str]) -> int:
    if source != "candidates" or entry.opened is None:
        return 1
    opened = replace(entry.opened, columns=candidate_columns(dict(names)))
    if not opened.has("rank"):
        return 1
    lowest = [pc.min(batch.column("rank")).as_py() for _, batch in read_batches(opened, ["rank"])]
    return 0 if 0 in lowest else 1
