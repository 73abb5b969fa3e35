"""The command `packrank`. Each sub-command imports what it needs inside, so that `--help` is instant.

Answers go to stdout, one line on an error to stderr; exit codes are those of `tasks.errors`.
"""

import signal
import sys
from collections.abc import Sequence
from datetime import date
from importlib import metadata
from pathlib import Path
from typing import Annotated, Literal, TextIO

from cyclopts import App, CycloptsError, Parameter
from rich.console import Console

from tasks.errors import ConfigError, PackrankError

USAGE_EXIT, INTERRUPTED_EXIT, TERMINATED_EXIT = 2, 130, 143

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
Format = Literal["table", "csv", "json", "parquet"]


@app.command
def run(
    config: Config,
    *,
    set_: Overrides = (),
    night: Annotated[date | None, Parameter(help="Logical date; the schedule's last fire time if not given.")] = None,
    limit_queries: Annotated[int | None, Parameter(help="Only the first ones, for a trial.")] = None,
    publish: Annotated[
        bool, Parameter(help="Show the result in latest_scores once the checks passed.", negative=())
    ] = False,
    rerun: Annotated[bool, Parameter(help="Compute a finished run again, as -r2.", negative=())] = False,
    full: Annotated[
        bool, Parameter(help="Rank every query: reuse nothing of the last published night.", negative=())
    ] = False,
    dry_run: Annotated[bool, Parameter(help="Stage and plan only: no engine, nothing written.", negative=())] = False,
    prefect: Annotated[bool, Parameter(help="As a Prefect flow run; --no-prefect runs the loop plainly.")] = True,
) -> None:
    """Rank one night: as a flow run on PREFECT_API_URL, else on a server that ends with the command."""
    from flows.running import run_as_flow, run_plainly
    from tasks.night.request import NightRequest

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
    (run_as_flow if prefect else run_plainly)(request, Console())


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
) -> None:
    """Ask again what a finished night set aside or could not rank, and only that, as -r2; the rest is reused."""
    from flows.running import run_as_flow, run_plainly
    from tasks.night.request import NightRequest

    request = NightRequest(
        config=Path.cwd() / config, night=night, publish=publish, requeue=True, overrides=_overrides(set_)
    )
    (run_as_flow if prefect else run_plainly)(request, Console())


