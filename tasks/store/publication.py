"""Publishing, by a night or by hand, and what follows it. Knows nothing of how a run came to be."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from tasks.settings import StoreSettings, store_settings
from tasks.store.exports import PublishedNight, export_night
from tasks.store.night_store import Store, store_at
from tasks.store.published_copy import copy_published
from tasks.store.retention import Horizon, delete_old_runs, delete_old_windows
from tasks.store.runs import Run, Runs
from tasks.system.environment import checkout_path
from tasks.system.errors import FollowUpFailed, PackrankError, StoreError
from tasks.system.run_lock import run_lock

Step = Callable[[], str]  # returns what to tell, one line
ALL_NIGHTS = 1_000_000
FURTHEST_EAST = timedelta(hours=14)  # the first time zone to begin a day
ENDS = ("keep_nights", "keep_window_nights", "keep_answer_nights")  # the last is in what older runs stored


@dataclass(frozen=True, slots=True)
class Publication:
    """A run that is published now."""

    run_id: str
    is_new: bool  # it was not published before
    hidden: str | None  # why latest_scores does not show it; None where it does
    steps: Sequence[Step]  # what follows


def publish(store: Store, run_id: str, settings: StoreSettings) -> Publication:
    """Publishes a complete run whose checks passed, see `Runs.publish`; to be called with the run lock held."""
    with store.unit_of_work() as database, database.transaction():
        runs = Runs(database)
        run = runs.get(run_id)
        is_new = run.status != "published"
        if is_new:
            runs.publish(run, settings.keep_outcomes)
        steps = [*_ends(store, settings, run), *_offers(store, settings, run)]  # what is deleted is not copied
        if not steps:
            runs.note_offered(run_id)
        return Publication(run_id, is_new, _hidden(run, runs.find_published(run.name)), steps)


def follow_up(store: Store, published: Publication) -> list[str]:
    """Does what the settings want done after a publication; returns what to tell, a line each.

    Raises:
        FollowUpFailed: naming all that failed, after all was tried.
    """
    lines = _do(store, published.run_id, "published", published.steps)
    if published.steps:
        store.write(lambda database: Runs(database).note_offered(published.run_id))
    return lines


def publish_by_hand(database: Path, run_id: str, overrides: Mapping[str, object] | None = None) -> list[str]:
    """Publishes a complete run whose checks passed, and does what follows; returns what to tell, a line each.

    Args:
        database: where the run lies.
        run_id: a complete run, or a published one of which only the rest is to be done again.
        overrides: `store.key` -> value over the settings that are stored with the run. Only these may set how many
            nights are kept: the settings of an old run must not delete anything today.

    Raises:
        AlreadyRunning: a run is in progress on the database.
        CheckFailed, PackrankError: it cannot be published, see `Runs.publish`.
        FollowUpFailed: it is published, the rest is not done.
    """
    with _locked_store(database, run_id) as store:
        published = publish(store, run_id, _settings_of(store, run_id, overrides))
        told = f"run {run_id}: {'published' if published.is_new else 'already published'}"
        return [told, *filter(None, [published.hidden]), *follow_up(store, published)]


def unpublish_by_hand(database: Path, run_id: str, overrides: Mapping[str, object] | None = None) -> list[str]:
    """Takes a published run back to complete, and its export and copy with it; returns what to tell, a line each.

    Raises:
        AlreadyRunning: a run is in progress on the database.
        PackrankError: there is no such run, or it is unfinished.
        FollowUpFailed: it is taken back, but not from where it was exported to.
    """
    with _locked_store(database, run_id) as store:
        settings = _settings_of(store, run_id, overrides)
        with store.unit_of_work() as opened, opened.transaction():
            run = Runs(opened).get(run_id)
            Runs(opened).unpublish(run)
        told = f"run {run_id}: {'no longer published' if run.status == 'published' else 'was not published'}"
        return [told, *_do(store, run_id, "taken back", _offers(store, settings, run))]


def _hidden(run: Run, shown: Run | None) -> str | None:
    """What run `latest_scores` shows, where that is another than the one just published."""
    if shown is None or shown.run_id == run.run_id:
        return None
    told = f"latest_scores shows the run {shown.run_id} of the later night {shown.night}, not this one."
    if shown.night <= (datetime.now(UTC) + FURTHEST_EAST).date():
        return told
    return f"{told} That night has not come yet: `packrank unpublish {shown.run_id}` takes it back."


def _ends(store: Store, settings: StoreSettings, run: Run) -> Iterator[Step]:
    """What ends with the night."""
    if settings.keep_nights is not None:
        runs = Horizon(run.name, run.run_id, settings.keep_nights)
        yield lambda: delete_old_runs(store, runs, settings.spool_folder(store.path))
    if settings.keep_window_nights is not None:
        windows = Horizon(run.name, run.run_id, settings.keep_window_nights)
        yield lambda: delete_old_windows(store, windows)


def _offers(store: Store, settings: StoreSettings, run: Run) -> Iterator[Step]:
    """What shows the published scores to others."""
    if settings.export is not None:
        root = checkout_path(settings.export)
        yield lambda: export_night(store, PublishedNight(run.name, run.night), root)
    if settings.published_copy:
        yield lambda: copy_published(store)


def _do(store: Store, run_id: str, done: str, steps: Iterable[Step]) -> list[str]:
    lines, failures = [], []
    for step in steps:
        try:
            lines.append(step())
        except PackrankError as error:
            failures.append(str(error))
    if failures:
        verb = "publish" if done == "published" else "unpublish"
        raise FollowUpFailed(
            f"run {run_id} is {done}, but some follow-up steps failed: {'; '.join(failures)}. The same command tries "
            f"again, or `packrank {verb} {run_id} --database {store.path}`; --set store.KEY=VALUE changes how."
        )
    return lines


def _settings_of(store: Store, run_id: str, overrides: Mapping[str, object] | None) -> StoreSettings:
    """`[store]` as stored with the run, without ends of other nights; the defaults where there is no such run."""
    run = store.find_run(run_id)
    stored = {} if run is None else run.stored_settings.get("store", {})
    kept = {key: value for key, value in stored.items() if key not in ENDS}
    kept["keep_outcomes"] = {**stored.get("keep_outcomes", {}), "nights": ALL_NIGHTS}
    return store_settings({"store": kept}, overrides or {})


@contextmanager
def _locked_store(database: Path, run_id: str) -> Iterator[Store]:
    if not database.exists():
        raise StoreError(f"{database}: no such database. Run a night first, or give --database.")
    with run_lock(database, run_id):
        store = store_at(database, StoreSettings())
        with store.runs() as runs:
            if runs is None:  # somebody else's database gets no tables of ours
                raise StoreError(f"{database}: has no runs: it is not a packrank database. Give another --database.")
        store.prepare()
        yield store
