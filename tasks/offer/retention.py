"""The end of old nights, where `[store]` sets one: whole runs, or only what their windows took.

Knows nothing of how a run was published.
"""

from dataclasses import dataclass
from pathlib import Path

from tasks.keep.spool import Spool
from tasks.keep.store import Store


@dataclass(frozen=True, slots=True)
class Horizon:
    """Which runs of a series are old."""

    name: str  # of the series
    run_id: str  # just published: never old, also where its night is
    nights: int  # published nights that are kept, the newest ones

    def parameters(self) -> dict[str, object]:
        """As the SQL files take them."""
        return {"name": self.name, "run_id": self.run_id, "keep_nights": self.nights}


def delete_old_runs(store: Store, horizon: Horizon, spool_folder: Path) -> str:
    """Deletes every row of the runs older than the horizon, unfinished ones included.

    A run whose score rows a younger run points to stays whole. What an unfinished one left in `spool_folder` goes too.

    Returns:
        What to tell, one line.

    Raises:
        StoreError: the database is locked, or the disk is full: nothing was deleted.
    """
    old = _delete(store, horizon, "offer/find_old_runs", "offer/delete_old_runs")
    for run_id in old:
        Spool(spool_folder, run_id).remove()
    return f"retention: {len(old)} old runs deleted"


def delete_old_windows(store: Store, horizon: Horizon) -> str:
    """Deletes windows, batches, engine steps and outcomes of finished runs older than the horizon.

    Returns:
        What to tell, one line.

    Raises:
        StoreError: as above.
    """
    old = _delete(store, horizon, "offer/find_old_windows", "offer/delete_old_windows")
    return f"retention: windows and batches of {len(old)} old runs deleted"


def _delete(store: Store, horizon: Horizon, find: str, delete: str) -> list[str]:
    """Runs two SQL files in one transaction: which runs are old, and what of them goes; returns them."""
    with store.unit_of_work() as database, database.transaction():
        old = database.query(find, horizon.parameters())
        if old.num_rows:
            database.execute(delete, tables={"old_runs": old})
    return [str(run_id) for run_id in old.column("run_id").to_pylist()]
