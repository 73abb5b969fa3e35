"""The command `packrank`. Each sub-command imports what it needs inside, so that `--help` is instant.

Answers go to stdout, one line on an error to stderr; exit codes are those of `tasks.system.errors`.
"""

import os
import signal
import sys
from collections.abc import Sequence
from datetime import date
from importlib import metadata
from pathlib import Path
from typing import Annotated, Literal, TextIO

from cyclopts import App, CycloptsError, Parameter
from cyclopts.validators import Number
from rich.console import Console

from tasks.system.errors import ConfigError, PackrankError

USAGE_EXIT, INTERRUPTED_EXIT, PIPE_EXIT, TERMINATED_EXIT = 2, 130, 141, 143

app = App(
    name="packrank",
    help="Reranks first-stage candidates list-wise on vLLM, at night; scores and latency in DuckDB.",
    version=lambda: metadata.version("packrank"),
    result_action="return_value",
    suppress_keyboard_interrupt=False,  # main tells what was kept
)

Config = Annotated[Path, Parameter(help="Settings file, such as configs/sample.toml.")]
Overrides = Annotated[
    tuple[str, ...],
    Parameter(name="--set", help="section.key=value over the settings file; may be repeated.", negative=()),
]
Database = Annotated[Path | None, Parameter(help="Database file; var/packrank.duckdb of the checkout if not given.")]
StoreOverrides = Annotated[
    tuple[str, ...],
    Parameter(name="--set", help="store.key=value over the run's own settings; may be repeated.", negative=()),
]
Verbose = Annotated[bool, Parameter(help="Print all of the run's tables, before its result.", negative=())]
Format = Literal["table", "csv", "json", "parquet"]
AT_LEAST_1 = Number(gte=1)

app.command("flows.demo:demo", help="Rank the sample that comes with packrank, by a small model.")


@app.command
def init(
    folder: Annotated[Path, Parameter(help="Folder with your Parquet, CSV, JSON Lines, TREC or BEIR files.")],
    *,
    force: Annotated[bool, Parameter(help="Write packrank.toml anew if it is there.", negative=())] = False,
) -> None:
    """Look at a folder of your own data and write a settings file for it, FOLDER/packrank.toml."""
    from tasks.tools.init import write_settings

    for line in write_settings(Path.cwd() / folder, force=force).lines:
        _say(line)


@app.command
def run(
    config: Config,
    *,
    set_: Overrides = (),
    night: Annotated[date | None, Parameter(help="Logical date; the schedule's last fire time if not given.")] = None,
    limit_queries: Annotated[
        int | None, Parameter(help="Only the first ones, for a trial.", validator=AT_LEAST_1)
    ] = None,
    publish: Annotated[
        bool, Parameter(help="Show the result in latest_scores once the checks passed.", negative=())
    ] = False,
    rerun: Annotated[bool, Parameter(help="Compute a finished run again, as -r2.", negative=())] = False,
    full: Annotated[
        bool, Parameter(help="Rank every query: reuse nothing of the last published night.", negative=())
    ] = False,
    dry_run: Annotated[bool, Parameter(help="Stage and plan only: no engine, nothing written.", negative=())] = False,
    prefect: Annotated[bool, Parameter(help="As a Prefect flow run; --no-prefect runs the loop plainly.")] = True,
    verbose: Verbose = False,
) -> None:
    """Rank one night: as a flow run on PREFECT_API_URL, else on a server that ends with the command."""
    from flows.night_runner import run_as_flow, run_plainly
    from tasks.nightly.prepare import NightRequest

    request = NightRequest(
        config=Path.cwd() / config,
        night=night,
        limit_queries=limit_queries,
        dry_run=dry_run,
        publish=publish,
        rerun=rerun,
        full=full,
        overrides=_overrides(set_),
    )
    (run_as_flow if prefect else run_plainly)(request, Console(), verbose=verbose)


