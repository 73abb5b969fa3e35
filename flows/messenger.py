"""Sends progress and reports to Prefect's pages, and ends a flow when its server is gone.

    flow --send--> Messenger's own thread --> Prefect's API

A server that is away, hangs, or refuses a message can neither end, delay nor slow a night: the flow's thread never
waits for it, and what went wrong is one warning in the log. Knows nothing of what a night does.
"""

import contextvars
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import NoReturn, Self
from uuid import UUID

import httpx
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.actions import ArtifactCreate, ArtifactUpdate
from prefect.client.schemas.objects import FlowRun
from prefect.context import FlowRunContext
from prefect.exceptions import Abort
from prefect.settings import PREFECT_CLIENT_MAX_RETRIES, temporary_settings

from flows.progress import label_of, share_of
from tasks.nightly.night_progress import Progress
from tasks.system.errors import PackrankError, first_line

TIMEOUT_S = 5.0  # of one request
UPDATE_EVERY_S = 5.0  # of a progress bar: the page need not be faster
CLOSE_S = 10.0  # at the end, for what has not been sent yet
RETURN_S = 20.0  # at the end, for a server that is being started again; an interrupted flow does not wait
PROBE_TIMEOUT_S = 2.0

Message = Callable[[SyncPrefectClient, UUID], object]  # is given the flow run's id

_gone = threading.Event()
logger = logging.getLogger("tasks.prefect")  # Prefect shows what is below `tasks`


class PrefectGone(Abort):
    """A flow's body has ended and the server does not answer: nobody can be told.

    Prefect's engine ends an aborted flow run without asking the server, for which it would try for minutes.
    """

    def __init__(self, outcome: BaseException | None) -> None:
        super().__init__("the Prefect server does not answer")
        self.outcome = outcome  # how the body ended; None: it went through


def current_flow_run() -> FlowRun:
    """The flow run that this is called in; `prefect.runtime` would ask the server."""
    context = FlowRunContext.get()
    assert context is not None
    assert context.flow_run is not None
    return context.flow_run


class Messenger:
    """Sends messages about the current flow run from a thread of its own; never raises, never waits but at its end."""

    def __init__(self) -> None:
        self._flow_run_id = current_flow_run().id
        self._client: SyncPrefectClient | None = None
        self._waiting: dict[str, Message] = {}
        self._is_sending = self._is_closed = self._has_warned = False
        self._changed = threading.Condition()

    def __enter__(self) -> Self:
        context = contextvars.copy_context()  # the flow run's settings, and its logger
        threading.Thread(target=context.run, args=(self._work,), name="prefect-messenger", daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Waits a moment for what is left; not where the flow was interrupted."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
            if error is None or isinstance(error, Exception):
                self._changed.wait_for(lambda: not self._waiting and not self._is_sending, CLOSE_S)

    def send(self, key: str, message: Message) -> None:
        """Has `message` sent; it takes the place of one of the same key that still waits."""
        with self._changed:
            self._waiting[key] = message
            self._changed.notify_all()

    def send_text(self, key: str, markdown: str, description: str | None = None) -> None:
        """Has an artifact made of `markdown`, which the flow run's page shows."""

        def write(client: SyncPrefectClient, flow_run_id: UUID) -> None:
            text = ArtifactCreate(
                key=key, type="markdown", data=markdown, description=description, flow_run_id=flow_run_id
            )
            client.create_artifact(text)

        self.send(key, write)

    def _work(self) -> None:
        with temporary_settings({PREFECT_CLIENT_MAX_RETRIES: 1}):  # a locked SQLite needs one; 5 would take a minute
            while (message := self._next()) is not None:
                try:
                    message(self._connected(), self._flow_run_id)
                except Exception as error:  # whatever it is, the night is not ended by it
                    self._warn(error)
            if self._client is not None:
                with suppress(Exception):
                    self._client.__exit__(None, None, None)

    def _next(self) -> Message | None:
        """The message to send now; None when all are sent and no more will come."""
        with self._changed:
            self._is_sending = False
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._waiting or self._is_closed)
            if not self._waiting:
                return None
            self._is_sending = True
            return self._waiting.pop(next(iter(self._waiting)))

    def _connected(self) -> SyncPrefectClient:
        if self._client is None:
            client = get_client(sync_client=True, httpx_settings={"timeout": httpx.Timeout(TIMEOUT_S)})
            self._client = client.__enter__()
        return self._client

    def _warn(self, error: Exception) -> None:
        if not self._has_warned:
            self._has_warned = True
            logger.warning(
                "Could not send progress or a report to Prefect: %s: %s. The night continues; "
                "further failures are not logged.",
                type(error).__name__,
                first_line(error),
            )


