"""Which run is meant, and which there are. A database is open for one question at a time."""

from pathlib import Path

from rich.console import Console

from tasks.report.sql_shell import read_database, read_rows, write_result
from tasks.report.summary_tables import SummaryTable, listing, print_tables
from tasks.report.table_formats import RowForm
from tasks.settings import Settings, differing_settings
from tasks.store.runs import Run, Runs
from tasks.system.database import read_sql
from tasks.system.errors import PackrankError

LATEST = "latest"  # as a run_id


def write_runs(database: Path, series: str | None, limit: int, form: RowForm) -> None:
    """Lists the newest runs on stdout, for people with the errors below.

    Raises:
        StoreError: see `run_statement`.
    """
    rows = read_rows(database, read_sql("runs/list_runs"), {"name": series, "limit": limit + 1})
    if form != "table":
        write_result(rows.slice(0, limit), form, None)
        return
    note = f"The newest {limit}; --limit shows more." if rows.num_rows > limit else None
    shown = rows.slice(0, limit).to_pylist()
    failed = [{"run_id": row["run_id"], "error": error} for row in shown if (error := row.pop("error"))]
    runs = listing("Runs, newest first", shown, note) or SummaryTable("0 runs", ("run_id",), ())
    errors = listing("Errors", failed)
    print_tables([runs] if errors is None else [runs, errors], Console())


def find_run_id(database: Path, given: str, series: str | None = None) -> str:
    """The run_id that was given; of `latest` the newest finished run's, of a series or of all, trials passed over.

    Raises:
        StoreError: see `read_rows`.
        PackrankError: no run has finished.
    """
    if given != LATEST:
        return given
    rows = read_rows(database, read_sql("runs/find_newest_run"), {"name": series}).to_pylist()
    if not rows:
        of_series = "" if series is None else f" of {series!r}"
        raise PackrankError(
            f"{database}: no complete or published run{of_series} but trials. Name one: `packrank runs` lists them."
        )
    return str(rows[0]["run_id"])


def find_ranked_run(database: Path, run_id: str) -> Run:
    """A finished run.

    Raises:
        PackrankError: there is none of that id, or it is unfinished: half a night is not taken for a whole one.
    """
    run = read_database(database, lambda opened: Runs(opened).get(run_id))
    if not run.is_ranked:
        raise PackrankError(
            f"{database}: run {run_id} is {run.status!r}, expected complete or published. "
            "Run its command again: it continues from what was committed."
        )
    return run


def find_newest_run(database: Path, settings: Settings) -> Run:
    """The newest finished run of the series with the same inputs, strategy, prompt and engine; trials are passed over.

    Raises:
        PackrankError: there is none; in what the newest run of the series differs.
    """
    name = settings.night.name
    found = read_database(database, lambda opened: Runs(opened).find_finished(name))
    if not found:
        raise PackrankError(f"{database}: no complete or published run of {name!r}. `packrank runs` lists them.")
    whole = [run for run in found if not run.is_limited]
    for run in whole:
        if not differing_settings(settings, run.stored_settings):
            return run
    if not whole:
        told = f"all {len(found)} finished runs of {name!r} are trials (--limit-queries)."
    else:
        differing = ", ".join(differing_settings(settings, whole[0].stored_settings))
        told = (
            f"no finished run of {name!r} has these settings; the newest, {whole[0].run_id}, differs in: {differing}."
        )
    raise PackrankError(f"{database}: {told} Run the settings, or name a run: packrank evaluate RUN_ID.")
