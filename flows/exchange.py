"""The commands `export` and `import`: a run's rows for other tools, and other tools' files as input."""

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter
from rich.console import Console

from flows.cli_exit import say
from flows.cli_options import Database, RunId, find_run, is_settings


def export(
    run_id: RunId,
    /,
    *,
    output: Annotated[Path, Parameter(help="File to write; replaced when the new one is complete.")],
    format_: Annotated[
        Literal["trec", "parquet", "jsonl"] | None,
        Parameter(name="--format", help="By the file's extension if not given: .parquet, .jsonl, .trec, .run or .txt."),
    ] = None,
    form: Annotated[
        Literal["listwise", "pairwise", "pointwise"] | None,
        Parameter(help="Training data with texts, instead of the order: lists as answered, pairs, or single passages."),
    ] = None,
    top_k: Annotated[
        int | None,
        Parameter(help="Only the first N candidates of each query; with pairwise, N positives of each list."),
    ] = None,
    database: Database = None,
) -> None:
    """Write a finished run's order, or training data from it, for other tools."""
    from tasks.evaluation.run_export import export_run, form_of

    file_form = format_ or form_of(output)
    path, run_id = find_run(database, run_id)
    if form is None:
        made = export_run(path, run_id, file_form, Path.cwd() / output, top_k=top_k)
        say(f"{made.output}: {made.num_rows:,} rows of {made.num_queries:,} queries")
        return
    from tasks.evaluation.training_export import TrainingRequest, export_training
    from tasks.settings import load_settings

    inputs = load_settings(Path.cwd() / database).inputs if database is not None and is_settings(database) else None
    request = TrainingRequest.of_file(form, file_form, top_k, inputs)
    say(export_training(path, run_id, request, Path.cwd() / output).line)


def import_(
    folder: Annotated[Path, Parameter(help="New or empty folder for the Parquet files.")],
    /,
    *,
    run: Annotated[str | None, Parameter(help="TREC run; with --queries and --corpus.")] = None,
    queries: Annotated[str | None, Parameter(help="BEIR queries, JSONL.")] = None,
    corpus: Annotated[str | None, Parameter(help="BEIR corpus, JSONL.")] = None,
    rankllm: Annotated[str | None, Parameter(help="RankLLM requests, JSON or JSONL; instead of those three.")] = None,
    qrels: Annotated[str | None, Parameter(help="Judgments: TREC qrels or BEIR's tsv.")] = None,
) -> None:
    """Convert TREC, BEIR or RankLLM files to packrank's Parquet input."""
    from tasks.evaluation.file_import import ImportSources, import_files
    from tasks.report.summary_tables import print_tables

    made = import_files(Path.cwd() / folder, ImportSources(run, queries, corpus, rankllm, qrels))
    print_tables([made.table], Console())
    for line in made.inputs_lines.splitlines():
        say(line)
