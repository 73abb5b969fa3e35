"""One shard of a run: an ordinary ranking stage over the queries that are its own, whose batches stay in the spool.

    order -> lock -> stage own queries -> load own spool into a scratch database -> rank -> shard.json

The night's database is never opened here: what is known of the run and of the earlier one comes from the spool, so a
shard may run on any machine that sees that folder. Killed at any moment it goes on from its own batches. Knows nothing
of Prefect, nor of other shards.
"""

import logging
import shutil
import socket
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from tasks.inputs.staging import StagedInput
from tasks.nightly.night_progress import OnProgress, begin_phase
from tasks.nightly.prepare import PreparedNight
from tasks.nightly.ranking_stage import Part, RankStage
from tasks.nightly.run_choice import new_run
from tasks.ranking.reuse import ReuseSource
from tasks.store.identity import git_commit, library_versions
from tasks.store.night_store import Store, database_limits
from tasks.store.runs import Runs
from tasks.store.shard_folder import KeptSpool, ShardFolder, ShardOrder, ShardRecord, queries_of, read_order
from tasks.store.tables import SCHEMAS
from tasks.system.disk import told_when_full
from tasks.system.environment import FILES
from tasks.system.errors import ConfigError

logger = logging.getLogger(__name__)

EARLIER = "earlier.parquet"  # beside the order


def rank_shard(prepared: PreparedNight, run_id: str, shard: int, *listeners: OnProgress) -> None:
    """Ranks every query of a shard that its spool has no row of, and tells in shard.json what was done.

    Args:
        prepared: the run's night.
        run_id: of the run.
        shard: which one.
        listeners: each is told (windows done, windows in all) after every batch.

    Raises:
        AlreadyRunning: another process ranks this shard.
        ConfigError: this machine's settings, model or input are not those of the run.
        StoreError: nobody asks for the shard; or the spool cannot be written.
        InputError, EngineError, CanaryFailed: as a night's.
    """
    folder = ShardFolder(prepared.settings.spool_folder, run_id, shard)
    order = read_order(folder.path.parent)
    _require_same_night(prepared, order, folder)
    with folder.lock():
        if folder.is_done:
            logger.info("run_id=%s shard=%d already done", run_id, shard)
            return
        if folder.has_gaps:
            logger.warning("run_id=%s shard=%d lost some of its batches: all are computed again", run_id, shard)
            folder.clear()
        scratch = prepared.workspace.shard_scratch(run_id, shard)
        shutil.rmtree(scratch, ignore_errors=True)
        try:
            with told_when_full(scratch):
                _Shard(prepared, folder, order, scratch).rank(listeners)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)


def _require_same_night(prepared: PreparedNight, order: ShardOrder, folder: ShardFolder) -> None:
    where = f"run {folder.run_id}, shard {folder.shard} on {socket.gethostname()}"
    if folder.shard >= order.num_shards:
        raise ConfigError(f"{where}: the run has {order.num_shards} shards, expected 0 to {order.num_shards - 1}.")
    if prepared.base_run_id != order.base_run_id:
        raise ConfigError(
            f"{where}: settings, model and input are those of {prepared.base_run_id} here, not of {order.base_run_id}. "
            "All must be the same everywhere, times of the model's files included (rsync -a), and the input must "
            "not have changed since the run began."
        )
    require_same_code(where, git_commit(FILES), order.git_commit)


def require_same_code(where: str, here: str | None, wanted: str | None) -> None:
    """Refuses another commit: its prompts or windows may differ. Changes without a commit cannot be told apart.

    Raises:
        ConfigError: the two are of different commits.
    """
    if here is not None and wanted is not None and here.rstrip("+") != wanted.rstrip("+"):
        raise ConfigError(f"{where}: the checkout is at commit {here}, expected {wanted}, as on the night's host.")
    if here != wanted or (here or "").endswith("+"):
        logger.warning(
            "%s: the checkout is at %s, the night's at %s (+: changed, None: no git): whether their code is the same "
            "is unknown",
            where,
            here,
            wanted,
        )


