"""The end of old nights, where `[store]` sets one: whole runs, or only what their windows took.

Knows nothing of how a run was published.
"""

import logging
from dataclasses import dataclass
from pathlib import Path

from tasks.store.night_store import Store
from tasks.store.spool import Spool
from tasks.system.errors import first_line
from tasks.system.workspace import Workspace

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Horizon:
    """Which runs of a series are old."""

    name: str  # of the series
    run_id: str  # just published: never old, also where its night is
    nights: int  # published nights that are kept, the newest ones

    def parameters(self) -> dict[str, object]:
        """As the statements take them."""
        return {"name": self.name, "run_id": self.run_id, "keep_nights": self.nights}


def delete_old_runs(store: Store, horizon: Horizon, spool_folder: Path) -> str:
    """Deletes every row of the runs older than the horizon, unfinished ones included.

    A run whose score rows a younger run points to stays whole. What an unfinished one left in `spool_folder` goes too,
    and each one's engine logs and report page, as far as they lie on this machine.

    Returns:
        What to tell, one line.

    Raises:
        StoreError: the database is locked, or the disk is full: nothing was deleted.
    """
    old = _delete(store, horizon, "retention/find_old_runs", "retention/delete_old_runs")
    for run_id in old:
        Spool(spool_folder, run_id).remove()
        _remove_files(store.path, run_id)
    return f"retention: {len(old)} old runs deleted"


def delete_old_windows(store: Store, horizon: Horizon) -> str:
    """Deletes windows, batches, engine steps and outcomes of finished runs older than the horizon.

    Returns:
        What to tell, one line.

    Raises:
        StoreError: as above.
    """
    old = _delete(store, horizon, "retention/find_old_windows", "retention/delete_old_windows")
    return f"retention: windows and batches of {len(old)} old runs deleted"


def _remove_files(database: Path, run_id: str) -> None:
    """What is there to be looked at; a file that cannot be deleted is told and stays."""
    workspace = Workspace(database)
    for path in (*workspace.engine_logs(run_id), workspace.report(run_id)):
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            logger.warning("%s: cannot delete this file of a deleted run: %s", path, first_line(error))


def _delete(store: Store, horizon: Horizon, find: str, delete: str) -> list[str]:
    """Runs two statements in one transaction: which runs are old, and what of them goes; returns them."""
    with store.unit_of_work() as database, database.transaction():
        old = database.query(find, horizon.parameters())
        if old.num_rows:
            database.execute(delete, tables={"old_runs": old})
    return [str(run_id) for run_id in old.column("run_id").to_pylist()]
