"""DuckDB behind one small door: SQL files with bound parameters, Arrow in and out.

The only module that imports duckdb. A connection lives for one unit of work and belongs to one thread; of one file a
process has one at a time. Memory, threads and the spill folder are always set, since DuckDB would otherwise plan with
the whole host's memory beside the engine. Checkpoints are made here, each with its rollback journal, not by DuckDB
whenever its log is long. Knows nothing of runs, queries or scores.
"""

import contextlib
import logging
import os
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import duckdb
import pyarrow as pa

from tasks.environment import ROOT
from tasks.errors import StoreError, first_line
from tasks.files.rollback_journal import HEADERS_BYTES, Extent, journal_of, journaled, roll_back

SQL_FOLDER = ROOT / "sql"
STORAGE_VERSION = "v2.0.0"  # of new files, also under a later DuckDB; older ones take a stale log for their own
RECOVERY = "docs/operations.md, 'The database cannot be opened'"
MAGIC, MAGIC_AT = b"DUCK", 8  # every DuckDB file has it there
NEVER = "1TB"  # of log, before DuckDB makes a checkpoint unasked

logger = logging.getLogger(__name__)

Parameters = Mapping[str, object]
Config = dict[str, str | bool | int | float | list[str]]
ArrowTables = Mapping[str, pa.Table | pa.RecordBatchReader]


@dataclass(frozen=True, slots=True)
class DatabaseLimits:
    """What DuckDB may take from the host."""

    memory_limit: str  # as DuckDB writes it: '1GB'
    threads: int
    temp_directory: Path  # spill files


@contextmanager
def _driver_errors(where: str) -> Iterator[None]:
    """DuckDB's errors as ours, and its answer to Ctrl-C, a RuntimeError, as what it is."""
    try:
        yield
    except duckdb.Error as error:
        raise StoreError(f"{where}{error}{_advice(error)}") from error
    except RuntimeError as error:
        if "interrupted" in str(error).lower():
            raise KeyboardInterrupt from error
        raise


class Database:
    """One open connection; see `open_database`."""

    def __init__(self, connection: duckdb.DuckDBPyConnection) -> None:
        self._connection = connection

    def execute(self, name: str, parameters: Parameters | None = None, tables: ArrowTables | None = None) -> None:
        """Runs `sql/{name}.sql`, which may read the given Arrow tables by their names."""
        with self._registered(tables), _driver_errors(f"sql/{name}.sql: "):
            self._connection.execute(read_sql(name), dict(parameters) if parameters else None)

    def query(self, name: str, parameters: Parameters | None = None, tables: ArrowTables | None = None) -> pa.Table:
        """Runs the one statement of `sql/{name}.sql` and returns its rows."""
        return self.query_text(read_sql(name), parameters, tables)

    def query_text(
        self, statement: str, parameters: Parameters | None = None, tables: ArrowTables | None = None
    ) -> pa.Table:
        """Runs a statement given as text (an analyst's, or a file already read) and returns its rows."""
        with self._registered(tables), _driver_errors(""):
            relation = self._connection.sql(statement, params=dict(parameters or {}))
            return pa.table({}) if relation is None else relation.to_arrow_table()

    def has_table(self, name: str) -> bool:
        """Whether the database has a table of this name."""
        return bool(self.query("run/find_table", {"name": name}).num_rows)

    def stream(self, name: str, rows: int, parameters: Parameters | None = None) -> Iterator[pa.RecordBatch]:
        """The rows of `sql/{name}.sql` in Arrow batches of at most `rows`: bounded memory."""
        with _driver_errors(f"sql/{name}.sql: "):
            relation = self._connection.sql(read_sql(name), params=dict(parameters or {}))
            yield from relation.to_arrow_reader(rows)

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Commits at the end, rolls back on any exception and lets it through."""
        self._connection.begin()
        try:
            yield
            self._connection.commit()
        except BaseException as error:
            with contextlib.suppress(duckdb.Error):  # the first error is the one to tell
                self._connection.rollback()
            if isinstance(error, duckdb.Error):
                raise StoreError(f"the transaction was rolled back: {first_line(error)}{_advice(error)}") from error
            raise

    @contextmanager
    def _registered(self, tables: ArrowTables | None) -> Iterator[None]:
        for table_name, table in (tables or {}).items():
            self._connection.register(table_name, table)
        try:
            yield
        finally:
            for table_name in tables or {}:
                with contextlib.suppress(duckdb.Error):  # refused in a failed transaction: the first error is to tell
                    self._connection.unregister(table_name)


class KeptDatabase(Database):
    """One whose file outlives the process, whatever ends that."""

    def __init__(self, connection: duckdb.DuckDBPyConnection, path: Path, descriptor: int) -> None:
        super().__init__(connection)
        self._path = path
        self._descriptor = descriptor  # of the file, to read it

    def checkpoint(self) -> None:
        """Moves everything from the write-ahead log into the file, and waits until that is on the disk.

        Raises:
            StoreError: the disk is full, ...: all of it is still in the log.
        """
        blocks = self.query("run/list_metadata_blocks").to_pylist()
        sizes = [(row["block_id"], row["block_size_bytes"]) for row in blocks]
        extents = [Extent(HEADERS_BYTES + block_id * num_bytes, num_bytes) for block_id, num_bytes in sizes]
        with journaled(self._path, self._descriptor, extents):
            self.execute("run/checkpoint")

    def empty_log(self) -> None:
        """Makes a checkpoint if there is something in the log; a failure is told, since nothing is lost by it.

        None after one that failed: its journal would be written anew, from blocks that it may have overwritten.
        """
        if journal_of(self._path).exists() or not self._path.with_name(f"{self._path.name}.wal").exists():
            return
        try:
            self.checkpoint()
        except StoreError as error:
            logger.warning("%s: what was committed stays in the log for now: %s", self._path, first_line(error))


@contextmanager
def open_database(
    path: Path,
    limits: DatabaseLimits,
    *,
    read_only: bool = False,
    wait_s: float = 1.0,
    storage_version: str = STORAGE_VERSION,
) -> Iterator[KeptDatabase]:
    """Opens the file for one unit of work, and closes it after.

    DuckDB lets one process write or several read, and refuses at once: so a lock held elsewhere is retried every
    10 ms up to `wait_s`. Threads of this process take turns, since their transactions would conflict. What the unit
    committed is then moved from the log into the file; where that fails, it stays in the log, and a warning says so.

    Args:
        path: the file; a new one is made if it is not there.
        limits: what DuckDB may take from the host.
        read_only: whether others may read beside it.
        wait_s: how long a lock held elsewhere is waited for, seconds.
        storage_version: of a new file: DuckDB from this version on can open it.

    Raises:
        StoreError: the lock was not to be had, or the file is not a database that this DuckDB can open. Nothing was
            changed, and the message says what to do.
    """
    config = _config_of(limits) | {"storage_compatibility_version": storage_version, "checkpoint_threshold": NEVER}
    deadline = time.monotonic() + wait_s
    with _turn(path, deadline), contextlib.ExitStack() as opened:
        connection = _connect(path, config, read_only=read_only, deadline=deadline)
        descriptor = os.open(path, os.O_RDONLY)
        opened.callback(os.close, descriptor)  # after the connection: it frees the locks of the whole process
        opened.callback(connection.close)
        database = KeptDatabase(connection, path, descriptor)
        if not read_only:
            opened.callback(database.empty_log)
        yield database


@contextmanager
def open_scratch(path: Path, limits: DatabaseLimits) -> Iterator[Database]:
    """A new file that nobody needs after the body; it is deleted then, unless the process is killed.

    Raises:
        StoreError: the file cannot be made.
    """
    with _driver_errors(f"{path}: "):
        connection = _connected(path, _config_of(limits), read_only=False)
    try:
        yield Database(connection)
    finally:
        connection.close()
        path.unlink(missing_ok=True)


def _advice(error: duckdb.Error) -> str:
    told = str(error)
    if "No space left" in told:
        return ". Free the disk and run the same command again"
    if "Corrupt database file" in told or "Could not read enough bytes" in told:  # pages are read when they are needed
        return f". The file is damaged, see {RECOVERY}"
    return ""


def read_sql(name: str) -> str:
    """The text of `sql/{name}.sql`."""
    return (SQL_FOLDER / f"{name}.sql").read_text(encoding="utf-8")


def _config_of(limits: DatabaseLimits) -> Config:
    return {
        "memory_limit": limits.memory_limit,
        "threads": limits.threads,
        "temp_directory": str(limits.temp_directory),
        "autoinstall_known_extensions": False,  # nothing is downloaded
    }


_turns: defaultdict[Path, threading.Lock] = defaultdict(threading.Lock)


@contextmanager
def _turn(path: Path, deadline: float) -> Iterator[None]:
    """One connection at a time, since another one's descriptor would free the lock of both when it is closed."""
    turn = _turns[path.absolute()]
    if not turn.acquire(timeout=max(0.0, deadline - time.monotonic())):
        raise StoreError(f"{path}: cannot open the database: this process has it open already")
    try:
        yield
    finally:
        turn.release()


