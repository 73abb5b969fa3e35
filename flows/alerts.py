"""Sends an alert when a night of a deployment fails or crashes: one JSON document, POSTed to `[night] alert_url`.

    on_failure -> tell_of_failure, in the flow's process      on_crashed -> tell_of_crash, in the worker's
    server gone -> tell_without_prefect, in the flow's process

Prefect calls both by the names of their parameters. They never raise: an alert that cannot be delivered is one warning
in the flow run's log, which shows the URL's host only. A run that somebody started by hand with `packrank run` has its
exit code instead. Knows nothing of what a night does.
"""

import socket
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
from prefect import Flow, State
from prefect.client.schemas.objects import FlowRun
from prefect.context import FlowRunContext
from prefect.logging.loggers import flow_run_logger
from prefect.states import Failed, get_state_exception
from prefect.utilities.callables import get_parameter_defaults

from flows.messenger import current_flow_run
from tasks.settings import NightSettings, alert_settings, load_settings
from tasks.store.night_store import store_at
from tasks.store.runs import Runs
from tasks.system.environment import checkout_path
from tasks.system.errors import AlreadyRunning, CheckFailed, ConfigError, InputError, PackrankError, first_line
from tasks.system.redaction import hide_url_secrets

TIMEOUT_S = 5.0

KINDS: tuple[tuple[type[PackrankError], str], ...] = (
    (ConfigError, "settings"),
    (InputError, "input"),
    (CheckFailed, "checks"),
    (AlreadyRunning, "locked"),
)


@dataclass(frozen=True, slots=True)
class Alert:
    """The document that is sent. No text of a query or passage stands in it."""

    run_id: str | None  # None: the night did not come so far as to be a run
    name: str  # of the series
    night: str  # logical date
    state: str  # Prefect's name of it
    kind: str  # settings, input, checks, locked, failed; crashed: its process is gone; missing: see require_published
    message: str  # one line
    flow_run_id: str
    host: str
    time: str  # UTC


def tell_of_failure(flow: Flow[Any, Any], flow_run: FlowRun, state: State) -> None:
    """Sends the alert of a night that ended by an error."""
    error = get_state_exception(state)
    assert isinstance(error, BaseException), type(error)
    _tell(flow, flow_run, state, kind_of(error), message_of(error))


def tell_of_crash(flow: Flow[Any, Any], flow_run: FlowRun, state: State) -> None:
    """Ends the row of the run whose process is gone, and sends the alert."""
    _tell(flow, flow_run, state, "crashed", first_line(Exception(state.message or "the process is gone")))


def moment_of(flow_run: FlowRun) -> datetime:
    """The moment that says which night a flow run means: its first start, so that a retry keeps its night.

    Never before it was due: a worker whose clock is behind the server's would take the night before.
    """
    first_start = flow_run.start_time or datetime.now(UTC)
    return max(first_start, flow_run.expected_start_time or first_start)


def tell_without_prefect(error: Exception) -> None:
    """Sends the alert for the current flow run when its server cannot be notified: no hook will run."""
    context = FlowRunContext.get()
    assert context is not None
    assert context.flow is not None
    _tell(context.flow, current_flow_run(), Failed(), kind_of(error), message_of(error))


def require_published(config: Path, night: date | None, overrides: Mapping[str, object]) -> str:
    """Returns the run_id of a published night, or alerts that it is not published: for cron, at the hour it is due.

    Args:
        config: the night's settings file.
        night: logical date; the schedule's last fire time if not given.
        overrides: section.key -> value over the settings.

    Raises:
        PackrankError: it is not published; what was told, and whether the alert was delivered.
        ConfigError: the settings cannot be read, or the file of the alerts' URL cannot.
    """
    settings = load_settings(config, overrides)
    night = night or settings.night.night_at(datetime.now(UTC))
    with store_at(settings.database_path, settings.store).runs() as runs:
        run = None if runs is None else runs.find_of_night(settings.night.name, night)
    if run is not None and run.status == "published":
        return run.run_id
    told = "there is no run" if run is None else f"run {run.run_id} is {run.status}"
    message = f"{settings.night.name}: night {night} is not published: {told}."
    url = settings.night.find_alert_url()
    if url is not None:
        alert = Alert(
            run_id=None if run is None else run.run_id,
            name=settings.night.name,
            night=night.isoformat(),
            state="Missing" if run is None else run.status,
            kind="missing",
            message=message,
            flow_run_id="",
            host=socket.gethostname(),
            time=datetime.now(UTC).isoformat(timespec="seconds"),
        )
        trouble = send(alert, url)
        message = f"{message} {trouble or 'The alert was delivered.'}"
    raise PackrankError(message)


