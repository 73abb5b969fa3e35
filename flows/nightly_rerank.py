"""The night as a Prefect flow: `nightly-rerank`. Every step is a function of `tasks.night`; this file only orders them.

Prefect sees whole stages as tasks and one progress bar; batches are rows in DuckDB, not task runs.
"""

import logging
from datetime import date
from typing import Annotated, Any

from prefect import State, flow, get_run_logger, task
from prefect.artifacts import create_link_artifact, create_markdown_artifact
from prefect.cache_policies import NO_CACHE
from prefect.runtime import deployment, flow_run
from prefect.states import Cancelled
from pydantic import Field

from flows.alerts import tell_of_crash, tell_of_failure
from flows.progress import ProgressArtifact, TerminalBar
from flows.shard import ShardRuns
from tasks.environment import checkout_path
from tasks.errors import AlreadyInProgress
from tasks.judge.report import report_night as write_page
from tasks.judge.summary import summarise, to_markdown
from tasks.night.night import Night, open_night
from tasks.night.plan import CacheAssumption, plan_night
from tasks.night.request import NightRequest, PreparedNight, prepare_night

SUMMARY_KEY, PAGE_KEY = "run-summary", "run-report"


@task(name="stage", cache_policy=NO_CACHE, persist_result=False)
def stage_night(night: Night) -> None:
    """Reads, checks and lays out the input."""
    night.stage(starts_engine=True)


@task(name="rank", cache_policy=NO_CACHE, persist_result=False)
def rank_night(night: Night, shards: ShardRuns) -> None:
    """Asks the engine, batch by batch, or has the shards do so."""
    artifact = ProgressArtifact(night.run_id)
    with TerminalBar(night.run_id, night.unit) as bar:
        night.rank(bar.update, artifact.update, run_shards=shards)


@task(name="evaluate", cache_policy=NO_CACHE, persist_result=False)
def evaluate_night(night: Night) -> None:
    """Measures both orders against judgments, where there are some."""
    night.evaluate()


@task(name="check", cache_policy=NO_CACHE, persist_result=False)
def check_night(night: Night) -> None:
    """Holds the result against the checks, and stores what they found."""
    night.check()


@task(name="publish", cache_policy=NO_CACHE, persist_result=False)
def publish_night(night: Night) -> None:
    """Shows the result in latest_scores, if that was asked for and the checks passed."""
    night.publish()


@task(name="report", cache_policy=NO_CACHE, persist_result=False)
def report_night(night: Night) -> None:
    """Writes the run's tables as an artifact, and its page, which another artifact links to."""
    create_markdown_artifact(to_markdown(summarise(night.store, night.run_id)), key=SUMMARY_KEY)
    page = write_page(night.store, night.run_id, night.prepared.settings.inputs)
    if page is not None:
        create_link_artifact(page.as_uri(), str(page), key=PAGE_KEY, description="One page, on the worker's disk")


@flow(name="nightly-rerank", persist_result=False, on_failure=[tell_of_failure], on_crashed=[tell_of_crash])
def nightly_rerank(
    config: str = "configs/sample.toml",
    night: date | None = None,
    limit_queries: Annotated[int, Field(ge=1)] | None = None,
    dry_run: bool = False,
    publish: bool = False,
    rerun: bool = False,
    full: bool = False,
    requeue: bool = False,
    overrides: dict[str, Any] | None = None,
) -> str | State[Any]:
    """Reranks one night's candidates and returns the run_id.

    A deployment's run that finds this very night in progress is Cancelled, as by the deployment's limit.

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
    prepared = prepare_night(request)
    if dry_run:
        get_run_logger().info(to_markdown(plan_night(prepared, CacheAssumption())))
        return prepared.base_run_id
    try:
        return rank_prepared(prepared, ShardRuns(config, prepared.night, overrides or {}))
    except AlreadyInProgress as told:
        if deployment.id is None:
            raise  # a command's exit code says that it did nothing
        return Cancelled(message=str(told))


def rank_prepared(prepared: PreparedNight, shards: ShardRuns) -> str:
    """The stages of a night, each a task, as far as they are not done."""
    with open_night(prepared, flow_run.id) as opened:
        if not opened.is_ranked:
            stage_night(opened)
            rank_night(opened, shards)
        if not opened.is_done:
            evaluate_night(opened)
            check_night(opened)
            publish_night(opened)
        report_night(opened)
        opened.conclude()
    return opened.run_id
