"""The database of runs: its lock, schema and run rows, the loader, and what a resumed run reads back.

Every method opens the file for one unit of work and closes it, so that readers get in between. Knows nothing of
engines, prompts or Prefect.
"""

import fcntl
import json
import os
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa

from tasks.database import RECOVERY, SQL_FOLDER, STORAGE_VERSION, Database, DatabaseLimits, KeptDatabase, open_database
from tasks.errors import AlreadyInProgress, AlreadyRunning, StoreError, first_line
from tasks.keep.disk import warn_of_network_disk
from tasks.keep.spool import Spool, SpooledBatch
from tasks.keep.tables import SCHEMAS
from tasks.read.queries import IsOwn

LOAD_WAIT_S = 2.0  # a loader in mid-run gives up soon: the batches wait in the spool
OWN_WAIT_S = 30.0  # the start and the end of a run must get through
ROWS_A_LOAD = 250_000  # of all tables, 40 MB: 200 batches of 10^4 scores each took a night to 2.3 GB


@dataclass(frozen=True, slots=True)
class RunState:
    """How far a run is."""

    status: str  # see runs.status
    is_degraded: bool  # a check failed
    is_checked: bool  # a killed one may be complete without
    is_offered: bool  # all that follows its publication is done

    @property
    def is_ranked(self) -> bool:
        """Whether every query has its row."""
        return self.status in ("complete", "published")


@dataclass(frozen=True, slots=True)
class NewRun:
    """What is known of a run before it begins; JSON texts where the columns are JSON."""

    run_id: str
    name: str
    night: date
    started_at: datetime
    settings: str
    resolved: str
    recipe: str  # digest by part
    input_digest: str
    input_partition: str | None
    model: str
    model_identity: str
    strategy: str
    decode_mode: str
    versions: str
    git_commit: str | None
    host: str
    flow_run_id: str | None
    is_limited: bool  # only the first queries, for a trial
    reuse_run_id: str | None  # looked at for reuse


