"""Where a running night commits: numbers its batches, makes each durable, and loads them now and then.

A thread of its own does so, in order, while the night goes on with the next batch. Knows nothing of what is in a batch.
"""

import logging
import time
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain, count

import pyarrow as pa

from tasks.store.night_store import LOAD_WAIT_S, Store
from tasks.store.spool import Spool
from tasks.store.tables import BatchId
from tasks.system.errors import StoreError

FAILED_PAUSE_S = 60.0  # before a load that failed is tried again: each try may take LOAD_WAIT_S, and warns

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LoadPace:
    """When a running night loads: not too often, and for a small part of its time, however long loads become."""

    every_s: float
    max_share: float

    def pause_s(self, took_s: float) -> float:
        """How long to wait after a load."""
        return max(self.every_s, took_s / self.max_share)


class Ledger:
    """One shard of one run, from the first free batch number on."""

    def __init__(self, store: Store, spool: Spool, run_id: str, shard: int, pace: LoadPace) -> None:
        self._store = store
        self._spool = spool
        self._run_id = run_id
        self._shard = shard
        self._pace = pace
        progress = store.resume_shard(spool, run_id, shard)
        missing = progress.missing_batches
        if missing:
            logger.warning("run_id=%s lost_batches=%d: what the database lacks is computed again", run_id, len(missing))
        following = progress.last_batch_no + 1
        self._numbers = chain([0] if 0 in missing else [], count(following))
        self.progress = progress  # before this start
        self.is_new = following == 0 or 0 in missing  # whether the first batch is still to be committed
        self._load_at = time.monotonic() + pace.every_s
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="commit")
        self._pending: Future[None] | None = None  # one at a time: a kill costs what is not durable yet

    def next_id(self) -> BatchId:
        """Names the next batch."""
        self.is_new = False
        return BatchId(self._run_id, self._shard, next(self._numbers))

    def commit(self, batch_id: BatchId, tables: Mapping[str, pa.Table]) -> None:
        """Begins to make the batch durable, and to load what waits if it is time.

        A database that cannot be written now is no loss: the batches wait in the spool.

        Raises:
            StoreError: a batch before this one could not be made durable.
        """
        self.flush()
        self._pending = self._thread.submit(self._commit, batch_id, tables)

    def flush(self) -> None:
        """Waits until every batch is durable.

        Raises:
            StoreError: the last one could not be made so.
        """
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.result()

    def close(self, wait_s: float | None = None) -> None:
        """Loads everything that waits.

        Args:
            wait_s: how long a lock held elsewhere is waited for; the store's own time if not given.

        Raises:
            StoreError: it cannot be loaded now; the same command run again will.
        """
        self.flush()
        self._thread.shutdown()
        try:
            self._store.load_spool(self._spool, self._run_id, wait_s=wait_s)
        except StoreError as error:
            told = str(error).rstrip(".")
            raise StoreError(
                f"{told}. All scores are safe in the spool; run the same command again to load them."
            ) from error
        self._spool.remove()

    def _commit(self, batch_id: BatchId, tables: Mapping[str, pa.Table]) -> None:
        self._spool.commit(batch_id.shard, batch_id.batch_no, tables)
        began = time.monotonic()
        if began < self._load_at:
            return
        try:
            self._store.load_spool(self._spool, self._run_id, wait_s=LOAD_WAIT_S)
            pause_s = self._pace.pause_s(time.monotonic() - began)
        except StoreError as error:
            logger.warning("run_id=%s batches stay in the spool for now: %s", self._run_id, error)
            pause_s = max(self._pace.every_s, FAILED_PAUSE_S)
        self._load_at = time.monotonic() + pause_s
