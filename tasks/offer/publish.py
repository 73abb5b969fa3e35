"""The run that stands for its night: published once its checks passed, taken back by hand.

Each is one transaction, under the run lock, which the caller holds. Knows nothing of what follows a publication.
"""

from pathlib import Path
from typing import Any

from tasks.database import Database
from tasks.errors import CheckFailed, PackrankError
from tasks.keep.store import Store

AGAIN = "Run its command again with --publish"


def publish_run(store: Store, run_id: str, *, is_whole: bool = False) -> bool:
    """Makes a complete run the one of its night; its outcomes, only needed to resume it, go.

    A run older than the column `is_limited` does not tell whether it is a trial, and cannot be asked: how many queries
    its input had is stored nowhere. It is refused unless the caller knows, as its own command does.

    Args:
        store: where it lies.
        run_id: a complete run; a published one stays as it is.
        is_whole: whether the caller knows that it ranked all queries.

    Returns:
        Whether it was not published before.

    Raises:
        CheckFailed: naming the checks that failed.
        PackrankError: there is no such run, it is unfinished, unchecked, or a trial.
    """
    with store.unit_of_work() as database, database.transaction():
        run = _find_run(store.path, database, run_id)
        if run["status"] == "published":
            return False
        _require_publishable(store.path, run, is_whole=is_whole)
        database.execute("run/publish_run", {"run_id": run_id})
        database.execute("run/drop_outcomes", {"run_id": run_id})
    return True


def unpublish_run(store: Store, run_id: str) -> bool:
    """Takes a published run back to complete: `latest_scores` shows the published run before it.

    Returns:
        Whether it was published before.

    Raises:
        PackrankError: there is no such run, or it is unfinished.
    """
    with store.unit_of_work() as database, database.transaction():
        run = _find_run(store.path, database, run_id)
        if run["status"] == "complete":
            return False
        if run["status"] != "published":
            raise PackrankError(
                f"{store.path}: run {run_id} is {run['status']!r}, wanted published. See `packrank runs`."
            )
        database.execute("run/unpublish_run", {"run_id": run_id})
    return True


def _find_run(path: Path, database: Database, run_id: str) -> dict[str, Any]:
    (run,) = database.query("run/find_run", {"run_id": run_id}).to_pylist() or [None]
    if run is None:
        raise PackrankError(f"{path}: no run {run_id!r}. `packrank runs` lists them.")
    found: dict[str, Any] = run
    return found


def _require_publishable(path: Path, run: dict[str, Any], *, is_whole: bool) -> None:
    where = f"{path}: run {run['run_id']}"
    if run["status"] != "complete":
        raise PackrankError(f"{where} is {run['status']!r}, wanted complete. {AGAIN}: it goes on where it was.")
    if run["is_limited"]:
        raise PackrankError(f"{where} is a trial: latest_scores would lose queries. Run it without --limit-queries.")
    if run["is_limited"] is None and not is_whole:
        raise PackrankError(f"{where} does not tell whether it is a trial. {AGAIN}, which knows.")
    if run["failed_checks"] is None:
        raise PackrankError(f"{where} was not checked. {AGAIN}: nothing is ranked again.")
    if run["failed_checks"]:
        raise CheckFailed(
            f"{where} failed {', '.join(run['failed_checks'])}: it is not published. Raise a limit in [checks] and run "
            "its command again with --publish; docs/operations.md says more."
        )
