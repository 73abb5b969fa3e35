"""A shard as a Prefect flow, `rerank-shard`, and how a night starts its shards as flow runs and waits for them.

    night's flow  --run_deployment-->  work pool of the shards  -->  a worker for each GPU  -->  rerank-shard

Whether a shard is done, and whether a process is at it, is read from the spool: Prefect's word alone is not taken for
it, since it shows a flow run whose machine is gone as Running. Knows nothing of how a shard is ranked.
"""

import logging
import time
from collections.abc import Generator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import date
from typing import Annotated, Any
from uuid import UUID, uuid4

import httpx
from prefect import State, flow, get_client
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.objects import FlowRun
from prefect.deployments import run_deployment
from prefect.exceptions import ObjectNotFound
from prefect.states import Cancelling, Completed, Crashed, Failed
from pydantic import Field

from flows.local_server import NEEDS_WORKERS
from flows.progress import ProgressArtifact
from tasks.environment import checkout_path
from tasks.errors import CanaryFailed, ConfigError, InputError, InputNotReady, PackrankError, PromptTooLong
from tasks.keep.shards import ShardFolder
from tasks.night.request import NightRequest, prepare_night
from tasks.night.shards.shard import rank_shard

DEPLOYMENT = "rerank-shard/shard"
POLL_S = 2.0
LOST_S = 60.0  # a flow run takes its shard's lock some 5 s after it says Running
MAX_STARTS = 2  # of a shard by one night

# What another start would only say again.
LASTING = {kind.__name__: kind for kind in (ConfigError, PromptTooLong, InputError, InputNotReady, CanaryFailed)}

logger = logging.getLogger("tasks.shards")  # Prefect shows what is below `tasks`


@flow(name="rerank-shard", persist_result=False)
def rerank_shard(
    config: str,
    night: date,
    run_id: str,
    shard: Annotated[int, Field(ge=0)],
    overrides: dict[str, Any] | None = None,
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
        prepared = prepare_night(NightRequest(checkout_path(config), night, overrides=(overrides or {}) | arrived))
        rank_shard(prepared, run_id, shard, ProgressArtifact(f"{run_id}, shard {shard}").update)
    except PackrankError as error:
        return Failed(name=type(error).__name__, message=str(error))  # the night reads both
    return Completed(message=f"{run_id}, shard {shard}: all batches are in the spool")


@dataclass(slots=True)
class _Watched:
    """A shard that is not done yet."""

    folder: ShardFolder
    flow_run_id: UUID | None = None
    num_starts: int = 0
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
        with get_client(sync_client=True) as client:
            _require_deployment(client)
            try:
                while waiting:
                    for each in list(waiting):
                        ended = self._look(client, each)
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
                _cancel(client, waiting)
                raise
        if failed:
            raise failed[0]

    def _look(self, client: SyncPrefectClient, each: _Watched) -> ShardFolder | PackrankError | None:
        """The shard where it is done, an error where it cannot be; None where it is to be waited for."""
        if each.flow_run_id is None:
            if each.folder.is_done:
                return each.folder
            if not each.folder.is_held():  # by a flow run of a night that was killed, which goes on by itself
                self._start(each)
            return None
        state = _state_of(client, each.flow_run_id)
        if state is None:
            return None
        if state.is_running() and _is_lost(each, time.monotonic()):
            state = Crashed(message=f"nobody holds its lock since {LOST_S:.0f} s: its process is gone")
            client.set_flow_run_state(each.flow_run_id, state, force=True)
        return _conclude(each, state) if state.is_final() else None

    def _start(self, each: _Watched) -> None:
        each.num_starts += 1
        run_id, shard = each.folder.run_id, each.folder.shard
        told = {"config": self.config, "night": self.night, "run_id": run_id, "shard": shard}
        started = run_deployment(
            DEPLOYMENT,
            parameters=told | {"overrides": self.overrides},
            flow_run_name=f"{run_id}.{shard}",
            idempotency_key=str(uuid4()),  # a request that the client repeats makes one flow run
            timeout=0,
            tags=[run_id],
        )
        assert isinstance(started, FlowRun), type(started)  # a coroutine where there is an event loop
        each.flow_run_id = started.id
        logger.info("run_id=%s shard=%d flow_run=%s start=%d", run_id, shard, started.id, each.num_starts)


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
    logger.warning("%s. It is started once more.", told)
    each.flow_run_id = each.unheld_since = None
    return None


def _is_lost(each: _Watched, now: float) -> bool:
    """Whether Prefect shows it Running, but no process on any machine has held its lock for a while."""
    if each.folder.is_held():
        each.unheld_since = None
        return False
    each.unheld_since = each.unheld_since or now
    return now - each.unheld_since > LOST_S


def _state_of(client: SyncPrefectClient, flow_run_id: UUID) -> State[Any] | None:
    """None where the server does not answer: the shards go on without it."""
    try:
        return client.read_flow_run(flow_run_id).state
    except httpx.HTTPError as error:
        logger.warning("the state of flow run %s cannot be read now: %s", flow_run_id, type(error).__name__)
    return None


def _require_deployment(client: SyncPrefectClient) -> None:
    try:
        pool = client.read_deployment_by_name(DEPLOYMENT).work_pool_name or ""
        online = [worker for worker in client.read_workers_for_work_pool(pool) if worker.status == "ONLINE"]
    except ObjectNotFound as error:
        raise ConfigError(f"{client.api_url}: no deployment {DEPLOYMENT}. {NEEDS_WORKERS}") from error
    if not online:
        logger.warning("no worker of the work pool %s is online: the shards wait for one", pool)


def _cancel(client: SyncPrefectClient, waiting: Sequence[_Watched]) -> None:
    """Has the workers stop what is left: the night's own end must not leave engines at work."""
    for each in waiting:
        if each.flow_run_id is not None:
            with suppress(httpx.HTTPError, ObjectNotFound):
                client.set_flow_run_state(each.flow_run_id, Cancelling())