def kind_of(error: BaseException) -> str:
    """What went wrong, in the words of `packrank run`'s exit codes."""
    return next((kind for family, kind in KINDS if isinstance(error, family)), "failed")


def message_of(error: BaseException) -> str:
    """The line of a foreseen error; of any other the kind alone, since a driver's words may have data in them."""
    if isinstance(error, PackrankError):
        return hide_url_secrets(" ".join(str(error).split()))[:1_000]
    return f"unexpected {type(error).__name__}. The flow run's log has the details."


def send(alert: Alert, url: str) -> str | None:
    """POSTs the alert; returns what went wrong, without the URL's secrets, or None. A redirect is not followed."""
    try:
        answer = httpx.post(url, json=asdict(alert), headers={"User-Agent": "packrank"}, timeout=TIMEOUT_S)
    except httpx.ConnectError as error:
        told = first_line(error)
    except (httpx.HTTPError, httpx.InvalidURL, ImportError, OSError, ValueError) as error:  # a proxy's URL as well
        told = type(error).__name__
    else:
        if answer.is_success:
            return None
        told = f"HTTP status {answer.status_code}"
    return f"the alert to {urlsplit(url).hostname} was not delivered: {told}"


def _tell(flow: Flow[Any, Any], flow_run: FlowRun, state: State, kind: str, message: str) -> None:
    if flow_run.deployment_id is None:
        return
    logger = flow_run_logger(flow_run, flow)
    parameters = get_parameter_defaults(flow.fn) | flow_run.parameters
    run_id = None
    try:
        run_id = _find_run(parameters, str(flow_run.id), is_crashed=kind == "crashed")
    except PackrankError as error:
        logger.info("the alert names no run: %s", message_of(error))
    try:
        night = alert_settings(checkout_path(parameters["config"]))
        url = night.find_alert_url()
    except PackrankError as error:
        logger.warning("no alert was sent: %s", message_of(error))
        return
    if url is None:
        return
    alert = Alert(
        run_id=run_id,
        name=night.name,
        night=run_id[:10] if run_id else _night_of(parameters, night, flow_run),
        state=state.name or state.type.value,
        kind=kind,
        message=message,
        flow_run_id=str(flow_run.id),
        host=socket.gethostname(),
        time=datetime.now(UTC).isoformat(timespec="seconds"),
    )
    trouble = send(alert, url)
    if trouble is not None:
        logger.warning(trouble)


def _find_run(parameters: Mapping[str, Any], flow_run_id: str, *, is_crashed: bool) -> str | None:
    """The flow run's run; of a crashed one its row is ended."""
    settings = load_settings(checkout_path(parameters["config"]), parameters["overrides"])
    store = store_at(settings.database_path, settings.store)
    with store.runs() as runs:
        run = None if runs is None else runs.find_of_flow_run(flow_run_id)
    if run is None:
        return None
    if is_crashed:  # for those who look before the next start
        store.write(lambda database: Runs(database).fail_crashed(flow_run_id))
    return run.run_id


def _night_of(parameters: Mapping[str, Any], night: NightSettings, flow_run: FlowRun) -> str:
    given = parameters["night"]
    return str(given) if given else night.night_at(moment_of(flow_run)).isoformat()
