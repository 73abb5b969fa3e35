"""The database of runs: its schema, the loader, and what a resumed run reads back.

Every method opens the file for one unit of work and closes it, so that readers get in between. Knows nothing of
engines, prompts or Prefect.
"""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa

from tasks.inputs.query_subsets import IsOwn
from tasks.settings import StoreSettings
from tasks.store.runs import Run, Runs
from tasks.store.schema import create_tables, has_schema
from tasks.store.spool import Spool, SpooledBatch
from tasks.store.tables import BATCH_TABLES
from tasks.system.atomic_files import sync
from tasks.system.checkpoint_journal import RECOVERY, journal_of
from tasks.system.database import STORAGE_VERSION, Database, DatabaseLimits, KeptDatabase, open_database
from tasks.system.disk import warn_of_network_disk
from tasks.system.errors import DatabaseLocked, StoreError, first_line
from tasks.system.workspace import Workspace

LOAD_WAIT_S = 2.0  # what can wait gives up soon: batches stay in the spool, notes in memory
OWN_WAIT_S = 30.0  # a command waits for a lock; a night for [store] lock_wait_s
ROWS_A_LOAD = 250_000  # of all tables, 40 MB: 200 batches of 10^4 scores each took a night to 2.3 GB

logger = logging.getLogger(__name__)

Write = Callable[[KeptDatabase], None]  # in a transaction


@dataclass(frozen=True, slots=True)
class ShardProgress:
    """How far a shard of a run is in the database."""

    last_batch_no: int  # -1: it has no batch
    missing_batches: Sequence[int]  # below it: lost with an older database, such as a restored backup
    num_rankings: int  # queries of the whole run that have their row