class ProgressArtifact:
    """A bar on the flow run's page."""

    def __init__(self, messenger: Messenger, description: str) -> None:
        self._messenger = messenger
        self._description = description
        self._artifact_id: UUID | None = None
        self._label = ""
        self._updated_at = 0.0  # monotonic

    def show(self, progress: Progress) -> None:
        """Moves the bar and says which phase it is, at once where that is new, else at most every few seconds."""
        now = time.monotonic()
        label = label_of(progress)
        is_counted = progress.total is not None and progress.done < progress.total
        if is_counted and label == self._label and now - self._updated_at < UPDATE_EVERY_S:
            return
        self._label, self._updated_at = label, now
        self._send(f"{self._description}: {label}", 100.0 * share_of(progress))

    def end(self, description: str) -> None:
        """Fills the bar and says how the run ended."""
        self._send(description, 100.0)

    def _send(self, description: str, percent: float) -> None:
        self._messenger.send(
            "progress", lambda client, flow_run_id: self._write(client, flow_run_id, description, percent)
        )

    def _write(self, client: SyncPrefectClient, flow_run_id: UUID, description: str, percent: float) -> None:
        """Runs in the messenger's thread. An artifact that somebody deleted is made anew by the next update."""
        artifact_id, self._artifact_id = self._artifact_id, None
        if artifact_id is None:
            bar = ArtifactCreate(
                key="progress", type="progress", description=description, data=percent, flow_run_id=flow_run_id
            )
            artifact_id = client.create_artifact(bar).id
        else:
            client.update_artifact(artifact_id, ArtifactUpdate(data=percent, description=description))
        self._artifact_id = artifact_id


@contextmanager
def ends_without_prefect(on_error: Callable[[Exception], None] | None = None) -> Iterator[None]:
    """A flow's body: where the server is gone when it ends, the flow run ends at once, and says so.

    Args:
        on_error: called with the error of a deployment's flow run that nobody else can be told.

    Raises:
        PrefectGone: in a flow run that a command started; a deployment's process ends here, with the exit code of a
            command.
    """
    outcome: BaseException | None = None
    try:
        yield
    except BaseException as error:
        outcome = error
    interrupted = outcome is not None and not isinstance(outcome, Exception)
    if not prefect_answers(0.0 if interrupted else RETURN_S):
        told = "went through" if outcome is None else f"ended by {type(outcome).__name__}: {first_line(outcome)}"
        flow_run = current_flow_run()
        logger.error("flow run %s %s. Prefect was not notified: its server does not answer.", flow_run.id, told)
        if flow_run.deployment_id is not None:
            if on_error is not None and isinstance(outcome, Exception):
                on_error(outcome)
            leave(_exit_code(outcome))
        _gone.set()
        raise PrefectGone(outcome)
    if outcome is not None:
        raise outcome


def prefect_is_gone() -> bool:
    """Whether a flow run of this process found the server gone."""
    return _gone.is_set()


def leave(exit_code: int) -> NoReturn:
    """Ends the process now: Prefect's threads would try for minutes to tell a server that is gone."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(exit_code)


def prefect_answers(wait_s: float = 0.0) -> bool:
    """Whether the server answers, now or within `wait_s`; a refusal is an answer."""
    deadline = time.monotonic() + wait_s
    while True:
        with temporary_settings({PREFECT_CLIENT_MAX_RETRIES: 0}):
            client = get_client(sync_client=True, httpx_settings={"timeout": httpx.Timeout(PROBE_TIMEOUT_S)})
            error = client.api_healthcheck()
        if error is None or (isinstance(error, httpx.HTTPStatusError) and error.response.is_client_error):
            return True
        if time.monotonic() > deadline:
            return False
        time.sleep(0.5)


def _exit_code(outcome: BaseException | None) -> int:
    if outcome is None:
        return 0
    return outcome.exit_code if isinstance(outcome, PackrankError) else 1
