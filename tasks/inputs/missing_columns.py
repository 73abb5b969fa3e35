"""What to write into the settings where files have columns of other names: guessed by usual names, then by spelling.

Knows nothing of how files are found and read.
"""

import difflib
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Self

import pyarrow as pa

from tasks.inputs.footers import InputFile
from tasks.inputs.parquet_schema import Column, inner_struct, type_at
from tasks.inputs.text_rows import SEPARATORS
from tasks.system.errors import InputError

UNKNOWN = "?"  # no column is like it
USUAL_NAMES = {  # of our columns, by those who call them otherwise
    "query_id": ("qid", "q_id", "query-id", "queryid", "topic_id", "topic", "_id", "id"),
    "doc_id": (
        *("docid", "docno", "did", "pid", "doc-id", "document_id", "passage_id", "corpus_id", "corpus-id"),
        *("item_id", "_id", "id", "doc"),
    ),
    "text": (
        *("body", "content", "contents", "passage", "segment", "query", "question", "query_text", "document"),
        *("description", "abstract"),
    ),
    "title": ("headline", "heading", "subject", "name"),
    "rank": ("position", "pos", "place"),
    "score": ("bm25", "bm25_score", "similarity", "sim", "_score", "distance"),
    "relevance": ("label", "rel", "grade", "judgment", "judgement", "score"),
    "candidates": ("hits", "results", "passages", "documents", "docs"),
}


class MissingColumns(InputError):
    """Columns that one input's files lack, and the names that they may have there."""

    def __init__(
        self, told: str, source: str, names: Mapping[str, str], looked: tuple[InputFile, tuple[Column, ...]]
    ) -> None:
        """`names`: ours -> the file's, UNKNOWN where none is like it; `looked`: the file, and what is read of it."""
        super().__init__(f"{told}. Set under [inputs] {columns_line({source: names})}, or rename upstream.")
        self.told = told
        self.source = source
        self.names = names
        self.file, self.columns = looked

    @classmethod
    def of_file(cls, source: str, file: InputFile, columns: Sequence[Column], lacking: Sequence[Column]) -> Self:
        """Of `columns` the file lacks `lacking`.

        Raises:
            InputError: the file is of the nested layout, or was to be and is not.
        """
        where = f"{source}: {file.path} ({file.num_rows} rows): "
        plural, quoted = "s" if len(lacking) > 1 else "", ", ".join(repr(each.file_name) for each in lacking)
        found = "found in its first line" if file.separator in tuple(SEPARATORS) else "found"
        said = f"{where}no column{plural} {quoted} ({found}: {', '.join(paths_told(file.schema, lacking))})"
        lists = {field.name: field.type for field in file.schema if inner_struct(field.type) is not None}
        if source != "nested":
            for name, kind in lists.items():
                if len(guess_names(inner_struct(kind), NESTED_FIELDS, is_text=file.is_text)) == len(NESTED_FIELDS):
                    raise InputError(f"{said}: this is the nested layout ({name}: {kind}); name it as [inputs] nested.")
        elif not lists and any(each.kind == "nested" for each in lacking):
            raise InputError(
                f"{said}: no column holds lists of candidates, so this is not the nested layout. Name flat files as "
                "[inputs] queries, documents and candidates."
            )
        return cls(said, source, names_for(file, columns, lacking), (file, tuple(columns)))


NESTED_FIELDS = (Column("doc_id", "id", "doc_id"), Column("text", "text", "text"))


