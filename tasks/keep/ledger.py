"""Where a running night commits: numbers its batches, makes each durable, and loads them every few seconds.

A thread of its own does so, in order, while the night goes on with the next batch. Knows nothing of what is in a batch.
"""

import logging
import time
from collections import deque
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import chain, count

import pyarrow as pa

from tasks.errors import StoreError
from tasks.keep.spool import Spool
from tasks.keep.store import OWN_WAIT_S, Store
from tasks.keep.tables import BatchId

logger = logging.getLogger(__name__)

MAX_WAITING = 1  # batches that are not durable yet; then the night waits: a kill would cost all of them


class Ledger:
    """One shard of one run, from the first free batch number on."""

    def __init__(self, store: Store, spool: Spool, run_id: str, shard: int, load_every_s: float) -> None:
        self._store = store
        self._spool = spool
        self._run_id = run_id
        self._shard = shard
        self._load_every_s = load_every_s
        store.load_spool(spool, run_id, wait_s=OWN_WAIT_S)  # what a killed process left; resume reads the database
        missing = store.drop_torn_queries(run_id, shard)
        if missing:
            logger.warning("run_id=%s lost_batches=%d: what the database lacks is computed again", run_id, len(missing))
        following = store.next_batch_no(run_id, shard)
        self._numbers = chain([0] if 0 in missing else [], count(following))
        self.is_new = following == 0 or 0 in missing  # whether the first batch is still to be committed
        self._loaded_at = time.monotonic()
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="commit")
        self._waiting: deque[Future[None]] = deque()
        self._has_failed = False  # a later batch without this one would leave a gap in the numbers

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
        self._wait(MAX_WAITING - 1)
        self._waiting.append(self._thread.submit(self._commit, batch_id, tables))

    def flush(self) -> None:
        """Waits until every batch is durable.

        Raises:
            StoreError: one could not be made so, and those after it were left.
        """
        self._wait(0)

    def close(self) -> None:
        """Loads everything that waits.

        Raises:
            StoreError: it cannot be loaded now; the same command run again will.
        """
        self.flush()
        self._thread.shutdown()
        try:
            self._store.load_spool(self._spool, self._run_id, wait_s=OWN_WAIT_S)
        except StoreError as error:
            raise StoreError(
                f"{error}. All scores are safe in the spool; run the same command again to load them."
            ) from error
        self._spool.remove()

    def _wait(self, most: int) -> None:
        while len(self._waiting) > most:
            self._waiting.popleft().result()

    def _commit(self, batch_id: BatchId, tables: Mapping[str, pa.Table]) -> None:
        if self._has_failed:
            return
        try:
            self._spool.commit(batch_id.shard, batch_id.batch_no, tables)
        except BaseException:
            self._has_failed = True
            raise
        if time.monotonic() - self._loaded_at >= self._load_every_s:
            try:
                self._store.load_spool(self._spool, self._run_id)
            except StoreError as error:
                logger.warning("run_id=%s batches stay in the spool for now: %s", self._run_id, error)
            self._loaded_at = time.monotonic()