@app.command
def backfill(
    config: Config,
    *,
    from_: Annotated[date, Parameter(name="--from", help="First night.")],
    to: Annotated[date, Parameter(help="Last night, included.")],
    set_: Overrides = (),
    limit_queries: Annotated[int | None, Parameter(help="Only the first ones of each night, for a trial.")] = None,
    publish: Annotated[
        bool, Parameter(help="Publish each night once its checks passed; latest_scores shows the newest.", negative=())
    ] = False,
    full: Annotated[
        bool, Parameter(help="Rank every query: reuse nothing of earlier published nights.", negative=())
    ] = False,
    dry_run: Annotated[bool, Parameter(help="Only say which nights are to do.", negative=())] = False,
    prefect: Annotated[bool, Parameter(help="As Prefect flow runs; --no-prefect runs the loop plainly.")] = True,
) -> None:
    """Rank a range of nights in turn; nights that are done are skipped, and it stops at the first that fails."""
    from flows.backfill import backfill as run_backfill
    from tasks.nightly.prepare import NightRequest

    request = NightRequest(
        config=Path.cwd() / config,
        limit_queries=limit_queries,
        dry_run=dry_run,
        publish=publish,
        full=full,
        overrides=_overrides(set_),
    )
    run_backfill(request, from_, to, Console(), prefect=prefect)


@app.command
def watch(
    config: Config,
    *,
    set_: Overrides = (),
    night: Annotated[date | None, Parameter(help="Logical date; the schedule's last fire time if not given.")] = None,
) -> None:
    """Alert if a night is not published, for cron at the hour by which it has to be; exit code 1 says so, too."""
    from flows.alerts import require_published

    _say(f"published: {require_published(Path.cwd() / config, night, _overrides(set_))}")


@app.command
def requeue(
    config: Config,
    *,
    set_: Overrides = (),
    night: Annotated[date | None, Parameter(help="Logical date; the schedule's last fire time if not given.")] = None,
    publish: Annotated[
        bool, Parameter(help="Show the result in latest_scores once the checks passed.", negative=())
    ] = False,
    prefect: Annotated[bool, Parameter(help="As a Prefect flow run; --no-prefect runs the loop plainly.")] = True,
    verbose: Verbose = False,
) -> None:
    """Ask again what a finished night set aside or could not rank, and only that, as -r2; the rest is reused."""
    from flows.night_runner import run_as_flow, run_plainly
    from tasks.nightly.prepare import NightRequest

    request = NightRequest(
        config=Path.cwd() / config, night=night, publish=publish, requeue=True, overrides=_overrides(set_)
    )
    (run_as_flow if prefect else run_plainly)(request, Console(), verbose=verbose)


@app.command
def plan(
    config: Config,
    *,
    set_: Overrides = (),
    night: Annotated[date | None, Parameter(help="Logical date; the schedule's last fire time if not given.")] = None,
    limit_queries: Annotated[int | None, Parameter(help="Only the first ones.", validator=AT_LEAST_1)] = None,
    full: Annotated[
        bool, Parameter(help="Count every query: reuse nothing of the last published night.", negative=())
    ] = False,
    num_gpu_blocks: Annotated[
        int | None, Parameter(help="KV-cache blocks to plan batches for.", validator=AT_LEAST_1)
    ] = None,
    block_size: Annotated[int, Parameter(help="Tokens a block: 16 on GPUs, 128 on CPUs.", validator=AT_LEAST_1)] = 16,
    rates: Annotated[
        str | None,
        Parameter(help="prefill=50000,decode=3000 (tokens a second), a file of packrank bench, or a finished run_id."),
    ] = None,
    deadline: Annotated[
        str | None, Parameter(help="4h30m: how long the engine may take; names the strategy to take.")
    ] = None,
    estimate: Annotated[
        str | None, Parameter(help="8B: GPU-hours of a model of so many parameters on GPUs that are not at hand.")
    ] = None,
    show_prompt: Annotated[
        bool, Parameter(help="Print the first prompt as the model gets it, texts included.", negative=())
    ] = False,
) -> None:
    """Say what a night would ask, cut and set aside, and how long it will take, without an engine."""
    from tasks.forecast.rates import parse_duration, parse_parameters
    from tasks.nightly.outlook import Outlook, find_rates
    from tasks.nightly.prepare import NightRequest, prepare_night
    from tasks.report.summary_tables import print_tables
    from tasks.tools.plan import CacheAssumption, plan_night

    request = NightRequest(
        config=Path.cwd() / config,
        night=night,
        limit_queries=limit_queries,
        dry_run=True,
        full=full,
        overrides=_overrides(set_),
    )
    deadline_s = None if deadline is None else parse_duration(deadline)
    num_parameters = None if estimate is None else parse_parameters(estimate)
    prepared = prepare_night(request)
    known = None if rates is None else find_rates(prepared, rates, Path.cwd())
    tables = plan_night(
        prepared,
        CacheAssumption(num_gpu_blocks, block_size),
        outlook=Outlook(known, deadline_s, num_parameters),
        with_prompt=show_prompt,
    )
    print_tables(tables, Console())


