"""How `packrank run` runs a night: as a Prefect flow run, or plainly; both end with the run's tables from the database.

Prefect is imported only after its environment is set; what a night does not need (pandas, scipy) where it is needed, so
that one that is done already answers at once.
"""

import logging
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from rich.console import Console

from flows.prefect_server import NEEDS_WORKERS, password, running_stack_url, start_private_server
from flows.progress import TerminalBar, TerminalHandler
from tasks.nightly.night import find_night, in_turn, run_night
from tasks.nightly.prepare import NightRequest, PreparedNight, prepare_night
from tasks.report.headline import print_headline, read_headline
from tasks.report.summary import summarise
from tasks.report.summary_tables import print_tables
from tasks.system.environment import set_prefect_environment
from tasks.system.errors import CheckFailed, ConfigError, FollowUpFailed, PackrankError, StoreError
from tasks.system.redaction import hide_url_secrets, printable
from tasks.system.workspace import Workspace

if TYPE_CHECKING:
    from tasks.study.arm_runs import StudyRequest

ANSWER_S = 5.0  # for a server that PREFECT_API_URL names, at the start

logger = logging.getLogger("tasks.prefect")


class Rank(Protocol):
    """Runs one night: `rank_as_flow` or `rank_plainly`."""

    def __call__(self, request: NightRequest, prepared: PreparedNight, *, waits: bool = False) -> None:
        """See `rank_as_flow`."""


def run_as_flow(request: NightRequest, console: Console, *, verbose: bool = False) -> None:
    """Runs the flow on PREFECT_API_URL, on the local stack if it is up, or on a private server.

    Args:
        request: the night.
        console: where its result goes.
        verbose: all of the run's tables before the result.

    Raises:
        PackrankError: as the night does; nothing was started for what is wrong beforehand.
    """
    _run(request, console, rank_as_flow, verbose=verbose)


def rank_as_flow(request: NightRequest, prepared: PreparedNight, *, waits: bool = False) -> None:
    """One night as a flow run, or without one where no server can be had.

    Args:
        request: what was prepared.
        prepared: of `request`.
        waits: for another run that holds the database to end.

    Raises:
        PackrankError: as the night does.
    """
    if not _find_prefect(needs_workers=prepared.settings.packing.shards > 1):
        rank_plainly(request, prepared, waits=waits)
        return
    from flows.nightly_rerank import nightly_rerank

    with _outcome_without_prefect():
        nightly_rerank(
            config=str(request.config),
            night=prepared.night,
            limit_queries=request.limit_queries,
            publish=request.publish,
            rerun=request.rerun,
            full=request.full,
            requeue=request.requeue,
            overrides=dict(request.overrides),
            wait=waits,
        )


def study_as_flow(request: "StudyRequest", console: Console, documents: Sequence[Path] = ()) -> None:
    """Runs the study's flow as `run_as_flow` does a night's, and shows what came of it.

    Raises:
        PackrankError: as the study does.
    """
    show_logs()
    if not _find_prefect():
        study_plainly(request, console, documents)
        return
    from flows.study import study

    with _outcome_without_prefect():
        study(config=str(request.config), night=request.night, overrides=dict(request.overrides))
    _show_findings(request, console, documents)


def study_plainly(request: "StudyRequest", console: Console, documents: Sequence[Path] = ()) -> None:
    """Runs a study without Prefect.

    Raises:
        PackrankError: as the study does.
    """
    from tasks.study.arm_runs import run_study

    show_logs()
    with TerminalBar() as bar:
        run_study(request, bar.show)
    _show_findings(request, console, documents)


def run_plainly(request: NightRequest, console: Console, *, verbose: bool = False) -> None:
    """Runs the night's loop without Prefect; see `run_as_flow`.

    Raises:
        PackrankError: as the night does.
    """
    _run(request, console, rank_plainly, verbose=verbose)


def rank_plainly(request: NightRequest, prepared: PreparedNight, *, waits: bool = False) -> None:
    """One night without Prefect; see `rank_as_flow`.

    Raises:
        PackrankError: as the night does.
    """
    with TerminalBar() as bar:
        in_turn(request, prepared, lambda each: run_night(each, bar.show), waits=waits)


