"""The night as a Prefect flow, `nightly-rerank`: every step is a function of `tasks.nightly`, put in order here.

Prefect sees whole stages as tasks and one progress bar; batches are rows in DuckDB, not task runs.
"""

import logging
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from typing import Annotated, Any

from prefect import State, flow, get_run_logger, task
from prefect.cache_policies import NO_CACHE
from prefect.runtime import flow_run
from prefect.states import Cancelled, Completed
from pydantic import Field

from flows.alerts import moment_of, tell_of_crash, tell_of_failure, tell_without_prefect
from flows.flow_parameters import ConfigParameter, NightParameter, OverridesParameter
from flows.messenger import Messenger, ProgressArtifact, current_flow_run, ends_without_prefect
from flows.progress import TerminalBar
from flows.shard import ShardRuns
from tasks.nightly.night import Night, in_turn, open_night, run_stages
from tasks.nightly.prepare import NightRequest, PreparedNight, prepare_night
from tasks.report.headline import Headline, read_headline
from tasks.report.markdown_report import to_report
from tasks.report.run_report import report_night as write_page
from tasks.report.summary import summarise
from tasks.report.table_formats import to_markdown
from tasks.settings import alert_settings
from tasks.system.environment import checkout_path
from tasks.system.errors import AlreadyInProgress, PackrankError, first_line
from tasks.tools.plan import CacheAssumption, plan_night

SUMMARY_KEY, PAGE_KEY = "run-summary", "run-report"

logger = logging.getLogger("tasks.nightly")  # Prefect shows what is below `tasks`


def report_night(night: Night, messenger: Messenger) -> None:
    """Shows what came of the run as two artifacts, with ids for texts, and writes its page; never a reason to fail."""
    page = write_page(night.store, night.run_id, night.prepared.settings.inputs)
    headline = headline_of(night)
    if headline is None:
        return
    try:
        tables = [table for table in summarise(night.store, night.run_id) if not table.alarm]  # the headline has those
        report = to_report(night.store, headline, page)
    except Exception as error:
        logger.warning("run_id=%s cannot show its tables: %s", night.run_id, first_line(error))
        return
    told = f"{night.run_id}: {headline.sentence}"
    messenger.send_text(SUMMARY_KEY, headline.to_markdown() + to_markdown(tables), told)
    messenger.send_text(PAGE_KEY, report, told)


def headline_of(night: Night) -> Headline | None:
    """What came of the run, with ids: Prefect gets no text. None, with a warning, where it cannot be read."""
    try:
        return read_headline(night.store, night.run_id, {})
    except Exception as error:
        logger.warning("run_id=%s cannot show its result: %s", night.run_id, first_line(error))
        return None


def as_task(name: str, stage: Callable[[], None]) -> None:
    """Runs a stage as a Prefect task of its name."""

    @task(name=name, cache_policy=NO_CACHE, persist_result=False)
    def run() -> None:
        stage()

    run()


def _flow_run_name() -> str:
    """Names the series and the night, so that lists of flow runs can be read."""
    asked = flow_run.parameters
    try:
        night = alert_settings(checkout_path(asked["config"]))
    except PackrankError:  # the flow itself tells what is wrong with its settings
        return f"{asked['config']} {asked['night'] or ''}".rstrip()
    return f"{night.name} {asked['night'] or night.night_at(datetime.now(UTC))}"


@flow(
    name="nightly-rerank",
    flow_run_name=_flow_run_name,
    persist_result=False,
    on_failure=[tell_of_failure],
    on_crashed=[tell_of_crash],
)
def nightly_rerank(
    config: ConfigParameter = "configs/sample.toml",
    night: NightParameter = None,
    limit_queries: Annotated[int, Field(ge=1)] | None = None,
    dry_run: bool = False,
    publish: bool = False,
    rerun: bool = False,
    full: bool = False,
    requeue: bool = False,
    overrides: OverridesParameter = None,
    wait: bool = True,
) -> State[Any]:
    """Reranks one night's candidates; the end's message is the run_id and what came of it.

    A deployment's run that finds this very night in progress ends as Refused, a kind of Cancelled.

    Args:
        config: settings file; a relative path is taken from the checkout.
        night: logical date; the schedule's last fire time if not given.
        limit_queries: only the first ones, for a trial; such a run is never published.
        dry_run: stage and plan only: no engine, nothing written but the log.
        publish: show the result in latest_scores once the checks have passed.
        rerun: compute a finished run again, as -r2.
        full: rank every query, also those that the last published night ranked on the same texts.
        requeue: repeat a finished run, as -r2, but ask only what it set aside or could not rank.
        overrides: settings by dotted path, such as {"strategy.window_size": 10}.
        wait: for another run that holds the database to end; false: fail then.
    """
    logging.getLogger("tasks").setLevel(logging.INFO)
    request = NightRequest(
        config=checkout_path(config),
        night=night,
        limit_queries=limit_queries,
        dry_run=dry_run,
        publish=publish,
        rerun=rerun,
        full=full,
        requeue=requeue,
        overrides=overrides or {},
    )
    with ends_without_prefect(tell_without_prefect):
        prepared = prepare_night(request, moment_of(current_flow_run()))
        if dry_run:
            get_run_logger().info(to_markdown(plan_night(prepared, CacheAssumption())))
            return Completed(message=prepared.base_run_id)
        shards = ShardRuns(config, prepared.night, overrides or {})
        try:
            told = in_turn(request, prepared, lambda each: rank_prepared(each, shards), waits=wait)
        except AlreadyInProgress as other:
            if current_flow_run().deployment_id is None:
                raise  # a command's exit code says that it did nothing
            return Cancelled(name="Refused", message=str(other))
        return Completed(message=told)


def rank_prepared(prepared: PreparedNight, shards: ShardRuns) -> str:
    """The stages of a night, each a task, as far as they are not done; returns the run_id and what came of it."""
    with Messenger() as messenger, TerminalBar() as bar:
        progress = ProgressArtifact(messenger, prepared.base_run_id)
        with open_night(prepared, str(current_flow_run().id), listeners=(bar.show, progress.show)) as night:
            run_stages(night, partial(night.rank, shards), as_task)
            as_task("report", partial(report_night, night, messenger))
            night.conclude()
            headline = headline_of(night)
            told = night.run_id if headline is None else f"{night.run_id}: {headline.sentence}"
            progress.end(told)
    return told