class Store:
    """One database file."""

    def __init__(self, path: Path, limits: DatabaseLimits, *, storage_version: str = STORAGE_VERSION) -> None:
        self.path = path
        self.limits = limits
        self._storage_version = storage_version  # of a new file

    def prepare(self) -> None:
        """Creates or completes the schema, and renews the views.

        Raises:
            StoreError: the database was made by a newer packrank, or by something else, or its end is missing.
        """
        self.path.parent.mkdir(parents=True, exist_ok=True)
        wanted = sorted(path.stem for path in (SQL_FOLDER / "schema").glob("*.sql"))
        with self.unit_of_work() as database, database.transaction():
            self._require_whole(database)
            if not self._is_ours(database) and database.query("run/list_tables").num_rows:
                raise StoreError(
                    f"{self.path}: has tables, but none of packrank's. It was left as it is; name another database."
                )
            database.execute("run/create_schema_files")
            applied = database.query("run/list_schema_files").column("file_name").to_pylist()
            unknown = sorted(set(applied) - set(wanted))
            if unknown:
                raise StoreError(
                    f"{self.path}: has the schema file {unknown[-1]}, this packrank knows up to {wanted[-1]}. "
                    "Use the newer checkout, or another [store] database."
                )
            for name in wanted:
                if name not in applied:
                    database.execute(f"schema/{name}")
                    database.execute("run/add_schema_file", {"file_name": name})
            for path in sorted((SQL_FOLDER / "views").glob("*.sql")):
                database.execute(f"views/{path.stem}")

    def has_runs(self) -> bool:
        """Whether the database is there and is packrank's."""
        if not self.path.exists():
            return False
        with self.unit_of_work() as database:
            return self._is_ours(database)

    def find_repeats(self, base_run_id: str) -> dict[str, RunState]:
        """A run and its -rN repetitions by run_id; none where there is no database yet."""
        if not self.has_runs():
            return {}
        rows = self.query("run/find_repeats", {"base_run_id": base_run_id}).to_pylist()
        return {row["run_id"]: _state(row) for row in rows}

    def find_run(self, run_id: str) -> dict[str, Any] | None:
        """The run's row of `runs`; None if there is none."""
        (row,) = self.query("run/find_run", {"run_id": run_id}).to_pylist() or [None]
        found: dict[str, Any] | None = row
        return found

    def begin_run(self, run: NewRun, *, reuses: bool = True) -> None:
        """Inserts the run or takes it up again; runs that were killed or gave way are marked so.

        To be called with the run lock held. A run that is taken up again keeps its reuse_run_id, unless it no longer
        `reuses`.
        """
        warn_of_network_disk(self.path.parent)
        start = {name: getattr(run, name) for name in NewRun.__dataclass_fields__}
        anew = ("run_id", "versions", "git_commit", "host", "flow_run_id", "is_limited")
        resume = {name: start[name] for name in anew} | {"reuses": reuses}
        with self.unit_of_work() as database, database.transaction():
            database.execute("run/fail_abandoned_runs", {"run_id": run.run_id})
            database.execute(
                "run/supersede_runs", {"run_id": run.run_id, "name": run.name, "night": run.night.isoformat()}
            )
            if database.query("run/find_run", {"run_id": run.run_id}).num_rows:
                database.execute("run/resume_run", resume)
            else:
                database.execute("run/insert_run", start | {"night": run.night.isoformat()})

    def update(self, statement: str, parameters: Mapping[str, object]) -> None:
        """Runs one file of sql/run on the run's row."""
        with self.unit_of_work() as database, database.transaction():
            database.execute(f"run/{statement}", parameters)

    def replace_metrics(self, run_id: str, rows: pa.Table) -> None:
        """Replaces a run's values of the same measures, and those against other judgments."""
        incoming = {"incoming": rows}
        with self.unit_of_work() as database, database.transaction():
            database.execute("run/delete_metrics", {"run_id": run_id}, incoming)
            database.execute("run/insert_metrics", tables=incoming)

    def replace_canaries(self, run_id: str, rows: pa.Table) -> None:
        """Replaces what a run's canaries answered."""
        with self.unit_of_work() as database, database.transaction():
            database.execute("run/delete_canaries", {"run_id": run_id})
            database.execute("run/insert_canaries", tables={"incoming": rows})

    @contextmanager
    def unit_of_work(self) -> Iterator[KeptDatabase]:
        """A connection for a few statements that belong together."""
        with open_database(
            self.path, self.limits, wait_s=OWN_WAIT_S, storage_version=self._storage_version
        ) as database:
            yield database

    def query(self, name: str, parameters: Mapping[str, object]) -> pa.Table:
        """Rows of one SQL file, by its own connection."""
        with self.unit_of_work() as database:
            return database.query(name, parameters)

    def load_spool(self, spool: Spool, run_id: str, *, wait_s: float = LOAD_WAIT_S) -> int:
        """Moves the committed batches into the database; returns how many.

        They leave the spool only when they are in the database's file itself: DuckDB drops the end of a torn
        write-ahead log, or all of a missing one, without a word.

        Raises:
            StoreError: the lock was not to be had, the disk is full, ...: the batches stay in the spool.
        """
        batches = spool.batches()
        if not batches:
            return 0
        for rows in _in_parts(batches):  # read before the lock, for which readers wait
            with open_database(self.path, self.limits, wait_s=wait_s) as database:
                with database.transaction():
                    _load(database, run_id, rows)
                database.checkpoint()
            for batch in rows:
                spool.drop(batch)
        return len(batches)

    def loaded_batches(self, run_id: str, shard: int) -> set[int]:
        """The numbers of a shard's batches that are in the database."""
        with self.unit_of_work() as database:
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

    def next_batch_no(self, run_id: str, shard: int) -> int:
        """The first free batch number; the spool must have been loaded."""
        rows = self.query("resume/find_last_batch", {"run_id": run_id, "shard": shard}).to_pylist()
        return int(rows[0]["batch_no"]) + 1

    def drop_torn_queries(self, run_id: str, shard: int) -> list[int]:
        """Where batches are missing, deletes the rows of queries that lost some of theirs: they are computed again.

        Batch numbers have gaps only in a database that is older than its spool, such as a restored backup. A gap is
        noted as a batch of driver 'lost', but for batch 0, whose rows are committed again.

        Returns:
            The numbers of the missing batches; the spool must have been loaded.
        """
        shard_of_run = {"run_id": run_id, "shard": shard}
        with self.unit_of_work() as database, database.transaction():
            missing: list[int] = database.query("resume/find_missing_batches", shard_of_run).column(0).to_pylist()
            if missing:
                torn = {"torn": database.query("resume/find_torn_queries", {"run_id": run_id})}
                database.execute("resume/delete_torn_queries", tables=torn)
                database.execute("resume/note_lost_batches", shard_of_run)
        return missing

    def _require_whole(self, database: Database) -> None:
        """DuckDB reads pages when it needs them: it would write into a file that was cut off, and lose more of it.

        A cut within as many blocks as are free is not seen here: DuckDB itself leaves free blocks off the end.
        """
        wanted, found = database.query("run/measure_file").column("num_bytes")[0].as_py(), self.path.stat().st_size
        if found < wanted:
            raise StoreError(
                f"{self.path}: has {found} bytes, but {wanted} in use: its end is missing. See {RECOVERY}."
            )

    def _is_ours(self, database: Database) -> bool:
        return database.has_table("schema_files")


