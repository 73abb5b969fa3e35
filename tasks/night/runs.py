"""What the database knows of a night's runs: which one to take up, which one to reuse, how one began and ended.

Knows nothing of how a run is ranked.
"""

import json
import logging
import socket
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

from tasks.environment import ROOT
from tasks.errors import PackrankError, StoreError
from tasks.keep.fingerprints import canonical_json, git_commit, library_versions
from tasks.keep.store import NewRun, RunState, Store
from tasks.night.request import PreparedNight
from tasks.rank.reuse import EarlierRun, earlier_run
from tasks.redaction import hide_url_secrets
from tasks.settings import Settings

logger = logging.getLogger(__name__)


def store_of(prepared: PreparedNight) -> Store:
    """The database that the night's settings name."""
    return _store_at(prepared.settings)


def choose_run_id(base: str, repeats: Mapping[str, RunState], *, rerun: bool) -> str:
    """The run to take up: the latest repetition, or a new one where `rerun` asks for it and the latest is done.

    Args:
        base: the id that night, settings and input give.
        repeats: the run and its -rN repetitions by run_id.
        rerun: whether a finished run is to be repeated.
    """
    latest = max(repeats, key=_repetition, default=base)
    if rerun and latest in repeats and repeats[latest].is_ranked:
        return f"{base}-r{_repetition(latest) + 1}"
    return latest


def find_earlier_run(prepared: PreparedNight) -> EarlierRun | None:
    """The run that a new run looks at for reuse: the last published one, or the one that it repeats."""
    store = store_of(prepared)
    if prepared.reuse == "nothing" or not store.has_runs():
        return None
    if prepared.reuse == "published":
        series = {"name": prepared.settings.night.name, "night": prepared.night.isoformat()}
        (found,) = store.query("reuse/find_published", series).to_pylist() or [None]
    else:
        repeats = store.find_repeats(prepared.base_run_id)
        found = store.find_run(max((each for each, state in repeats.items() if state.is_ranked), key=_repetition))
    return None if found is None else compared(prepared, found)


def earlier_run_of(prepared: PreparedNight, store: Store, run_id: str) -> EarlierRun | None:
    """The run whose rows a run may reuse, as it was chosen when the run began; None where there is none."""
    row = store.find_run(run_id)
    found = None if row is None or row["reuse_run_id"] is None else store.find_run(row["reuse_run_id"])
    return None if found is None else compared(prepared, found)


def num_shards_of(prepared: PreparedNight, store: Store, run_id: str) -> int:
    """How many shards a run has: as many as it began with, since each query's rows are in the one or the other."""
    row = store.find_run(run_id)
    assert row is not None, run_id
    begun, asked = json.loads(row["settings"]).get("packing", {}).get("shards", 1), prepared.settings.packing.shards
    if begun != asked:
        logger.warning("run_id=%s keeps the %d shards that it began with; [packing] shards = %d", run_id, begun, asked)
    return int(begun)


def compared(prepared: PreparedNight, found: Mapping[str, Any]) -> EarlierRun:
    """An earlier run, a row of `runs`, with what of this night's recipe is another since."""
    return earlier_run(found, prepared.model_identity, prepared.recipe_parts)


def has_nothing_to_requeue(prepared: PreparedNight, store: Store, repeats: Mapping[str, RunState]) -> bool:
    """Whether the run to repeat has nothing set aside, so that it stands as it is."""
    if prepared.reuse != "repeated":
        return False
    if not any(state.is_ranked for state in repeats.values()):
        raise PackrankError(
            f"{store.path}: no finished run {prepared.base_run_id} of these settings and this input, nothing to "
            "requeue. See `packrank runs`; --night names another night."
        )
    latest = {"run_id": max(repeats, key=_repetition)}
    return int(store.query("reuse/count_set_aside", latest).column("num_queries")[0].as_py()) == 0


def find_run_of_flow_run(settings: Settings, flow_run_id: str) -> str | None:
    """The run that a flow run took up; None where it came not so far.

    Raises:
        StoreError: the database cannot be read.
    """
    store = _store_at(settings)
    if not store.path.exists():
        return None
    rows = store.query("run/find_run_of_flow_run", {"flow_run_id": flow_run_id}).to_pylist()
    return rows[0]["run_id"] if rows else None


def fail_crashed_run(settings: Settings, flow_run_id: str) -> None:
    """Ends the row of a run whose process was killed, for those who look before the next start.

    Raises:
        StoreError: the database cannot be written.
    """
    _store_at(settings).update("fail_crashed_run", {"flow_run_id": flow_run_id})


def new_run(prepared: PreparedNight, run_id: str, flow_run_id: str | None, reuse_run_id: str | None) -> NewRun:
    """What the run's row says before it begins."""
    settings = prepared.settings
    return NewRun(
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
        versions=canonical_json(library_versions()),
        git_commit=git_commit(ROOT),
        host=socket.gethostname(),
        flow_run_id=flow_run_id,
        is_limited=prepared.limit_queries is not None,
        reuse_run_id=reuse_run_id,
    )


def note_failure(store: Store, run_id: str, error: BaseException) -> None:
    """Cancelled by a signal, else failed; a database that cannot be written must not hide the error itself."""
    status = "failed" if isinstance(error, Exception) else "cancelled"
    told = hide_url_secrets(" ".join(f"{type(error).__name__}: {error}".split()).rstrip(":"))[:1_000]
    with suppress(StoreError):
        store.update("finish_run", {"run_id": run_id, "status": status, "error": told})


def _store_at(settings: Settings) -> Store:
    path = settings.database_path
    return Store(path, settings.database_limits(path.parent / "tmp" / f"{path.stem}.duckdb"))


def _repetition(run_id: str) -> int:
    """1 for a run, N for its repetition -rN."""
    tail = run_id.rpartition("-r")[2]
    return int(tail) if tail.isdigit() else 1
