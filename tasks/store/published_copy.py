"""The copy of a database for tools that keep a connection open: `{stem}.published.duckdb` beside it.

It holds the published runs and the same views, and has a storage version that older DuckDB clients can open. The name
is a link to a file that has its time in its name: while any connection of a process is open, DuckDB gives the same file
to all that the process opens, so a pool would never see one that is replaced under its name. A tool that has an old one
open goes on reading that. Knows nothing of how a run was published.
"""

from datetime import UTC, datetime
from glob import escape
from pathlib import Path

from tasks.store.night_store import Store
from tasks.system.atomic_files import sync
from tasks.system.checkpoint_journal import journal_of
from tasks.system.errors import PackrankError, first_line
from tasks.system.workspace import Workspace

OLDEST_CLIENT = "v1.0.0"  # DuckDB's storage version; clients since 1.1 can open it, 1.0 not with our schema


VERSION = "[0-9]" * 8 + "T" + "[0-9]" * 6 + "*Z"  # a time, as in 20261129T013000.123456Z


def copy_published(store: Store) -> str:
    """Makes the copy anew, and says where; to be called with the run lock held.

    Raises:
        PackrankError: the folder cannot be written.
        StoreError: the database is locked, or the disk is full.
    """
    target = Workspace(store.path).published_copy
    aside = target.with_name(f".{target.name}.part")
    try:
        _remove_leftovers(target)
        copy = Store(aside, store.limits, storage_version=OLDEST_CLIENT)
        copy.prepare()
        with copy.unit_of_work() as database:
            names = ("publication/attach_nights", "publication/detach_nights")
            with database.attached(store.path, *names, store.wait_s), database.transaction():
                database.execute("publication/copy_published")
            database.checkpoint()  # the copy is its file alone
        sync(aside)
        version = target.with_name(f"{target.stem}.{datetime.now(UTC):%Y%m%dT%H%M%S.%fZ}.duckdb")
        aside.replace(version)
        _link(target, version)
        _remove_old_versions(target, version)
    except OSError as error:
        raise PackrankError(f"{target}: cannot be written: {first_line(error)}") from error
    finally:
        for path in (aside, aside.with_name(f"{aside.name}.wal"), journal_of(aside)):
            path.unlink(missing_ok=True)
    return f"copy: {target}, {target.stat().st_size / 1e6:,.1f} MB"


def _link(target: Path, version: Path) -> None:
    """Swaps the name to the new file at once."""
    link = target.with_name(f".{target.name}.link")
    link.unlink(missing_ok=True)
    link.symlink_to(version.name)
    link.replace(target)
    sync(target.parent)


def _remove_leftovers(target: Path) -> None:
    """What copies that were killed left, each as large as the database."""
    name = escape(target.name)
    for pattern in (f".{name}.*part*", f"..{name}.*part.new*"):
        for path in target.parent.glob(pattern):
            path.unlink()


def _remove_old_versions(target: Path, version: Path) -> None:
    """With the log that a tool may have left beside one which it opened to write."""
    for path in target.parent.glob(f"{escape(target.stem)}.{VERSION}.duckdb*"):
        if not path.name.startswith(version.name):
            path.unlink()