@app.command
def bench(
    config: Config,
    *,
    set_: Overrides = (),
    seconds: Annotated[int, Parameter(help="How long to measure once the engine is ready.", validator=AT_LEAST_1)] = 60,
    output: Annotated[
        Path | None,
        Parameter(help="Rates file to write; beside the database, where plan and run find it, if not given."),
    ] = None,
) -> None:
    """Measure how fast this machine reads and writes the night's own prompts, for plan --rates and forecasts."""
    from tasks.nightly.outlook import rates_path
    from tasks.nightly.prepare import NightRequest, prepare_night
    from tasks.report.summary_tables import print_tables
    from tasks.tools.rates_bench import calibrate, rates_table, write_rates

    request = NightRequest(config=Path.cwd() / config, dry_run=True, overrides=_overrides(set_))
    prepared = prepare_night(request)
    measured = calibrate(prepared, seconds)
    path = rates_path(prepared) if output is None else Path.cwd() / output
    write_rates(measured, path)
    print_tables([rates_table(measured)], Console())
    _say(f"rates: {path}")


@app.command
def sql(
    statement: Annotated[str | None, Parameter(help="A statement, or the name of a file of sql/reports.")] = None,
    *,
    list_: Annotated[
        bool, Parameter(name="--list", help="The files of sql/reports, and what each shows.", negative=())
    ] = False,
    database: Database = None,
    format_: Annotated[Format, Parameter(name="--format")] = "table",
    output: Annotated[Path | None, Parameter(help="File to write instead of stdout; needed for parquet.")] = None,
) -> None:
    """Run SQL read-only, also while a run writes."""
    from tasks.report.sql_shell import list_reports, write_answer, write_result

    if list_ == (statement is not None):
        raise ConfigError("sql: give a statement or the name of a report, or --list for the reports that there are.")
    written = None if output is None else Path.cwd() / output
    if statement is None:
        write_result(list_reports(), format_, written)
    else:
        write_answer(_database(database), statement, format_, written)


@app.command
def runs(*, database: Database = None) -> None:
    """List the runs, newest first."""
    from tasks.report.sql_shell import write_answer

    write_answer(_database(database), "runs", "table", None)


@app.command
def explain(run_id: str, query_id: str, *, texts: bool = True, database: Database = None) -> None:
    """Show one query's windows, answers, cuts, and its order before and after; --no-texts reads no input for it."""
    from tasks.report.explain import explain_query
    from tasks.report.summary_tables import print_tables

    print_tables(explain_query(_database(database), run_id, query_id, with_texts=texts), Console())


@app.command
def evaluate(
    target: Annotated[str, Parameter(help="A run_id, or a settings file: then its newest finished run, not a trial.")],
    *,
    qrels: Annotated[
        str | None,
        Parameter(help="Judgments: Parquet, TREC qrels or BEIR's tsv; those of the run's settings if not given."),
    ] = None,
    measure: Annotated[
        tuple[str, ...],
        Parameter(help="As ir-measures writes it; may be repeated. nDCG@10, AP, RR, R@100 if not given.", negative=()),
    ] = (),
    against: Annotated[
        str | None, Parameter(help="Compare with another run_id, or with first_stage, by a paired test.")
    ] = None,
    database: Annotated[
        Path | None, Parameter(help="Database file; the settings file's, or var/packrank.duckdb, if not given.")
    ] = None,
    set_: Overrides = (),
) -> None:
    """Measure a finished run against judgments, before and after reranking, and store the values in metrics."""
    from tasks.evaluation.evaluate import EvaluationRequest, evaluate_run
    from tasks.report.summary_tables import print_tables

    request = EvaluationRequest(
        target=target,
        qrels=qrels,
        measures=measure,
        against=against,
        database=None if database is None else Path.cwd() / database,
        overrides=_overrides(set_),
    )
    print_tables(evaluate_run(request), Console())


