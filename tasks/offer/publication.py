"""Publishing by hand, and what follows every publication. Knows nothing of how a run came to be."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tasks.database import DatabaseLimits
from tasks.errors import StoreError
from tasks.keep.publish import publish_run, unpublish_run
from tasks.keep.store import Store, run_lock
from tasks.settings import StoreSettings


def publish_by_hand(database: Path, run_id: str) -> list[str]:
    """Publishes a complete run whose checks passed; returns what to tell, a line each.

    Raises:
        AlreadyRunning: a run is in progress on the database.
        CheckFailed, PackrankError: it cannot be published, see `publish_run`.
    """
    with _locked_store(database, run_id) as store:
        is_new = publish_run(store, run_id)
        return [f"run {run_id}: {'published' if is_new else 'already published'}"]


def unpublish_by_hand(database: Path, run_id: str) -> list[str]:
    """Takes a published run back to complete; returns what to tell, a line each.

    Raises:
        AlreadyRunning: a run is in progress on the database.
        PackrankError: there is no such run, or it is unfinished.
    """
    with _locked_store(database, run_id) as store:
        was_published = unpublish_run(store, run_id)
        return [f"run {run_id}: {'no longer published' if was_published else 'was not published'}"]


@contextmanager
def _locked_store(database: Path, run_id: str) -> Iterator[Store]:
    if not database.exists():
        raise StoreError(f"{database}: no such database. Run a night first, or give --database.")
    settings = StoreSettings()
    scratch = database.parent / "tmp" / f"{database.stem}.duckdb"
    with run_lock(database, run_id):
        store = Store(database, DatabaseLimits(settings.memory_limit, settings.threads, scratch))
        store.prepare()
        yield store