@app.command
def plan(
    config: Config,
    *,
    set_: Overrides = (),
    night: Annotated[date | None, Parameter(help="Logical date; the schedule's last fire time if not given.")] = None,
    limit_queries: Annotated[int | None, Parameter(help="Only the first ones.")] = None,
    num_gpu_blocks: Annotated[int | None, Parameter(help="KV-cache blocks to plan batches for.")] = None,
    block_size: Annotated[int, Parameter(help="Tokens a block: 16 on GPUs, 128 on CPUs.")] = 16,
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
    from tasks.judge.forecast import parse_duration, parse_parameters
    from tasks.judge.summary import print_tables
    from tasks.night.outlook import Outlook, find_rates
    from tasks.night.plan import CacheAssumption, plan_night
    from tasks.night.request import NightRequest, prepare_night

    request = NightRequest(
        config=Path.cwd() / config,
        night=night,
        limit_queries=limit_queries,
        dry_run=True,
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
    seconds: Annotated[int, Parameter(help="How long to measure once the engine is ready.")] = 60,
    output: Annotated[
        Path | None,
        Parameter(help="Rates file to write; beside the database, where plan and run find it, if not given."),
    ] = None,
) -> None:
    """Measure how fast this machine reads and writes the night's own prompts, for plan --rates and forecasts."""
    from tasks.judge.summary import print_tables
    from tasks.night.calibration import calibrate, rates_table, write_rates
    from tasks.night.outlook import rates_path
    from tasks.night.request import NightRequest, prepare_night

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
    from tasks.judge.queries import list_reports, run_statement, write_result

    if list_ == (statement is not None):
        raise ConfigError("sql: give a statement or the name of a report, or --list for the reports that there are.")
    rows = list_reports() if statement is None else run_statement(_database(database), statement)
    write_result(rows, format_, output)


@app.command
def runs(*, database: Database = None) -> None:
    """List the runs, newest first."""
    from tasks.judge.queries import run_statement, write_result

    write_result(run_statement(_database(database), "runs"), "table", None)


@app.command
def explain(run_id: str, query_id: str, *, database: Database = None) -> None:
    """Show one query's windows, answers, cuts, and its order before and after."""
    from tasks.judge.queries import explain_query
    from tasks.judge.summary import print_tables

    print_tables(explain_query(_database(database), run_id, query_id), Console())


@app.command
def evaluate(
    target: Annotated[str, Parameter(help="A run_id, or a settings file: then the newest finished run of its name.")],
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
    from tasks.judge.evaluation import EvaluationRequest, evaluate_run
    from tasks.judge.summary import print_tables

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
) -> None:
    """Measure point-wise against list-wise on one engine; or, simulated, all strategies against each other."""
    if simulate == (config is not None):
        raise ConfigError("study: give a settings file such as configs/study.toml, or --simulate.")
    if config is None:
        from tasks.study.simulation import SimulationRequest, write_simulation
        from tasks.study.simulation import simulate as run_simulation

        request = SimulationRequest(seed=seed, queries=queries, candidates=candidates, noise=noise)
        write_simulation(run_simulation(request), format_)
        return
    from flows.running import study_as_flow, study_plainly
    from tasks.study.arms import StudyRequest

    asked = StudyRequest(Path.cwd() / config, night, _overrides(set_))
    (study_as_flow if prefect else study_plainly)(asked, Console())


@app.command
def report(
    run_id: Annotated[str | None, Parameter(help="Whatever its status; the newest finished run if not given.")] = None,
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
    from tasks.judge.report import report_run
    from tasks.settings import load_settings

    inputs = None if config is None else load_settings(Path.cwd() / config).inputs
    _say(str(report_run(_database(database), run_id, None if output is None else Path.cwd() / output, inputs)))


@app.command
def publish(run_id: str, *, database: Database = None, set_: StoreOverrides = ()) -> None:
    """Show a complete run whose checks passed in latest_scores; of a published one, write its export again."""
    from tasks.offer.publication import publish_by_hand

    for line in publish_by_hand(_database(database), run_id, _overrides(set_)):
        _say(line)


@app.command
def unpublish(run_id: str, *, database: Database = None, set_: StoreOverrides = ()) -> None:
    """Take a published run back, with its export: latest_scores shows the night before."""
    from tasks.offer.publication import unpublish_by_hand

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
    from tasks.judge.trec_files import export_run

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
    from tasks.judge.summary import print_tables
    from tasks.judge.trec_files import ImportSources, import_files

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
    from tasks.judge.doctor import examine, raise_if_unwell
    from tasks.judge.summary import print_tables

    table, findings = examine(Path.cwd() / config, _overrides(set_), with_engine=engine)
    print_tables([table], Console())
    raise_if_unwell(findings)


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point: the exit code tells how it ended. `arguments` are those of the process if not given."""
    signal.signal(signal.SIGTERM, _terminate)
    try:
        app(arguments, exit_on_error=False, print_error=False)
    except CycloptsError as error:
        _fail(f"{' '.join(str(error).split())} See packrank --help.", USAGE_EXIT)
    except PackrankError as error:
        _fail(str(error), error.exit_code)
    except KeyboardInterrupt:
        _fail("interrupted; what was committed is kept, the same command goes on from there.", INTERRUPTED_EXIT)


def _terminate(number: int, frame: object) -> None:
    """SIGTERM ends the command as Ctrl-C does, so that the run's row says so."""
    raise SystemExit(TERMINATED_EXIT)


def _fail(message: str, code: int) -> None:
    _say(f"packrank: {message}", sys.stderr)
    raise SystemExit(code)


def _say(text: str, stream: TextIO | None = None) -> None:
    """One line for people, whatever data or paths put into it."""
    from tasks.redaction import hide_url_secrets, printable

    print(hide_url_secrets(printable(text)), file=stream)


def _overrides(texts: tuple[str, ...]) -> dict[str, object]:
    from tasks.settings import overrides_from

    return overrides_from(texts, Path.cwd())


def _database(path: Path | None) -> Path:
    from tasks.environment import checkout_path
    from tasks.settings import StoreSettings

    return checkout_path(StoreSettings().database) if path is None else Path.cwd() / path


if __name__ == "__main__":
    main()
