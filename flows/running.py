"""How `packrank run` runs a night: as a Prefect flow run, or plainly; both end with the run's tables from the database.

Prefect is imported only after its environment is set.
"""

import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from rich.console import Console

from flows.local_server import NEEDS_WORKERS, running_stack_url, start_private_server
from flows.progress import TerminalBar
from tasks.environment import set_prefect_environment
from tasks.errors import CheckFailed, ConfigError, FollowUpFailed
from tasks.judge.report import report_path
from tasks.judge.summary import print_tables, summarise
from tasks.night.night import find_night, run_night
from tasks.night.plan import CacheAssumption, plan_night
from tasks.night.request import NightRequest, PreparedNight, prepare_night
from tasks.redaction import hide_url_secrets, printable
from tasks.study.arms import StudyRequest, run_study
from tasks.study.claims import read_findings
from tasks.study.page import write_study_page


def run_as_flow(request: NightRequest, console: Console) -> None:
    """Runs the flow on PREFECT_API_URL, on the local stack if it is up, or on a private server.

    Raises:
        PackrankError: as the night does; nothing was started for what is wrong beforehand.
    """
    _show_logs()
    prepared = prepare_night(request)
    if _needs_no_run(prepared, console, dry_run=request.dry_run):
        return
    _find_prefect(needs_workers=prepared.settings.packing.shards > 1)
    from flows.nightly_rerank import nightly_rerank

    with _tables_at_the_end(prepared, console):
        nightly_rerank(
            config=str(request.config),
            night=request.night,
            limit_queries=request.limit_queries,
            publish=request.publish,
            rerun=request.rerun,
            full=request.full,
            requeue=request.requeue,
            overrides=dict(request.overrides),
        )


def study_as_flow(request: StudyRequest, console: Console) -> None:
    """Runs the study's flow as `run_as_flow` does a night's, and shows what came of it.

    Raises:
        PackrankError: as the study does.
    """
    _find_prefect()
    from flows.study import study

    _show_logs()
    study(config=str(request.config), night=request.night, overrides=dict(request.overrides))
    _show_findings(request, console)


def study_plainly(request: StudyRequest, console: Console) -> None:
    """Runs a study without Prefect.

    Raises:
        PackrankError: as the study does.
    """
    _show_logs()
    with TerminalBar(request.config.stem) as bar:
        run_study(request, bar.update)
    _show_findings(request, console)


def run_plainly(request: NightRequest, console: Console) -> None:
    """Runs the night's loop without Prefect.

    Raises:
        PackrankError: as the night does.
    """
    _show_logs()
    prepared = prepare_night(request)
    if _needs_no_run(prepared, console, dry_run=request.dry_run):
        return
    unit = "shards" if prepared.settings.packing.shards > 1 else "windows"
    with _tables_at_the_end(prepared, console), TerminalBar(prepared.base_run_id, unit) as bar:
        run_night(prepared, bar.update)


def _find_prefect(*, needs_workers: bool = False) -> None:
    """Sets the environment of Prefect, and finds or starts a server.

    Raises:
        ConfigError: only a private server could be had, which has no workers.
    """
    set_prefect_environment()
    os.environ.setdefault("PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL", "CRITICAL")  # the command tells errors itself
    if "PREFECT_API_URL" not in os.environ:
        url = running_stack_url()
        if url is None and needs_workers:
            raise ConfigError(NEEDS_WORKERS)
        os.environ["PREFECT_API_URL"] = url or start_private_server()


def _show_findings(request: StudyRequest, console: Console) -> None:
    """The tables of a study whose arms are complete: nothing is asked again."""
    findings = read_findings(run_study(request))
    print_tables(findings.tables(), console)
    for line in (f"report: {write_study_page(findings)}", f"database: {findings.study.store.path}"):
        console.print(printable(line), markup=False, highlight=False, soft_wrap=True)


def _needs_no_run(prepared: PreparedNight, console: Console, *, dry_run: bool) -> bool:
    """A dry run shows its plan, and a night with nothing left to do its tables again: neither starts anything."""
    if dry_run:
        print_tables(plan_night(prepared, CacheAssumption()), console)
        return True
    night = find_night(prepared)
    if not night.is_done:
        return False
    console.print(f"run {night.run_id}: already done", markup=False, highlight=False, soft_wrap=True)
    with _tables_at_the_end(prepared, console):
        night.conclude()
    return True


@contextmanager
def _tables_at_the_end(prepared: PreparedNight, console: Console) -> Iterator[None]:
    """Prints the run's tables after it went through, also where its checks failed, or what follows publishing."""
    try:
        yield
    except (CheckFailed, FollowUpFailed):
        _show_tables(prepared, console)
        raise
    _show_tables(prepared, console)


class _OneLine(logging.Formatter):
    """A record as one line that a terminal takes for nothing else, without secrets."""

    def format(self, record: logging.LogRecord) -> str:
        """See `logging.Formatter.format`."""
        return hide_url_secrets(printable(super().format(record)))


def _show_logs() -> None:
    """Our own log lines on stderr; on a terminal, where the bar is, only warnings."""
    handler = logging.StreamHandler()
    handler.setFormatter(_OneLine("%(asctime)s %(levelname)s %(message)s", "%H:%M:%S"))
    handler.setLevel(logging.WARNING if sys.stderr.isatty() else logging.INFO)
    logging.getLogger("tasks").addHandler(handler)
    logging.getLogger("tasks").setLevel(logging.INFO)


def _show_tables(prepared: PreparedNight, console: Console) -> None:
    night = find_night(replace(prepared, rerun=False))  # the latest repetition, not the next one
    print_tables(summarise(night.store, night.run_id), console)
    for name, path in (("database", night.store.path), ("report", report_path(night.store.path, night.run_id))):
        if path.exists():
            console.print(printable(f"{name}: {path}"), markup=False, highlight=False, soft_wrap=True)
