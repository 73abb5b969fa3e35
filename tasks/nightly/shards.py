"""The ranking stage of a run with shards, as the night sees it: asks for what is missing, and loads what is done.

    lay out (what shards need, in the spool) -> shards run, wherever -> each one that is done is loaded, whole

Reads no input and starts no engine. A shard is whole where shard.json says that it is done and all its batches are in
the database or in the spool; any other is ranked again, which asks nothing that its spool has. Knows nothing of who
runs the shards.
"""

import logging
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import closing

import pyarrow as pa
import pyarrow.parquet as pq

from tasks.nightly.night_progress import OnProgress, Progress, begin_phase
from tasks.nightly.outlook import store_forecast
from tasks.nightly.prepare import PreparedNight
from tasks.nightly.ranking_stage import note_canaries, note_engine
from tasks.nightly.shard_worker import EARLIER, rank_shard
from tasks.ranking.reuse import ReuseSource
from tasks.store.identity import git_commit, library_versions
from tasks.store.night_store import OWN_WAIT_S, Store
from tasks.store.runs import Run, Runs
from tasks.store.shard_folder import (
    ShardFolder,
    ShardOrder,
    ShardRecord,
    queries_of,
    slowest_forecast,
    sum_notes,
    worst_canaries,
)
from tasks.store.spool import Spool
from tasks.store.tables import SCHEMAS
from tasks.system.atomic_files import write_whole
from tasks.system.environment import FILES
from tasks.system.errors import DatabaseLocked, StoreError

logger = logging.getLogger(__name__)

LATE_S = 90.0  # a network's folder shows what another machine wrote after a minute at the latest (NFS: acdirmax)

RunShards = Callable[[Sequence[ShardFolder]], Generator[ShardFolder, None, None]]  # gives each as it is done


def ranks_in_turn(prepared: PreparedNight) -> RunShards:
    """Runs shards one after another in this process: the same rows, without the speed."""

    def run(folders: Sequence[ShardFolder]) -> Generator[ShardFolder, None, None]:
        logger.warning("%d shards, one after another in this process: Prefect runs them side by side", len(folders))
        for folder in folders:
            rank_shard(prepared, folder.run_id, folder.shard)
            yield folder

    return run