def _run(request: NightRequest, console: Console, rank: Rank, *, verbose: bool) -> None:
    """Runs a night and shows what came of it, also where its checks failed, or what follows publishing.

    A dry run shows its plan, and one that is done its result again: neither starts anything.
    """
    show_logs()
    prepared = prepare_night(request)
    if request.dry_run:
        from tasks.tools.plan import CacheAssumption, plan_night

        print_tables(plan_night(prepared, CacheAssumption()), console)
        return
    night = find_night(prepared)
    show = partial(_show_result, prepared, console, was_done=night.is_done, verbose=verbose)
    try:
        if night.is_done:
            night.conclude()
        else:
            rank(request, prepared, waits=False)
    except (CheckFailed, FollowUpFailed):
        show()
        raise
    show()


def _find_prefect(*, needs_workers: bool = False) -> bool:
    """Sets the environment of Prefect, and finds or starts a server; false where there is none: it is only looked at.

    Raises:
        ConfigError: workers are needed, and there is no server that has them.
    """
    set_prefect_environment()
    for name in ("PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL", "PREFECT_LOGGING_INTERNAL_LEVEL"):
        os.environ.setdefault(name, "CRITICAL")  # the command tells errors itself
    logging.raiseExceptions = False  # else each log line that cannot be sent is told of on stderr
    if "PREFECT_API_URL" not in os.environ:
        url = running_stack_url()
        if url is None and needs_workers:
            raise ConfigError(NEEDS_WORKERS)
        try:
            os.environ["PREFECT_API_URL"] = url or start_private_server()
        except PackrankError as error:
            logger.warning("%s The night runs without Prefect.", error)
            return False
        os.environ["PREFECT_API_AUTH_STRING"] = password()
    elif os.environ["PREFECT_API_URL"] == running_stack_url():
        os.environ.setdefault("PREFECT_API_AUTH_STRING", password())
    from flows.messenger import prefect_answers

    if prefect_answers(ANSWER_S):
        return True
    told = f"PREFECT_API_URL = {hide_url_secrets(os.environ['PREFECT_API_URL'])} does not answer."
    if needs_workers:
        raise ConfigError(f"{told} {NEEDS_WORKERS}")
    logger.warning("%s The night runs without Prefect.", told)
    return False


@contextmanager
def _outcome_without_prefect() -> Iterator[None]:
    """A flow whose server is gone at its end came out as its body did."""
    from flows.messenger import PrefectGone

    try:
        yield
    except PrefectGone as gone:
        if gone.outcome is not None:
            raise gone.outcome from None


def _show_findings(request: "StudyRequest", console: Console, documents: Sequence[Path]) -> None:
    """The tables of a study whose arms are complete: nothing is asked again."""
    from tasks.study.arm_runs import run_study
    from tasks.study.claims.findings import read_findings
    from tasks.study.document import fill_document, named_figures
    from tasks.study.study_page import write_study_page

    findings = read_findings(run_study(request))
    print_tables(findings.tables(), console)
    for document in documents:
        fill_document(document, named_figures(findings))
    for line in (f"report: {write_study_page(findings)}", f"database: {findings.study.store.path}"):
        console.print(printable(line), markup=False, highlight=False, soft_wrap=True)


def show_logs() -> None:
    """Our own log lines on stderr; on a terminal, where the bar is, only warnings."""
    if any(isinstance(each, TerminalHandler) for each in logging.getLogger("tasks").handlers):
        return  # the nights of a range are shown alike
    logging.getLogger("tasks").addHandler(TerminalHandler())
    logging.getLogger("tasks").setLevel(logging.INFO)


def _show_result(prepared: PreparedNight, console: Console, *, was_done: bool, verbose: bool) -> None:
    """The run's headline, and all its tables before it if wanted; a night that went through is not ended by it."""
    try:
        night = find_night(replace(prepared, rerun=False))  # the latest repetition, not the next one
        if verbose:
            print_tables(summarise(night.store, night.run_id), console)
        headline = read_headline(night.store, night.run_id, prepared.found.inputs)
    except StoreError as error:
        logger.warning("cannot show the night's result: %s", error)
        return
    places = {"page": Workspace(night.store.path).report(night.run_id), "database": night.store.path}
    found = {name: path for name, path in places.items() if path.exists()}
    print_headline(headline, found, console, was_done=was_done, with_box=not verbose)
