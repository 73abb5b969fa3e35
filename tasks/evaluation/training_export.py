"""A run's answers as a file that trains another model, texts included: what stands in its rows says `distillation`.

The texts come from the run's inputs, as long as those are what they were. A file appears under its name only when it is
complete.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import pyarrow as pa

from tasks.evaluation.distillation import (
    SCHEMAS,
    Row,
    TaughtQuery,
    TrainingForm,
    fell_back,
    row_maker,
)
from tasks.evaluation.run_export import ExportForm, TableForm, require_folder, table_writer
from tasks.prompt.templates import PromptTemplate, load_prompt_template
from tasks.report.run_lookup import find_ranked_run
from tasks.report.run_texts import TextSource, open_texts, run_inputs
from tasks.report.sql_shell import read_rows
from tasks.settings import InputSettings
from tasks.store.runs import Run
from tasks.store.score_tables import score_tables
from tasks.system.atomic_files import whole_file
from tasks.system.database import read_sql
from tasks.system.environment import checkout_path
from tasks.system.errors import ConfigError, InputError, PackrankError

ROWS_A_WRITE = 10_000  # bounds memory: a row has whole texts
WORDS = "first_token.toml"  # of conversations: RankLLM's trainer wants letters, and opens the answer as this mode does


@dataclass(frozen=True, slots=True)
class TrainingRequest:
    """What is to be written."""

    form: TrainingForm
    file_form: TableForm
    top_k: int | None = None  # only the first so many of a list count as positive, or of a query as passage
    inputs: InputSettings | None = None  # where the texts are, if not where the run's settings say

    @classmethod
    def of_file(
        cls, form: TrainingForm, file_form: ExportForm, top_k: int | None, inputs: InputSettings | None
    ) -> "TrainingRequest":
        """The request for a file.

        Raises:
            ConfigError: the file's form cannot carry texts, or `top_k` cannot be meant.
        """
        if file_form == "trec":
            raise ConfigError(f"--form {form} --format trec: expected parquet or jsonl. A TREC run has no texts.")
        if top_k is not None and (form == "listwise" or top_k < 1):
            raise ConfigError(
                f"--form {form} --top-k {top_k}: expected 1 or more, with pairwise or pointwise. A list is written as "
                "the model saw it."
            )
        return cls(form, file_form, top_k, inputs)


@dataclass(slots=True)
class TrainingTally:
    """What an export wrote, and what it could not."""

    output: Path
    num_rows: int = 0
    num_soft_rows: int = 0  # of these, with a soft label
    num_queries: int = 0
    num_fallbacks: int = 0  # windows that fell back, which teach nothing
    num_forgotten: int = 0  # queries whose answers are no longer kept

    @property
    def line(self) -> str:
        """What to tell."""
        told = [f"{self.output}: {self.num_rows:,} rows of {self.num_queries:,} queries"]
        told.append(f"{self.num_soft_rows:,} with soft labels")
        if self.num_fallbacks:
            told.append(f"{self.num_fallbacks:,} windows fell back and are left out")
        if self.num_forgotten:
            told.append(f"the answers of {self.num_forgotten:,} queries are no longer kept")
        return "; ".join(told)


def export_training(database: Path, run_id: str, request: TrainingRequest, output: Path) -> TrainingTally:
    """Writes what the model of a finished run said of its queries, reused ones included.

    Args:
        database: where the run lies; it is open for one span of queries at a time.
        run_id: a complete or published run.
        request: what is to be written.
        output: replaced when the new file is complete.

    Raises:
        ConfigError: the file's folder is not there, or inputs had secrets, which are not stored.
        InputError: the inputs cannot be read, or are no longer what the run read.
        StoreError: the run's rows have no strict order; or see `read_rows`.
        PackrankError: no such run, an unfinished one, its answers are no longer kept, or the file cannot be written.
    """
    require_folder(output)
    run = find_ranked_run(database, run_id)
    source = open_texts(run, request.inputs or run_inputs(run))
    if source is None:
        raise InputError(
            f"run {run_id}: its inputs have changed since, so their texts need not be those that the model read. Put "
            "back the files of that night, or export a newer run."
        )
    tally, schema = TrainingTally(output), SCHEMAS[request.form]
    queries = _Answers(database, run, source).queries(tally)
    rows_of = row_maker(request.form, _conversation_words(run), request.top_k)
    with whole_file(output) as stream:
        table_writer(request.file_form, schema)(stream, _tables(map(rows_of, queries), schema, tally))
        if not tally.num_rows and tally.num_forgotten:
            raise _forgotten(database, run_id)
    return tally


def _tables(
    by_query: Iterable[Iterable[dict[str, Any]]], schema: pa.Schema, tally: TrainingTally
) -> Iterator[pa.Table]:
    """The rows of the queries in tables of some thousand, counted as they pass."""
    rows: list[dict[str, Any]] = []
    for made in by_query:
        num_before = len(rows)
        rows += made
        tally.num_queries += len(rows) > num_before
        if len(rows) >= ROWS_A_WRITE:
            yield _counted(rows, schema, tally)
            rows = []
    yield _counted(rows, schema, tally)


@dataclass(frozen=True, slots=True)
class _Answers:
    """A run's queries with their texts and answers, read span by span."""

    database: Path
    run: Run
    source: TextSource

    def queries(self, tally: TrainingTally) -> Iterator[TaughtQuery]:
        """Those with ranked candidates; notes what is missing."""
        for scores in score_tables(self._read, self.run.run_id):
            if scores.num_rows:
                yield from self._span(scores.to_pylist(), tally)

    def _span(self, scores: Sequence[Row], tally: TrainingTally) -> Iterator[TaughtQuery]:
        by_query = {query_id: list(rows) for query_id, rows in groupby(scores, key=lambda row: row["query_id"])}
        names = {"run_id": self.run.run_id, "first_query_id": min(by_query), "last_query_id": max(by_query)}
        listed = self._read("evaluation/list_answers", names).to_pylist()
        answers = {query_id: list(rows) for query_id, rows in groupby(listed, key=lambda row: row["query_id"])}
        wanted = {query_id: [row["doc_id"] for row in rows] for query_id, rows in by_query.items()}
        texts = self.source.read(wanted)
        for query_id, rows in by_query.items():
            ranked = [row for row in rows if row["status"] == "ranked" and row["score_kind"] != "first_stage_order"]
            tally.num_fallbacks += sum(map(fell_back, answers.get(query_id, ())))
            tally.num_forgotten += bool(ranked) and query_id not in answers
            passages = {doc_id: texts.passages.get((query_id, doc_id)) for doc_id in wanted[query_id]}
            lost = [doc_id for doc_id, text in passages.items() if text is None]
            if lost or query_id not in texts.queries:
                raise InputError(
                    f"run {self.run.run_id}: query {query_id!r} or its document {(lost or ['-'])[0]!r} has no text in "
                    "the inputs any more. Put back the files of that night."
                )
            yield TaughtQuery(
                source={"query_id": query_id, "run_id": self.run.run_id, **_teacher(self.run)},
                text=texts.queries[query_id],
                ranked=ranked,
                doc_ids={row["first_stage_rank"] - 1: row["doc_id"] for row in rows},
                passages={doc_id: text for doc_id, text in passages.items() if text is not None},
                answers=answers.get(query_id, ()),
            )

    def _read(self, name: str, parameters: Mapping[str, object]) -> pa.Table:
        return read_rows(self.database, read_sql(name), parameters)


def _teacher(run: Run) -> dict[str, str | None]:
    adapter = run.stored_settings.get("engine", {}).get("lora")
    return {
        "teacher": run.model if adapter is None else f"{run.model} + {adapter}",
        "teacher_identity": run.model_identity,
        "prompt_digest": json.loads(run.recipe or "{}").get("prompt"),
    }


def _conversation_words(run: Run) -> PromptTemplate:
    language = run.stored_settings.get("prompt", {}).get("language", "en")
    folder = checkout_path("configs/prompts")
    return load_prompt_template((folder if language == "en" else folder / language) / WORDS)


def _counted(rows: Sequence[Mapping[str, Any]], schema: pa.Schema, tally: TrainingTally) -> pa.Table:
    soft = next(name for name in schema.names if name.startswith("soft_label"))
    tally.num_rows += len(rows)
    tally.num_soft_rows += sum(row[soft] is not None for row in rows)
    return pa.Table.from_pylist(rows, schema)


def _forgotten(database: Path, run_id: str) -> PackrankError:
    return PackrankError(
        f"{database}: what the windows of run {run_id} were answered is no longer kept, see [store.keep_outcomes]. "
        "--form pointwise needs the order alone; a run computed again with --rerun has answers until it is published."
    )
