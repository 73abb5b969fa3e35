"""The copy of a database for tools that keep a connection open: `{stem}.published.duckdb` beside it.

It holds the published runs and the same views, is made aside and renamed, so that a tool that has the old one open goes
on reading that, and has a storage version that older DuckDB clients can open. Knows nothing of how a run was published.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tasks.database import Database
from tasks.errors import PackrankError, first_line
from tasks.files.durable import sync
from tasks.files.rollback_journal import journal_of
from tasks.keep.store import Store

OLDEST_CLIENT = "v1.0.0"  # DuckDB's storage version; clients since 1.1 can open it, 1.0 not with our schema


def published_path(database: Path) -> Path:
    """Where the copy of a database lies."""
    return database.with_name(f"{database.stem}.published.duckdb")


def copy_published(store: Store) -> str:
    """Makes the copy anew, and says where.

    Raises:
        PackrankError: the folder cannot be written.
        StoreError: the database is locked, or the disk is full.
    """
    target = published_path(store.path)
    aside = target.with_name(f".{target.name}.{os.getpid()}.part")
    leftovers = (aside, aside.with_name(f"{aside.name}.wal"), journal_of(aside))
    try:
        copy = Store(aside, store.limits, storage_version=OLDEST_CLIENT)
        copy.prepare()
        with copy.unit_of_work() as database:
            with _attached(database, store.path), database.transaction():
                database.execute("offer/copy_published")
            database.checkpoint()  # the copy is its file alone
        sync(aside)
        aside.replace(target)
    except OSError as error:
        raise PackrankError(f"{target}: cannot be written: {first_line(error)}") from error
    finally:
        for path in leftovers:
            path.unlink(missing_ok=True)
    return f"copy: {target}, {target.stat().st_size / 1e6:,.1f} MB"


@contextmanager
def _attached(database: Database, nights: Path) -> Iterator[None]:
    database.execute("offer/attach_nights", {"path": str(nights)})
    try:
        yield
    finally:
        database.execute("offer/detach_nights")
