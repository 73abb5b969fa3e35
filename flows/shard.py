"""A shard as a Prefect flow, `rerank-shard`, and how a night starts its shards as flow runs and waits for them.

    night's flow  --run_deployment-->  work pool of the shards  -->  a worker for each GPU  -->  rerank-shard

Whether a shard is done, and whether a process is ranking it, is read from the spool. Prefect's state alone is not
trusted, since Prefect shows a flow run whose machine is gone as Running. Knows nothing of how a shard is ranked.
"""

import logging
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import date
from types import TracebackType
from typing import Annotated, Any, Self
from uuid import UUID, uuid4

import httpx
from prefect import State, flow, get_client
from prefect.client.schemas.objects import FlowRun
from prefect.deployments import run_deployment
from prefect.exceptions import ObjectNotFound
from prefect.settings import PREFECT_API_REQUEST_TIMEOUT, PREFECT_CLIENT_MAX_RETRIES, temporary_settings
from prefect.states import Cancelling, Completed, Crashed, Failed
from pydantic import Field

from flows.flow_parameters import ConfigParameter, OverridesParameter
from flows.messenger import Messenger, ProgressArtifact, ends_without_prefect
from flows.prefect_server import NEEDS_WORKERS
from tasks.nightly.prepare import NightRequest, prepare_night
from tasks.nightly.shard_worker import rank_shard
from tasks.store.shard_folder import ShardFolder
from tasks.system.environment import checkout_path
from tasks.system.errors import CanaryFailed, ConfigError, InputError, InputNotReady, PackrankError, PromptTooLong

DEPLOYMENT = "rerank-shard/shard"
POLL_S = 2.0
LOST_S = 60.0  # a flow run takes its shard's lock some 5 s after it says Running
ANSWER_S = 10.0  # of one request to the server
MAX_STARTS = 2  # of a shard by one night

# What another start would only say again.
LASTING = {kind.__name__: kind for kind in (ConfigError, PromptTooLong, InputError, InputNotReady, CanaryFailed)}

logger = logging.getLogger("tasks.shards")  # Prefect shows what is below `tasks`


@flow(name="rerank-shard", flow_run_name="{run_id}, shard {shard}", persist_result=False)
def rerank_shard(
    config: ConfigParameter,
    night: date,
    run_id: str,
    shard: Annotated[int, Field(ge=0)],
    overrides: OverridesParameter = None,
) -> State[Any]:
    """Ranks one shard of a run that a night has begun; its batches stay in the spool for the night to load.

    Args:
        config: the night's settings file; a relative path is taken from the checkout.
        night: the night's logical date.
        run_id: of the run.
        shard: which one, from 0.
        overrides: the night's.
    """
    logging.getLogger("tasks").setLevel(logging.INFO)
    arrived = {"inputs.wait_s": 0}  # the night has waited
    try:
        with ends_without_prefect(), Messenger() as messenger:
            prepared = prepare_night(NightRequest(checkout_path(config), night, overrides=(overrides or {}) | arrived))
            rank_shard(prepared, run_id, shard, ProgressArtifact(messenger, f"{run_id}, shard {shard}").show)
    except PackrankError as error:
        return Failed(name=type(error).__name__, message=str(error))  # the night reads both
    return Completed(message=f"{run_id}, shard {shard}: all batches are in the spool")


@dataclass(slots=True)
class _Watched:
    """A shard that is not done yet."""

    folder: ShardFolder
    flow_run_id: UUID | None = None
    num_starts: int = 0
    start_key: str = field(default_factory=lambda: str(uuid4()))  # a request that is repeated makes one flow run
    unheld_since: float | None = None  # monotonic: Running, but nobody is at it


@dataclass(frozen=True, slots=True)
class ShardRuns:
    """Runs a night's shards as flow runs, see `RunShards`; a shard that dies is started once more, alone."""

    config: str
    night: date
    overrides: dict[str, Any] = field(default_factory=dict)

    def __call__(self, folders: Sequence[ShardFolder]) -> Generator[ShardFolder, None, None]:
        """Gives each shard as it is done.

        Raises:
            ConfigError: the server has no deployment of shards.
            PackrankError: a shard could not be ranked; told when the others have ended.
        """
        failed: list[PackrankError] = []
        waiting = [_Watched(folder) for folder in folders]
        with _Server() as server:
            server.require_deployment()
            try:
                while waiting:
                    for each in list(waiting):
                        ended = self._look(server, each)
                        if ended is None:
                            continue
                        waiting.remove(each)
                        if isinstance(ended, PackrankError):
                            logger.warning("%s", ended)
                            failed.append(ended)
                        else:
                            yield ended
                    if waiting:
                        time.sleep(POLL_S)
            except BaseException:
                for each in waiting:
                    server.cancel(each)
                raise
        if failed:
            raise failed[0]

    def _look(self, server: "_Server", each: _Watched) -> ShardFolder | PackrankError | None:
        """The shard where it is done, an error where it cannot be; None where it is to be waited for."""
        if each.flow_run_id is None:
            if each.folder.is_done:
                return each.folder
            if not each.folder.is_held():  # by a flow run of a night that was killed, which goes on by itself
                self._start(server, each)
            return None
        try:
            state = server.state_of(each.flow_run_id)
        except ObjectNotFound:
            state = None if each.folder.is_held() else Crashed(message="its flow run was deleted")
        if state is None:  # the shards go on without the server
            return each.folder if each.folder.is_done else None
        if state.is_running() and _is_lost(each, time.monotonic()):
            state = Crashed(message=f"its lock has been free for {LOST_S:.0f} s: its process is gone")
            server.set_state(each.flow_run_id, state)
        return _conclude(each, state) if state.is_final() else None

    def _start(self, server: "_Server", each: _Watched) -> None:
        run_id, shard = each.folder.run_id, each.folder.shard
        told = {"config": self.config, "night": self.night, "run_id": run_id, "shard": shard}
        started = server.start(each, told | {"overrides": self.overrides})
        if started is None:
            return
        each.num_starts += 1
        each.flow_run_id, each.start_key = started.id, str(uuid4())
        logger.info("run_id=%s shard=%d flow_run=%s start=%d", run_id, shard, started.id, each.num_starts)


