"""Publishing by hand, and what follows every publication. Knows nothing of how a run came to be."""

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tasks.database import DatabaseLimits
from tasks.environment import checkout_path
from tasks.errors import FollowUpFailed, PackrankError, StoreError
from tasks.keep.store import Store, run_lock
from tasks.offer.database_copy import copy_published
from tasks.offer.exports import PublishedNight, export_night
from tasks.offer.publish import publish_run, unpublish_run
from tasks.offer.retention import Horizon, delete_old_runs, delete_old_windows
from tasks.settings import StoreSettings, store_settings

Step = Callable[[], str]  # returns what to tell, one line

ENDS = ("keep_nights", "keep_window_nights")


def publish_by_hand(database: Path, run_id: str, overrides: Mapping[str, object] | None = None) -> list[str]:
    """Publishes a complete run whose checks passed, and does what follows; returns what to tell, a line each.

    Args:
        database: where the run lies.
        run_id: a complete run, or a published one of which only the rest is to be done again.
        overrides: `store.key` -> value over the settings that are stored with the run. Only here may stand how many
            nights are kept: what an old run's settings say of that is no reason to delete anything today.

    Raises:
        AlreadyRunning: a run is in progress on the database.
        CheckFailed, PackrankError: it cannot be published, see `publish_run`.
        FollowUpFailed: it is published, the rest is not done.
    """
    with _locked_store(database, run_id) as store:
        settings = _settings_of(store, run_id, overrides)
        is_new = publish_run(store, run_id)
        told = f"run {run_id}: {'published' if is_new else 'already published'}"
        return [told, *follow_up(store, settings, run_id)]


def unpublish_by_hand(database: Path, run_id: str, overrides: Mapping[str, object] | None = None) -> list[str]:
    """Takes a published run back to complete, and its export and copy with it; returns what to tell, a line each.

    Raises:
        AlreadyRunning: a run is in progress on the database.
        PackrankError: there is no such run, or it is unfinished.
        FollowUpFailed: it is taken back, but not from where it was exported to.
    """
    with _locked_store(database, run_id) as store:
        settings = _settings_of(store, run_id, overrides)
        was_published = unpublish_run(store, run_id)
        told = f"run {run_id}: {'no longer published' if was_published else 'was not published'}"
        return [told, *_do(store, run_id, "taken back", _offers(store, settings, run_id))]


def follow_up(store: Store, settings: StoreSettings, run_id: str) -> list[str]:
    """Does what the settings want done after a publication; returns what to tell, a line each.

    Raises:
        FollowUpFailed: naming all that failed, after all was tried.
    """
    steps = [*_ends(store, settings, run_id), *_offers(store, settings, run_id)]  # what is deleted is not copied
    lines = _do(store, run_id, "published", steps)
    store.update("note_offered", {"run_id": run_id})
    return lines


def _ends(store: Store, settings: StoreSettings, run_id: str) -> list[Step]:
    """What ends with the night."""
    (run,) = store.query("run/find_run", {"run_id": run_id}).to_pylist()
    steps: list[Step] = []
    if settings.keep_nights is not None:
        runs = Horizon(run["name"], run_id, settings.keep_nights)
        steps.append(lambda: delete_old_runs(store, runs, settings.spool_folder(store.path)))
    if settings.keep_window_nights is not None:
        windows = Horizon(run["name"], run_id, settings.keep_window_nights)
        steps.append(lambda: delete_old_windows(store, windows))
    return steps


def _offers(store: Store, settings: StoreSettings, run_id: str) -> list[Step]:
    """What shows the published scores to others."""
    (run,) = store.query("run/find_run", {"run_id": run_id}).to_pylist()
    published = PublishedNight(run["name"], run["night"])
    steps: list[Step] = []
    if settings.export is not None:
        root = checkout_path(settings.export)
        steps.append(lambda: export_night(store, published, root))
    if settings.published_copy:
        steps.append(lambda: copy_published(store))
    return steps


def _do(store: Store, run_id: str, done: str, steps: list[Step]) -> list[str]:
    lines, failures = [], []
    for step in steps:
        try:
            lines.append(step())
        except PackrankError as error:
            failures.append(str(error))
    if failures:
        verb = "publish" if done == "published" else "unpublish"
        raise FollowUpFailed(
            f"run {run_id} is {done}, but not all that follows is done: {'; '.join(failures)}. The same command tries "
            f"again, or `packrank {verb} {run_id} --database {store.path}`; --set store.KEY=VALUE changes how."
        )
    return lines


def _settings_of(store: Store, run_id: str, overrides: Mapping[str, object] | None) -> StoreSettings:
    """`[store]` as it is stored with the run, but for ENDS; the defaults where there is no such run: others tell."""
    (run,) = store.query("run/find_run", {"run_id": run_id}).to_pylist() or [{"settings": "{}"}]
    stored = json.loads(run["settings"]).get("store", {})
    kept = {key: value for key, value in stored.items() if key not in ENDS}
    return store_settings({"store": kept}, overrides or {})


@contextmanager
def _locked_store(database: Path, run_id: str) -> Iterator[Store]:
    if not database.exists():
        raise StoreError(f"{database}: no such database. Run a night first, or give --database.")
    settings = StoreSettings()
    scratch = database.parent / "tmp" / f"{database.stem}.duckdb"
    with run_lock(database, run_id):
        store = Store(database, DatabaseLimits(settings.memory_limit, settings.threads, scratch))
        with store.unit_of_work() as opened:
            if not opened.has_table("runs"):  # somebody else's database gets no tables of ours
                raise StoreError(f"{database}: has no runs, it is no database of packrank's. Give another --database.")
        store.prepare()
        yield store