class Store:
    """One database file.

    Readers share the file. What a run notes while another process has the file open is kept in memory, and
    written first when the lock is free.
    """

    def __init__(
        self,
        path: Path,
        limits: DatabaseLimits,
        *,
        wait_s: float = OWN_WAIT_S,
        storage_version: str = STORAGE_VERSION,
    ) -> None:
        self.path = path.resolve()  # what belongs to the file lies beside it, not beside a link to it
        self.limits = limits
        self.wait_s = wait_s  # for a lock that somebody else holds
        self._storage_version = storage_version  # of a new file
        self._deferred: list[Write] = []  # in their order; added to by the run, written by whoever has the file open
        self._has_schema = False  # of this packrank, as far as is known

    def prepare(self) -> None:
        """Creates the database if it is not there, and renews its views.

        Views of a database that is there can wait: somebody who reads does not keep a night from starting.

        Raises:
            StoreError: the database was made by another packrank, or by something else, or its end is missing.
        """
        self.path.parent.mkdir(parents=True, exist_ok=True)
        if not self.path.exists():
            self._create()
        elif self._has_schema or self._finds_schema():
            self.write_later(self._complete)
        else:
            with self.unit_of_work() as database, database.transaction():
                self._complete(database)

    def _create(self) -> None:
        """Makes the file aside and renames it: one whose headers are half written could not be opened."""
        if self._log.exists():
            self.set_log_aside(f"{self.path}: found a write-ahead log without its database.")
        aside = Store(self.path.with_name(f".{self.path.name}.new"), self.limits, storage_version=self._storage_version)
        for leftover in (aside.path, aside.path.with_name(f"{aside.path.name}.wal"), journal_of(aside.path)):
            leftover.unlink(missing_ok=True)
        with aside.unit_of_work() as database:
            with database.transaction():
                aside._complete(database)
            database.checkpoint()  # the new database is its file alone
        try:
            sync(aside.path)
            aside.path.rename(self.path)
            sync(self.path.parent)
        except OSError as error:
            raise StoreError(f"{self.path}: cannot make the database: {first_line(error)}") from error
        self._has_schema = True

    def _complete(self, database: Database) -> None:
        if not self._has_schema:
            create_tables(database, self.path)
        database.execute("views")  # in the order of their names: one may read those before it

    def _finds_schema(self) -> bool:
        with self.reader():
            return self._has_schema

    def _require_schema(self, database: Database) -> None:
        """Once for all that is opened; a database without tables, or of somebody else, is let through.

        Raises:
            StoreError: another packrank made it, or its end is missing.
        """
        if not self._has_schema and has_schema(database, self.path):
            self._require_whole(database)
            self._has_schema = True

    @contextmanager
    def runs(self) -> Iterator[Runs | None]:
        """The runs, to be read; None where the database is not there yet, or is not packrank's.

        Raises:
            StoreError: another packrank made it.
        """
        if not self.path.exists():
            yield None
            return
        with self.reader() as database:
            yield Runs(database) if self._has_schema else None

    def find_run(self, run_id: str) -> Run | None:
        """The run of this id."""
        with self.runs() as runs:
            return None if runs is None else runs.find(run_id)

    @property
    def _log(self) -> Path:
        return self.path.with_name(f"{self.path.name}.wal")

    def empty_log(self) -> None:
        """Moves into the file what a killed process left in the log, unless somebody else has the file open."""
        if self._log.exists():
            with suppress(DatabaseLocked), self.unit_of_work(0.0):
                pass

    def set_log_aside(self, reason: str) -> None:
        """Moves a log that DuckDB cannot replay to `{database}.wal.bad-{time}`, for whoever wants to look at it.

        To be called with the run lock held. No score is lost: a batch leaves the spool only when a checkpoint has moved
        it from the log into the file. The log may have held what was committed since the last checkpoint: the end of a
        run, a publication, an evaluation. The same command does those again.
        """
        aside = self._log.with_name(f"{self._log.name}.bad-{datetime.now(UTC):%Y%m%dT%H%M%S}")
        self._log.rename(aside)
        sync(aside.parent)
        logger.warning("%s The log is now %s; the run continues without it.", reason, aside.name)

    def begin_run(self, run: Run) -> None:
        """Adds a run, or takes it up again; while somebody else has the file open, as `write_later`.

        To be called with the run lock held.
        """
        warn_of_network_disk(self.path.parent)
        self.write_later(lambda database: Runs(database).begin(run))
        self.write_deferred()

    def write(self, write: Write, *, wait_s: float | None = None) -> None:
        """Writes now, in one transaction."""
        with self.unit_of_work(wait_s) as database, database.transaction():
            write(database)

    def write_later(self, write: Write) -> None:
        """Writes first of all when the file is next opened for writing: what a run notes before its first load.

        What is kept so is lost with the process; the next start of the run notes it again.
        """
        self._deferred.append(write)

    def write_deferred(self) -> None:
        """Writes what waits, unless somebody else has the file open: then when it is next opened for writing."""
        try:
            with self.unit_of_work(LOAD_WAIT_S):
                pass
        except DatabaseLocked as error:
            logger.warning("%s The run continues, and is written when the lock is free.", error)

    def replace_metrics(self, run_id: str, rows: pa.Table) -> list[dict[str, Any]]:
        """Replaces a run's values of the same measures, and those against other judgments.

        Returns:
            The means that were measured by another rule: against other judgments, or over another number of queries.
        """
        incoming = {"incoming": rows}
        with self.unit_of_work() as database, database.transaction():
            replaced: list[dict[str, Any]] = database.query(
                "evaluation/list_replaced_metrics", {"run_id": run_id}, incoming
            ).to_pylist()
            database.execute("evaluation/delete_metrics", {"run_id": run_id}, incoming)
            database.append("metrics", rows)
        return replaced

    @contextmanager
    def unit_of_work(self, wait_s: float | None = None) -> Iterator[KeptDatabase]:
        """A connection for a few statements that belong together, of which some write.

        Args:
            wait_s: how long a lock held elsewhere is waited for; the store's own time if not given.

        Raises:
            DatabaseLocked: it was not to be had.
        """
        wait_s = self.wait_s if wait_s is None else wait_s
        with open_database(self.path, self.limits, wait_s=wait_s, storage_version=self._storage_version) as database:
            self._require_schema(database)
            self._write_deferred(database)
            yield database

    def _write_deferred(self, database: KeptDatabase) -> None:
        """To be called with the file open for writing, which one thread has at a time."""
        writes = list(self._deferred)
        if writes:
            with database.transaction():
                for write in writes:
                    write(database)
            del self._deferred[: len(writes)]

    @contextmanager
    def reader(self, wait_s: float | None = None) -> Iterator[KeptDatabase]:
        """A connection that only reads, beside other readers; the file must be there.

        Raises:
            DatabaseLocked: somebody writes, for longer than is waited.
        """
        wait_s = self.wait_s if wait_s is None else wait_s
        with open_database(self.path, self.limits, read_only=True, wait_s=wait_s) as database:
            self._require_schema(database)
            yield database

    def query(self, name: str, parameters: Mapping[str, object]) -> pa.Table:
        """Rows of one statement, by its own connection."""
        with self.reader() as database:
            return database.query(name, parameters)

    def load_spool(self, spool: Spool, run_id: str, *, wait_s: float | None = None) -> int:
        """Moves the committed batches into the database; returns how many.

        They leave the spool only when they are in the database's file itself: DuckDB drops the end of a torn
        write-ahead log, or all of a missing one, without a word.

        Args:
            spool: what of it is there is loaded.
            run_id: of the run.
            wait_s: how long a lock held elsewhere is waited for; the store's own time if not given.

        Raises:
            StoreError: the lock was not to be had, the disk is full, ...: the batches stay in the spool.
        """
        batches = spool.batches()
        if not batches:
            return 0
        for rows in _in_parts(batches):  # read before the lock, for which readers wait
            with self.unit_of_work(wait_s) as database:
                with database.transaction():
                    _load(database, run_id, rows)
                database.checkpoint()
            for batch in rows:
                spool.drop(batch)
        return len(batches)

    def loaded_batches(self, run_id: str, shard: int) -> set[int]:
        """The numbers of a shard's batches that are in the database."""
        with self.reader() as database:
            return _loaded(database, run_id, shard)

    def drop_shard(self, run_id: str, shard: int, is_own: IsOwn) -> None:
        """Deletes every row of a shard that is there in part, without the spool that has the rest.

        Args:
            run_id: of the run.
            shard: of the run.
            is_own: tells which query ids are the shard's.
        """
        gone = pa.table({"run_id": [run_id], "shard": [shard]})
        with self.unit_of_work() as database, database.transaction():
            queries = database.query("resume/list_queries", {"run_id": run_id})
            own = queries.filter(is_own(queries.column("query_id").combine_chunks()))
            database.execute("resume/delete_torn_queries", tables={"torn": own})
            database.execute("resume/delete_shard", tables={"torn": own, "gone": gone})

    def resume_shard(self, spool: Spool, run_id: str, shard: int) -> ShardProgress:
        """Loads what a killed process left of a shard, and tells how far it is.

        Where batches are missing, the rows of queries that lost some of theirs are deleted: they are computed again.
        Such a gap is noted as a batch of driver 'lost', but for batch 0, whose rows are committed again.
        """
        self.load_spool(spool, run_id)
        shard_of_run = {"run_id": run_id, "shard": shard}
        with self.reader() as database:
            progress = _progress(database, shard_of_run)
        if not progress.missing_batches:
            return progress
        with self.unit_of_work() as database, database.transaction():
            torn = {"torn": database.query("resume/find_torn_queries", {"run_id": run_id})}
            database.execute("resume/delete_torn_queries", tables=torn)
            database.execute("resume/note_lost_batches", shard_of_run)
            return replace(_progress(database, shard_of_run), missing_batches=progress.missing_batches)

    def _require_whole(self, database: Database) -> None:
        """DuckDB reads pages when it needs them: it would write into a file that was cut off, and lose more of it.

        A cut within as many blocks as are free is not seen here: DuckDB itself leaves free blocks off the end.
        """
        wanted, found = database.query("database/measure_file").column("num_bytes")[0].as_py(), self.path.stat().st_size
        if found < wanted:
            raise StoreError(
                f"{self.path}: has {found} bytes, but {wanted} in use: the file is truncated. See {RECOVERY}."
            )