class ShardStage:
    """The ranking of a run by its shards."""

    def __init__(self, prepared: PreparedNight, run: Run, store: Store) -> None:
        self._prepared = prepared
        self._run = run
        self._run_id = run.run_id
        self._store = store
        self._spool_folder = prepared.settings.spool_folder
        self._folders = [ShardFolder(self._spool_folder, run.run_id, shard) for shard in range(run.num_shards)]

    def lay_out(self, earlier: ReuseSource | None) -> None:
        """Writes what the shards need into the spool, the order last.

        Args:
            earlier: the run whose rows may be reused.

        Raises:
            StoreError: it cannot be written.
        """
        run_folder = self._spool_folder / self._run_id
        if earlier is not None:
            rankings = self._store.query("reuse/list_rankings", {"earlier_run_id": earlier.run_id})
            content = pa.BufferOutputStream()
            pq.write_table(rankings.cast(SCHEMAS["rankings"]), content, compression="zstd")
            write_whole(run_folder / EARLIER, content.getvalue().to_pybytes())
        ShardOrder(
            base_run_id=self._prepared.base_run_id,
            num_shards=len(self._folders),
            earlier_run_id=None if earlier is None else earlier.run_id,
            recipe_change=None if earlier is None else earlier.recipe_change,
            git_commit=git_commit(FILES),
        ).write(run_folder)

    def rank(self, run_shards: RunShards, listeners: Sequence[OnProgress]) -> int:
        """Has every shard ranked that is not whole, loads all, and returns the number of queries.

        Args:
            run_shards: how shards are run.
            listeners: told after every shard.

        Raises:
            PackrankError: of a shard that could not be ranked; all others are loaded.
        """
        missing = [folder for folder in self._folders if not self._is_whole(folder)]
        for folder in missing:
            self._begin_anew(folder)
        num_ended, num_shards = 0, len(self._folders)
        whole = [folder for folder in self._folders if folder not in missing]
        begin_phase("ranking", self._run_id, listeners)
        try:
            with closing(self._all_whole(whole, missing, run_shards)) as ended:
                for folder in ended:
                    self._load_soon(folder)
                    num_ended += 1
                    logger.info("run_id=%s shard=%d ended=%d/%d", self._run_id, folder.shard, num_ended, num_shards)
                    asked = max(0, num_ended - len(whole))
                    for listener in listeners:
                        listener(Progress("ranking", num_ended, num_shards, asked, unit="shards"))
            self._store.load_spool(Spool(self._spool_folder, self._run_id), self._run_id)
        finally:
            self._note_engines()
        self._note_forecast()
        return self._note_input()

    def remove_spool(self) -> None:
        """Takes the order back; only when the run is complete, since what is there tells that a shard is."""
        Spool(self._spool_folder, self._run_id).remove()

    def _all_whole(
        self, whole: Sequence[ShardFolder], missing: Sequence[ShardFolder], run_shards: RunShards
    ) -> Generator[ShardFolder, None, None]:
        yield from whole
        if not missing:
            return
        with closing(run_shards(missing)) as ended:
            for folder in ended:
                if not self._is_whole(folder):
                    raise StoreError(
                        f"{folder.path}: shard {folder.shard} ended, but not all of its batches are here. Does every "
                        "machine see the same [store] spool? Run the same command again."
                    )
                yield folder

    def _is_whole(self, folder: ShardFolder) -> bool:
        """Waits a little where the record is there and batches are not: a network's folder shows them late."""
        record = folder.record()
        if record is None or not record.is_done:
            return False
        loaded = self._store.loaded_batches(self._run_id, folder.shard)
        deadline = time.monotonic() + LATE_S
        while len(loaded | folder.batch_nos()) < record.num_batches:
            if time.monotonic() > deadline:
                return False
            time.sleep(1.0)
        return True

    def _begin_anew(self, folder: ShardFolder) -> None:
        """What the database has of a shard that is not whole came with a backup: its rest was loaded into the other."""
        if self._store.loaded_batches(self._run_id, folder.shard):
            logger.warning(
                "run_id=%s shard=%d is in the database in part, and ranked again", self._run_id, folder.shard
            )
            self._store.drop_shard(self._run_id, folder.shard, queries_of(folder.shard, len(self._folders)))
        record = folder.record()
        if record is not None and record.is_done:
            folder.forget()

    def _load_soon(self, folder: ShardFolder) -> None:
        """Loads a shard that is done; one that cannot be loaded now waits in the spool for the last one."""
        try:
            self._store.load_spool(
                Spool(self._spool_folder, self._run_id, folder.shard), self._run_id, wait_s=OWN_WAIT_S
            )
        except DatabaseLocked as error:
            logger.warning("run_id=%s shard=%d stays in the spool for now: %s", self._run_id, folder.shard, error)

    def _records(self) -> list[ShardRecord]:
        return [record for folder in self._folders if (record := folder.record()) is not None]

    def _note_engines(self) -> None:
        """The run's engine is the first shard's, its canaries the worst; what differs elsewhere is told."""
        here = library_versions()
        records = self._records()
        for record in reversed(records):
            if record.versions != here:
                others = sorted(name for name in here if record.versions.get(name) != here[name])
                logger.warning("run_id=%s other versions on %s: %s", self._run_id, record.host, ", ".join(others))
            if record.engine is not None:
                self._run = note_engine(self._store, self._run, record.engine)
        canaries = worst_canaries(records)
        if canaries:
            note_canaries(self._store, self._run_id, canaries, self._prepared.recipe)

    def _note_forecast(self) -> None:
        """That of the slowest shard, beside what all took side by side."""
        forecast = slowest_forecast(self._records())
        if forecast is not None:
            store_forecast(self._store, self._run_id, forecast)

    def _note_input(self) -> int:
        records = self._records()
        num_queries = sum(record.num_queries for record in records)
        num_candidates = sum(record.num_candidates for record in records)
        notes = sum_notes(records)
        self._store.write_later(
            lambda database: Runs(database).note_input(self._run_id, num_queries, num_candidates, notes)
        )
        return num_queries