@app.command
def study(
    config: Annotated[Path | None, Parameter(help="Settings file with a [study] section, configs/study.toml.")] = None,
    *,
    set_: Overrides = (),
    night: Annotated[date | None, Parameter(help="Logical date of the arms' runs; today if not given.")] = None,
    prefect: Annotated[bool, Parameter(help="As a Prefect flow run; --no-prefect runs the arms plainly.")] = True,
    simulate: Annotated[
        bool, Parameter(help="All strategies with a synthetic comparator that errs: no engine, no files.", negative=())
    ] = False,
    seed: Annotated[int, Parameter(help="With --simulate: names what is drawn.")] = 0,
    queries: Annotated[int, Parameter(help="With --simulate: how many lists.")] = 200,
    candidates: Annotated[int, Parameter(help="With --simulate: candidates of each list.")] = 100,
    noise: Annotated[float, Parameter(help="With --simulate: in standard deviations of relevance.")] = 0.5,
    format_: Annotated[Literal["table", "csv", "json"], Parameter(name="--format", help="With --simulate.")] = "table",
    fill: Annotated[
        tuple[Path, ...],
        Parameter(help="Document whose marks get the study's figures, docs/study.md; may be repeated.", negative=()),
    ] = (),
    check_table: Annotated[
        Path | None,
        Parameter(help="JSON of `vllm bench serve --save-result`: can its figures be true? Starts nothing."),
    ] = None,
) -> None:
    """Measure point-wise against list-wise on one engine; or simulate all strategies; or check a benchmark's table."""
    if (config is not None) + simulate + (check_table is not None) != 1:
        raise ConfigError(
            "study: give a settings file such as configs/study.toml, or --simulate, or --check-table FILE."
        )
    if check_table is not None:
        from tasks.study.checking import check_results

        check_results(Path.cwd() / check_table)
        return
    if config is None:
        from tasks.study.simulation import SimulationRequest, write_simulation
        from tasks.study.simulation import simulate as run_simulation

        request = SimulationRequest(seed=seed, queries=queries, candidates=candidates, noise=noise)
        write_simulation(run_simulation(request), format_)
        return
    from flows.night_runner import study_as_flow, study_plainly
    from tasks.study.arm_runs import StudyRequest

    asked = StudyRequest(Path.cwd() / config, night, _overrides(set_))
    (study_as_flow if prefect else study_plainly)(asked, Console(), [Path.cwd() / each for each in fill])


@app.command
def report(
    run_id: Annotated[
        str | None, Parameter(help="Whatever its status; the newest finished run, not a trial, if not given.")
    ] = None,
    *,
    output: Annotated[
        Path | None, Parameter(help="HTML file to write; reports/RUN_ID.html beside the database if not given.")
    ] = None,
    config: Annotated[
        Path | None, Parameter(help="Settings file, where the run's inputs are URLs with secrets: none are stored.")
    ] = None,
    database: Database = None,
) -> None:
    """Write one run as one HTML page that needs no network, and print its path."""
    from tasks.report.run_report import report_run
    from tasks.settings import load_settings

    inputs = None if config is None else load_settings(Path.cwd() / config).inputs
    _say(str(report_run(_database(database), run_id, None if output is None else Path.cwd() / output, inputs)))


@app.command
def publish(run_id: str, *, database: Database = None, set_: StoreOverrides = ()) -> None:
    """Show a complete run whose checks passed in latest_scores; of a published one, write its export again."""
    from tasks.store.publication import publish_by_hand

    for line in publish_by_hand(_database(database), run_id, _overrides(set_)):
        _say(line)


@app.command
def unpublish(run_id: str, *, database: Database = None, set_: StoreOverrides = ()) -> None:
    """Take a published run back, with its export: latest_scores shows the night before."""
    from tasks.store.publication import unpublish_by_hand

    for line in unpublish_by_hand(_database(database), run_id, _overrides(set_)):
        _say(line)


