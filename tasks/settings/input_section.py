"""`[inputs]`: where queries, documents, candidates and judgments lie, and how their columns are called."""

from collections.abc import Collection, Sequence
from typing import Annotated, Literal, Self

from pydantic import (
    Field,
    model_validator,
)

from tasks.prompt.passage_form import own_name
from tasks.settings.section import PositiveInt, Section

MarkerName = Annotated[str, Field(pattern=r"^[^/]+$", examples=["_SUCCESS"])] | None
InputName = Literal["queries", "documents", "candidates", "nested", "qrels"]
LATER_INPUT_SETTINGS = ("order_by", "lower_score_is_better")  # not in the identity of runs that leave them alone
ARRIVAL_SETTINGS = ("wait_s", "markers", "may_be_older")  # when an input is taken, not which


KNOWN_COLUMNS = {
    "queries": {"query_id", "text"},
    "documents": {"doc_id", "text", "title"},
    "candidates": {"query_id", "doc_id", "rank", "score"},
    "nested": {"query_id", "text", "candidates", "candidates.doc_id", "candidates.text", "candidates.score"},
    "qrels": {"query_id", "doc_id", "relevance"},
}
IN_PASSAGES = ("query_id", "doc_id", "text", "title")  # columns that cannot be fields beside a passage


class ColumnNames(Section):
    """For each input, our column name -> the column's name in the file; of a field inside a column, 'query.text'."""

    queries: dict[str, str] = {}  # of query_id, text
    documents: dict[str, str] = {}  # of doc_id, text, title, and of fields
    candidates: dict[str, str] = {}  # of query_id, doc_id, rank, score, and of fields
    nested: dict[str, str] = {}  # of query_id, text, candidates, and of fields as 'candidates.price'
    qrels: dict[str, str] = {}  # of query_id, doc_id, relevance

    @model_validator(mode="after")
    def _known_columns(self) -> Self:
        for source in ("queries", "qrels"):
            self._check(source, ())
        return self

    def check_fields(self, fields: Sequence[str]) -> None:
        """Whether every column that has a name here is one that is read: ours, or one of `[prompt] fields`.

        Raises:
            ValueError: naming the column.
        """
        for source in ("candidates", "documents", "nested"):
            own = {own_name(field) for field in fields}
            self._check(source, {f"candidates.{name}" for name in own} if source == "nested" else own)

    def _check(self, source: str, fields: Collection[str]) -> None:
        known = KNOWN_COLUMNS[source]
        for column in getattr(self, source):
            if column not in known and column not in fields:
                others = "" if source in ("queries", "qrels") else ", and those named in [prompt] fields"
                raise ValueError(f"{source}.{column}: {source} has the columns {', '.join(sorted(known))}{others}")


class MarkerNames(Section):
    """For each input, the file that its writer leaves when all is written, such as '_SUCCESS'."""

    queries: MarkerName = None  # of the queries
    documents: MarkerName = None  # of the documents
    candidates: MarkerName = None  # of the candidates
    nested: MarkerName = None  # of the nested
    qrels: MarkerName = None  # of the qrels


class InputSettings(Section):
    """Where the first stage's output is: three flat inputs, or one nested."""

    queries: str | None = None  # query_id, text: a file, folder, glob or dated folders of Parquet, CSV or JSON Lines
    documents: str | None = None  # doc_id, text, perhaps title; local like all of them, or any fsspec URL
    candidates: str | None = None  # query_id, doc_id, rank or score or both
    nested: str | None = None  # instead of those three: query_id, text, candidates list<struct<doc_id, text, score>>
    qrels: str | None = None  # judgments, for the run's nDCG@10: Parquet, a TREC qrels file, or BEIR's tsv
    partition: str | None = Field(
        default=None, pattern=r"^[^/]+(/[^/]+)*$", examples=["dt=2026-11-28"]
    )  # the folder, 'dt=2026-11-28' or 'year=2026/month=11/day=28'; else the newest date not after the night
    columns: ColumnNames = ColumnNames()
    wait_s: Annotated[int, Field(ge=0)] = 0  # seconds to wait for an input that is missing or half-written
    markers: MarkerNames = MarkerNames()  # in the files' or the partition's folder; without it an input is not whole
    may_be_older: list[InputName] = []  # with wait_s a run waits for the night's own partition, but not of these inputs
    top_k: PositiveInt | None = None  # of each list, from the first stage's first; all if not given
    rank_base: Literal[0, 1] = 1  # the first stage's best rank
    order_by: Literal["rank", "score"] | None = None  # what orders a list; the rank where there is one if not given
    lower_score_is_better: bool = False  # for distances
    allow_empty: bool = False  # accepts an input without rows, which is an error otherwise

    @model_validator(mode="after")
    def _one_layout(self) -> Self:
        flat = {"queries": self.queries, "documents": self.documents, "candidates": self.candidates}
        missing = [name for name, path in flat.items() if path is None]
        if self.nested is not None and len(missing) < len(flat):
            raise ValueError("give either nested, or queries, documents and candidates")
        if self.nested is None and missing:
            raise ValueError(f"{', '.join(missing)} missing: give queries, documents and candidates, or nested")
        return self

    def check_fields(self, fields: Sequence[str]) -> None:
        """Whether `[prompt] fields` and the columns' names go with these inputs.

        Raises:
            ValueError: see `ColumnNames.check_fields`; or a field of documents, where there are none.
        """
        try:
            self.columns.check_fields(fields)
        except ValueError as error:
            raise ValueError(f"[inputs] columns.{error}") from error
        if self.nested is not None:
            for field in fields:
                if field.startswith("documents."):
                    raise ValueError(
                        f"fields has {field!r}, but the nested layout has no documents: write "
                        f"{own_name(field)!r}, a field of its candidates"
                    )