def _connect(path: Path, config: Config, *, read_only: bool, deadline: float) -> duckdb.DuckDBPyConnection:
    while True:
        try:
            if roll_back(path):
                return _connected(path, config, read_only=read_only)
            told = "the lock of a checkpoint that was cut off is held elsewhere"
        except duckdb.Error as error:
            if "set lock on file" not in str(error):
                raise StoreError(f"{path}: cannot open the database: {_diagnosis(path, error)}") from error
            told = first_line(error)
        if time.monotonic() >= deadline:
            raise StoreError(f"{path}: cannot open the database: {told}")
        time.sleep(0.01)


def _connected(path: Path, config: Config, *, read_only: bool) -> duckdb.DuckDBPyConnection:
    connection = duckdb.connect(str(path), read_only=read_only, config=config)
    connection.execute("set TimeZone = 'UTC'; set enable_progress_bar = false")  # a bar would go to stdout
    connection.execute("pragma disable_checkpoint_on_shutdown")
    return connection


def _diagnosis(path: Path, error: duckdb.Error) -> str:
    """What is wrong with a file that DuckDB refused, and what to do; nothing is deleted or moved here."""
    told = first_line(error).rstrip(".")
    if "WAL" in told:
        return (
            f"{told}. Move {path.name}.wal aside and run the same command again: what it held is in the spool, or is "
            f"done again. See {RECOVERY}."
        )
    if "storage version" in told:
        return f"{told}; this is DuckDB {duckdb.__version__}. Use the DuckDB that wrote it, or another database."
    foreign = _foreign(path)
    return f"{foreign or told}. Name another file, or see {RECOVERY}."


def _foreign(path: Path) -> str | None:
    """What else lies there; None for a database or what cannot be read.

    Only after DuckDB failed: closing a file that it has open would free its lock on it.
    """
    try:
        with path.open("rb") as stream:
            head = stream.read(MAGIC_AT + len(MAGIC))
    except OSError:
        return None
    if not head:
        return "the file is empty, 0 bytes"
    return None if head[MAGIC_AT:] == MAGIC else "the file is no DuckDB database"