@app.command
def export(
    run_id: str,
    *,
    format_: Annotated[Literal["trec", "parquet", "jsonl"], Parameter(name="--format")],
    output: Annotated[Path, Parameter(help="File to write; replaced when the new one is complete.")],
    top_k: Annotated[int | None, Parameter(help="Only the first so many of each query.")] = None,
    database: Database = None,
) -> None:
    """Write a finished run's order to a file for other tools."""
    from tasks.evaluation.run_export import export_run

    made = export_run(_database(database), run_id, format_, Path.cwd() / output, top_k=top_k)
    _say(f"{made.output}: {made.num_rows:,} rows of {made.num_queries:,} queries")


@app.command(name="import")
def import_(
    folder: Annotated[Path, Parameter(help="New or empty folder for the Parquet files.")],
    *,
    run: Annotated[str | None, Parameter(help="TREC run; with --queries and --corpus.")] = None,
    queries: Annotated[str | None, Parameter(help="BEIR queries, JSONL.")] = None,
    corpus: Annotated[str | None, Parameter(help="BEIR corpus, JSONL.")] = None,
    rankllm: Annotated[str | None, Parameter(help="RankLLM requests, JSON or JSONL; instead of those three.")] = None,
    qrels: Annotated[str | None, Parameter(help="Judgments: TREC qrels or BEIR's tsv.")] = None,
) -> None:
    """Make our Parquet input of TREC, BEIR or RankLLM files."""
    from tasks.evaluation.file_import import ImportSources, import_files
    from tasks.report.summary_tables import print_tables

    made = import_files(Path.cwd() / folder, ImportSources(run, queries, corpus, rankllm, qrels))
    print_tables([made.table], Console())
    for line in made.inputs_lines.splitlines():
        _say(line)


@app.command
def doctor(
    config: Config = Path("configs/sample.toml"),
    *,
    set_: Overrides = (),
    engine: Annotated[bool, Parameter(help="Start the engine; --no-engine leaves that out.")] = True,
) -> None:
    """Say what is installed, which device, whether the model loads and the database can be locked."""
    from tasks.report.summary_tables import print_tables
    from tasks.tools.doctor import examine, raise_if_unwell

    table, findings = examine(Path.cwd() / config, _overrides(set_), with_engine=engine)
    print_tables([table], Console())
    raise_if_unwell(findings)


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point: the exit code tells how it ended. `arguments` are those of the process if not given."""
    signal.signal(signal.SIGTERM, _terminate)
    try:
        app(arguments, exit_on_error=False, print_error=False)
        sys.stdout.flush()  # here a reader that left is no traceback
    except BrokenPipeError:  # `| head`: nobody reads on, and nothing is wrong
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(PIPE_EXIT) from None
    except CycloptsError as error:
        _fail(f"{' '.join(str(error).split())} See packrank --help.", USAGE_EXIT)
    except PackrankError as error:
        _fail(str(error), error.exit_code)
    except KeyboardInterrupt:
        _fail("interrupted; what was committed is kept, the same command goes on from there.", INTERRUPTED_EXIT)
    except SystemExit as end:
        _leave_without_prefect(end.code if isinstance(end.code, int) else 1)
        raise
    _leave_without_prefect(0)


def _terminate(number: int, frame: object) -> None:
    """SIGTERM ends the command as Ctrl-C does, so that the run's row says so."""
    raise SystemExit(TERMINATED_EXIT)


def _fail(message: str, code: int) -> None:
    _say(f"packrank: {message}", sys.stderr)
    _leave_without_prefect(code)
    raise SystemExit(code)


def _leave_without_prefect(code: int) -> None:
    """Ends the process at once where its Prefect server is gone, and says that it was not told."""
    if "flows.messenger" in sys.modules:
        from flows.messenger import leave, prefect_is_gone

        if prefect_is_gone():
            _say("packrank: Prefect was not told how this ended: its server does not answer.", sys.stderr)
            leave(code)


def _say(text: str, stream: TextIO | None = None) -> None:
    """One line for people, whatever data or paths put into it."""
    from tasks.system.redaction import hide_url_secrets, printable

    print(hide_url_secrets(printable(text)), file=stream)


def _overrides(texts: tuple[str, ...]) -> dict[str, object]:
    from tasks.settings import overrides_from

    return overrides_from(texts, Path.cwd())


def _database(path: Path | None) -> Path:
    from tasks.settings import StoreSettings
    from tasks.system.environment import checkout_path

    return (checkout_path(StoreSettings().database) if path is None else Path.cwd() / path).resolve()


if __name__ == "__main__":
    main()