def names_for(file: InputFile, columns: Sequence[Column], lacking: Sequence[Column]) -> dict[str, str]:
    """Our column -> the file's, of those that lack, and of others by usual names; UNKNOWN where none is like it."""
    given = {each.name: each.file_name for each in columns if each.name != each.file_name and each not in lacking}
    absent = [each for each in columns if type_at(file.schema, each.file_name) is None]
    taken = [each.file_name for each in columns if each not in absent]
    guesses = guess_names(file.schema, absent, taken, is_text=file.is_text)
    names = given | guesses | {each.name: guesses.get(each.name, UNKNOWN) for each in lacking if each in absent}
    for nested in (each for each in columns if each.kind == "nested"):
        kind = type_at(file.schema, names.get(nested.name, nested.file_name))
        struct = None if kind is None else inner_struct(kind)
        if struct is not None:
            fields = [each for each in nested.fields if type_at(struct, each.file_name) is None]
            taken = [each.file_name for each in nested.fields if each not in fields]
            found = guess_names(struct, fields, taken, is_text=file.is_text)
            names |= {each.name: found.get(each.name, UNKNOWN) for each in fields if each.is_required} | found
    return names


def guess_names(
    fields: pa.Schema | pa.StructType, columns: Sequence[Column], taken: Sequence[str] = (), *, is_text: bool
) -> dict[str, str]:
    """Our columns -> those of the file that they may be, none of them twice: all by usual names, the rest by spelling.

    An optional column is guessed by a usual name only.
    """
    free = {path: kind for path, kind in _paths(fields) if path not in taken}
    guesses: dict[str, str] = {}
    for by_spelling in (False, True):
        for column in columns:
            if column.name in guesses or (by_spelling and not column.is_required):
                continue
            own = column.name.rpartition(".")[2]
            fitting = [path for path, kind in free.items() if column.fits(kind, is_text=is_text)]
            last = {path.rpartition(".")[2].lower(): path for path in fitting}
            names = difflib.get_close_matches(own, last, n=1) if by_spelling else (own, *USUAL_NAMES.get(own, ()))
            found = next((last[name] for name in names if name in last), None)
            if found is not None:
                guesses[column.name] = found
                del free[found]
    return guesses


def told_together(errors: Sequence[MissingColumns], given: Mapping[str, Mapping[str, str]]) -> InputError:
    """One error for all inputs; `given` are the names that the settings have already."""
    mapped = {source: pairs for source, pairs in given.items() if pairs}
    names = dict(mapped)
    for error in errors:
        names[error.source] = {**names.get(error.source, {}), **error.names}
    instead = " in place of the columns that it has" if mapped else ""
    told = "; ".join(error.told for error in errors)
    by_hand = f" ({UNKNOWN!r}: no name is like it)" if any(UNKNOWN in each.values() for each in names.values()) else ""
    return InputError(f"{told}. Set under [inputs]{instead}{by_hand}: {columns_line(names)}")


def columns_line(names: Mapping[str, Mapping[str, str]]) -> str:
    """`[inputs] columns` as one line of TOML.

    >>> columns_line({"queries": {"query_id": "qid"}, "nested": {"candidates.doc_id": "id"}})
    'columns = { queries = { query_id = "qid" }, nested = { "candidates.doc_id" = "id" } }'
    """

    def table(pairs: Mapping[str, str]) -> str:
        keys = ((json.dumps(ours) if "." in ours else ours, theirs) for ours, theirs in pairs.items())
        return f"{{ {', '.join(f'{ours} = {json.dumps(theirs, ensure_ascii=False)}' for ours, theirs in keys)} }}"

    return f"columns = {{ {', '.join(f'{source} = {table(pairs)}' for source, pairs in names.items())} }}"


def _paths(fields: pa.Schema | pa.StructType) -> Iterator[tuple[str, pa.DataType]]:
    """Every column, and every field inside one, with its type."""
    for field in fields:
        yield field.name, field.type
        if pa.types.is_struct(field.type):
            yield from ((f"{field.name}.{path}", kind) for path, kind in _paths(field.type))


def paths_told(schema: pa.Schema, lacking: Sequence[Column]) -> list[str]:
    """The columns of a file; where fields of candidates lack, those."""
    inner = [each for each in lacking if "." in each.name]
    structs = {field.name: inner_struct(field.type) for field in schema} if inner else {}
    inside = [f"{name}.{field.name}" for name, struct in structs.items() if struct is not None for field in struct]
    return inside or [path for path, _ in _paths(schema)]