class _Shard:
    """A shard whose lock is held."""

    def __init__(self, prepared: PreparedNight, folder: ShardFolder, order: ShardOrder, scratch: Path) -> None:
        self._prepared = prepared
        self._folder = folder
        self._order = order
        self._scratch = scratch
        self._store = Store(scratch / "shard.duckdb", database_limits(prepared.settings.store, scratch / "spill"))
        self._before = folder.record()  # of a start that was killed

    def rank(self, listeners: Sequence[OnProgress]) -> None:
        run_id = self._folder.run_id
        self._prepared.require_space_to_stage(self._order.num_shards)
        self._store.prepare()
        run = new_run(self._prepared, run_id, flow_run_id=None, reuse_run_id=None)
        self._store.begin_run(run)
        is_own = queries_of(self._folder.shard, self._order.num_shards)
        ranking = RankStage(self._prepared, run, self._store, self._part(), listeners)
        begin_phase("reading the input", run_id, listeners)
        try:
            staged = self._prepared.stage(self._scratch / "staging", is_own, on_matched=ranking.start_engine)
            self._log(staged)
            ranking.rank(staged)
        finally:
            ranking.end_engine()
        self._tell(staged)

    def _log(self, staged: StagedInput) -> None:
        logger.info(
            "run_id=%s shard=%d/%d queries=%d candidates=%d quarantined=%d",
            self._folder.run_id,
            self._folder.shard,
            self._order.num_shards,
            staged.num_queries,
            staged.num_candidates,
            staged.quarantine.num_rows,
        )

    def _part(self) -> Part:
        return Part(
            shard=self._folder.shard,
            spool=KeptSpool(self._folder),
            earlier=self._load_earlier(),
            scratch=self._scratch / "tmp",
            log_path=self._prepared.workspace.engine_log(f"{self._folder.run_id}.shard{self._folder.shard}"),
            on_begun=self._tell,
        )

    def _load_earlier(self) -> ReuseSource | None:
        """The run whose rows may be reused; its rankings go into the scratch database."""
        order = self._order
        if order.earlier_run_id is None or order.recipe_change is None:
            return None
        path = self._folder.path.parent / EARLIER
        is_own = queries_of(self._folder.shard, order.num_shards)
        with self._store.unit_of_work() as database, database.transaction():
            for batch in pq.ParquetFile(path).iter_batches():
                own = batch.filter(is_own(batch.column("query_id")))
                table = pa.Table.from_batches([own]).cast(SCHEMAS["rankings"])
                database.append("rankings", table)
        return ReuseSource(order.earlier_run_id, order.recipe_change)

    def _tell(self, staged: StagedInput | None = None) -> None:
        """Writes the record: of the engine as soon as it has begun, of everything once all is ranked."""
        told = ShardRecord(
            is_done=staged is not None,
            host=socket.gethostname(),
            versions=library_versions(),
            num_batches=len(self._folder.batch_nos()),
            num_queries=0 if staged is None else staged.num_queries,
            num_candidates=0 if staged is None else staged.num_candidates,
            notes={} if staged is None else staged.notes,
        )
        self._folder.write(self._with_engine(told))

    def _with_engine(self, told: ShardRecord) -> ShardRecord:
        """With engine, canaries and forecast: of this start, or of the one before if this one has asked nothing."""
        named = {"run_id": self._folder.run_id}
        with self._store.unit_of_work() as database:  # writes what they were noted for
            run = Runs(database).get(self._folder.run_id)
            canaries = tuple(database.query("canaries/list_canaries", named).to_pylist())
            forecast = next(iter(database.query("forecast/find", named).to_pylist()), None)
        if run.device is not None:
            return replace(told, engine=run.engine, canaries=canaries, forecast=forecast)
        before = self._before
        if before is None:
            return told
        return replace(told, engine=before.engine, canaries=before.canaries, forecast=before.forecast)