def _state(row: Mapping[str, Any]) -> RunState:
    """Of a row of `runs`, which in an older database, not yet brought up to date, has fewer columns."""
    offered_at = row.get("offered_at", row["published_at"])
    return RunState(
        row["status"],
        row["is_degraded"],
        is_checked=row["failed_checks"] is not None,
        is_offered=offered_at is not None,
    )


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
    return {table: rows for table in SCHEMAS if (rows := batch.read(table)) is not None}


def _load(database: Database, run_id: str, batches: Mapping[SpooledBatch, Mapping[str, pa.Table]]) -> None:
    """Inserts batches that are not there yet; a batch loaded before a crash is only left to be removed."""
    loaded = {shard: _loaded(database, run_id, shard) for shard in {batch.shard for batch in batches}}
    fresh = [tables for batch, tables in batches.items() if batch.batch_no not in loaded[batch.shard]]
    for table in SCHEMAS:  # batches first: a conflict rolls everything back
        parts = [tables[table] for tables in fresh if table in tables]
        if parts:
            rows = pa.concat_tables(parts).combine_chunks()  # of a chunk a batch, each would cost DuckDB 0.3 ms
            database.execute(f"load/insert_{table}", tables={"incoming": rows})


def _loaded(database: Database, run_id: str, shard: int) -> set[int]:
    rows = database.query("load/list_loaded_batches", {"run_id": run_id, "shard": shard})
    return set(rows.column("batch_no").to_pylist())


@contextmanager
def run_lock(database: Path, run_id: str) -> Iterator[None]:
    """Holds `{database}.lock` for a whole run, freed by the kernel even after kill -9; the file tells who holds it.

    Raises:
        AlreadyRunning: another process holds it; the message names it. AlreadyInProgress where it runs this very run.
        StoreError: the folder cannot be written.
    """
    path = database.with_name(f"{database.name}.lock")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        stream = path.open("a+", encoding="utf-8")
    except OSError as error:
        raise StoreError(f"{path}: cannot open the run lock: {first_line(error)}") from error
    with stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            stream.seek(0)
            holder, told = _holder(stream.read())
            refusal = AlreadyInProgress if holder == run_id else AlreadyRunning
            raise refusal(f"{database}: {told} holds the run lock. Wait for it to end.") from error
        except OSError as error:
            raise StoreError(
                f"{path}: this file system cannot lock ({first_line(error)}). Put [store] database on a local disk."
            ) from error
        _write_holder(stream.fileno(), path, run_id)
        yield


def _write_holder(descriptor: int, path: Path, run_id: str) -> None:
    told = json.dumps({"host": socket.gethostname(), "pid": os.getpid(), "run_id": run_id})
    try:
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, told.encode(), 0)
    except OSError as error:
        raise StoreError(f"{path}: cannot write the run lock: {first_line(error)}") from error


def _holder(text: str) -> tuple[str | None, str]:
    """The run that the lock's file names, and who holds it in words."""
    try:
        told = json.loads(text)
        return told["run_id"], f"run {told['run_id']} (process {told['pid']} on {told['host']})"
    except (ValueError, KeyError, TypeError):
        return None, "another process"