def _progress(database: Database, shard_of_run: Mapping[str, object]) -> ShardProgress:
    (found,) = database.query("resume/find_progress", shard_of_run).to_pylist()
    return ShardProgress(**found)


def _in_parts(batches: Sequence[SpooledBatch]) -> Iterator[dict[SpooledBatch, dict[str, pa.Table]]]:
    """The batches with their rows, no more at a time than memory is meant for, nor than a reader should wait for."""
    part: dict[SpooledBatch, dict[str, pa.Table]] = {}
    num_rows = 0
    for batch in batches:
        part[batch] = _rows_of(batch)
        num_rows += sum(table.num_rows for table in part[batch].values())
        if num_rows >= ROWS_A_LOAD:
            yield part
            part, num_rows = {}, 0
    if part:
        yield part


def _rows_of(batch: SpooledBatch) -> dict[str, pa.Table]:
    return {table: rows for table in BATCH_TABLES if (rows := batch.read(table)) is not None}


def _load(database: Database, run_id: str, batches: Mapping[SpooledBatch, Mapping[str, pa.Table]]) -> None:
    """Inserts batches that are not there yet; a batch loaded before a crash is only left to be removed."""
    loaded = {shard: _loaded(database, run_id, shard) for shard in {batch.shard for batch in batches}}
    fresh = [tables for batch, tables in batches.items() if batch.batch_no not in loaded[batch.shard]]
    for table in BATCH_TABLES:  # batches first: a conflict rolls everything back
        parts = [tables[table] for tables in fresh if table in tables]
        if parts:
            rows = pa.concat_tables(parts).combine_chunks()  # of a chunk a batch, each would cost DuckDB 0.3 ms
            database.append(table, rows)


def _loaded(database: Database, run_id: str, shard: int) -> set[int]:
    rows = database.query("resume/list_loaded_batches", {"run_id": run_id, "shard": shard})
    return set(rows.column("batch_no").to_pylist())


def database_limits(settings: StoreSettings, spill: Path) -> DatabaseLimits:
    """DuckDB's share of the host, by `[store]`; it spills into `spill`."""
    return DatabaseLimits(settings.memory_limit, settings.threads, spill)


def store_at(database: Path, settings: StoreSettings, wait_s: float = OWN_WAIT_S) -> Store:
    """The store of a database, by `[store]`; nothing is opened yet."""
    return Store(database, database_limits(settings, Workspace(database).spill), wait_s=wait_s)
