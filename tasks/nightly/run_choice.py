"""Which run a night takes up, which one it reuses, and what a new run's row says.

Knows nothing of how a run is ranked.
"""

import logging
import socket
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime

from tasks.nightly.prepare import PreparedNight
from tasks.ranking.reuse import ReuseSource, reuse_source
from tasks.store.identity import canonical_json, git_commit, library_versions
from tasks.store.night_store import Store, store_at
from tasks.store.runs import Run, Runs
from tasks.system.environment import FILES
from tasks.system.errors import PackrankError, StoreError
from tasks.system.redaction import hide_url_secrets

FAILURE_WAIT_S = 10.0  # for the lock: an error is told at once, and Prefect kills a run 30 s after it asked it to end

logger = logging.getLogger(__name__)


def store_of(prepared: PreparedNight) -> Store:
    """The database that the night's settings name; patient where somebody else has it open."""
    settings = prepared.settings
    return store_at(settings.database_path, settings.store, settings.store.lock_wait_s)


def choose_run(prepared: PreparedNight, runs: Runs | None, repeats: Mapping[str, Run]) -> str:
    """The run to take up: the last of its repetitions, or a new one where that is finished and `rerun` is asked for.

    Raises:
        PackrankError: what a finished run set aside is to be asked again, and there is no finished run.
    """
    latest = max(repeats, key=_repetition, default=prepared.base_run_id)
    asks_again = prepared.rerun and not _has_nothing_to_requeue(prepared, runs, repeats)
    if asks_again and latest in repeats and repeats[latest].is_ranked:
        return f"{prepared.base_run_id}-r{_repetition(latest) + 1}"
    return latest


def find_reuse_source(
    prepared: PreparedNight, runs: Runs, repeats: Mapping[str, Run], run: Run | None
) -> ReuseSource | None:
    """The earlier run that `run` began with; of a new one (None) the last published run, or the one that it repeats."""
    earlier = None
    if prepared.reuse != "nothing" and run is not None:
        earlier = None if run.reuse_run_id is None else runs.find(run.reuse_run_id)
    elif prepared.reuse == "published":
        earlier = runs.find_published(prepared.settings.night.name, prepared.night)
    elif prepared.reuse == "repeated":
        earlier = repeats[max((run_id for run_id, each in repeats.items() if each.is_ranked), key=_repetition)]
    return None if earlier is None else reuse_source(earlier, prepared.model_identity, prepared.recipe_parts)


def _has_nothing_to_requeue(prepared: PreparedNight, runs: Runs | None, repeats: Mapping[str, Run]) -> bool:
    """Whether the run to repeat has nothing set aside, so that it stands as it is."""
    if prepared.reuse != "repeated":
        return False
    if runs is None or not any(run.is_ranked for run in repeats.values()):
        raise PackrankError(
            f"{prepared.settings.database_path}: no finished run {prepared.base_run_id} of these settings and this "
            "input, nothing to requeue. See `packrank runs`; --night names another night."
        )
    latest = {"run_id": max(repeats, key=_repetition)}
    return int(runs.database.query("reuse/count_set_aside", latest).column("num_queries")[0].as_py()) == 0


def new_run(prepared: PreparedNight, run_id: str, flow_run_id: str | None, reuse_run_id: str | None) -> Run:
    """What the run's row says before it begins."""
    settings = prepared.settings
    return Run(
        run_id=run_id,
        name=settings.night.name,
        night=prepared.night,
        started_at=datetime.now(UTC),
        settings=settings.stored_json(),
        resolved=canonical_json(prepared.recipe.resolved),
        recipe=canonical_json(prepared.recipe_parts),
        input_digest=prepared.found.digest,
        input_partition=prepared.found.partition,
        model=settings.engine.model,
        model_identity=prepared.model_identity,
        strategy=settings.strategy.name,
        decode_mode=settings.strategy.decode_mode,
        stages=settings.strategy.stages(prepared.recipe.main.sizes.window_size),
        versions=canonical_json(library_versions()),
        git_commit=git_commit(FILES),
        host=socket.gethostname(),
        flow_run_id=flow_run_id,
        is_limited=prepared.limit_queries is not None,
        reuse_run_id=reuse_run_id,
        input_warnings=list(prepared.input_warnings),
    )


def note_failure(store: Store, run_id: str, error: BaseException) -> None:
    """Cancelled by a signal, else failed; a database that cannot be written must not hide the error itself."""
    status = "failed" if isinstance(error, Exception) else "cancelled"
    told = hide_url_secrets(" ".join(f"{type(error).__name__}: {error}".split()).rstrip(":"))[:1_000]
    with suppress(StoreError):
        store.write(lambda database: Runs(database).finish(run_id, status, told), wait_s=FAILURE_WAIT_S)


def _repetition(run_id: str) -> int:
    """1 for a run, N for its repetition -rN."""
    tail = run_id.rpartition("-r")[2]
    return int(tail) if tail.isdigit() else 1