class _Server:
    """What a night asks Prefect's server about its shards; one that does not answer is one warning, and no delay."""

    def __init__(self) -> None:
        self._client = get_client(sync_client=True, httpx_settings={"timeout": httpx.Timeout(ANSWER_S)})
        self._has_warned = False

    def __enter__(self) -> Self:
        self._client.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._client.__exit__(kind, error, trace)

    @contextmanager
    def _answers(self) -> Iterator[None]:
        try:
            with temporary_settings({PREFECT_CLIENT_MAX_RETRIES: 1, PREFECT_API_REQUEST_TIMEOUT: ANSWER_S}):
                yield
        except httpx.HTTPError as error:
            if isinstance(error, httpx.HTTPStatusError) and error.response.is_client_error:
                raise  # it answered, and would answer the same again
            if not self._has_warned:
                self._has_warned = True
                logger.warning(
                    "Prefect does not answer: %s. Shards that have begun go on; others wait for it.",
                    type(error).__name__,
                )

    def require_deployment(self) -> None:
        """Refuses a server that does not know of shards.

        Raises:
            ConfigError: it has no deployment of them.
        """
        online = True
        try:
            with self._answers():
                pool = self._client.read_deployment_by_name(DEPLOYMENT).work_pool_name or ""
                workers = self._client.read_workers_for_work_pool(pool)
                online = any(worker.status == "ONLINE" for worker in workers)
        except ObjectNotFound as error:
            raise ConfigError(f"{self._client.api_url}: no deployment {DEPLOYMENT}. {NEEDS_WORKERS}") from error
        if not online:
            logger.warning("no worker of the work pool %s is online: the shards wait for one", pool)

    def state_of(self, flow_run_id: UUID) -> State[Any] | None:
        """None where the server does not answer.

        Raises:
            ObjectNotFound: somebody deleted the flow run.
        """
        state = None
        with self._answers():
            state = self._client.read_flow_run(flow_run_id).state
        return state  # noqa: RET504 - what is in _answers may end early

    def set_state(self, flow_run_id: UUID, state: State[Any]) -> None:
        """Whatever the flow run's state is now."""
        with self._answers(), suppress(ObjectNotFound):
            self._client.set_flow_run_state(flow_run_id, state, force=True)

    def start(self, each: _Watched, parameters: Mapping[str, Any]) -> FlowRun | None:
        """A flow run for a shard; None where the server does not answer."""
        started = None
        with self._answers():
            started = run_deployment(
                DEPLOYMENT,
                parameters=dict(parameters),
                flow_run_name=f"{each.folder.run_id}, shard {each.folder.shard}",
                idempotency_key=each.start_key,
                timeout=0,
                tags=[each.folder.run_id],
            )
            assert isinstance(started, FlowRun), type(started)  # a coroutine where there is an event loop
        return started

    def cancel(self, each: _Watched) -> None:
        """Has a worker stop it: the night's own end must not leave engines at work."""
        if each.flow_run_id is not None:
            with self._answers(), suppress(ObjectNotFound):
                self._client.set_flow_run_state(each.flow_run_id, Cancelling())


def _conclude(each: _Watched, state: State[Any]) -> ShardFolder | PackrankError | None:
    """What the end of a shard's flow run means."""
    if each.folder.is_done:
        return each.folder
    told = f"run {each.folder.run_id}, shard {each.folder.shard}: {state.name}: {state.message}"
    if state.name in LASTING:
        return LASTING[state.name](told)
    if each.num_starts >= MAX_STARTS:
        return PackrankError(
            f"{told}. It was started {each.num_starts} times; flow run {each.flow_run_id} has the log. Run the same "
            "command again: only what is missing is ranked."
        )
    logger.warning("%s. Starting it once more.", told)
    each.flow_run_id = each.unheld_since = None
    return None


def _is_lost(each: _Watched, now: float) -> bool:
    """Whether Prefect shows it Running, but no process on any machine has held its lock for a while."""
    if each.folder.is_held():
        each.unheld_since = None
        return False
    each.unheld_since = each.unheld_since or now
    return now - each.unheld_since > LOST_S
