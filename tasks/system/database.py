"""DuckDB behind one small interface: SQL from files with bound parameters, Arrow in and out.

The only module that imports duckdb. A connection lives for one unit of work and belongs to one thread; of one file a
process has one at a time. Memory, threads and the spill folder are always set, since DuckDB would otherwise plan with
the whole host's memory beside the engine. Checkpoints are made here, each with its rollback journal, not by DuckDB
whenever its log is long. Knows nothing of runs, queries or scores.
"""

import contextlib
import logging
import os
import re
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TypeVar

import duckdb
import pyarrow as pa
from duckdb.sqltypes import DuckDBPyType

from tasks.system.checkpoint_journal import HEADERS_BYTES, RECOVERY, Extent, journal_of, journaled, roll_back
from tasks.system.environment import FILES
from tasks.system.errors import LogUnreadable, OutOfMemory, StoreError, first_line
from tasks.system.lock_wait import LockWait, lock_holder

SQL_FOLDER = FILES / "sql"
NAME_LINE = re.compile(r"^-- name: (.+)\n", re.MULTILINE)
STORAGE_VERSION = "v2.0.0"  # of new files, also under a later DuckDB; older ones take a stale log for their own
MAGIC, MAGIC_AT = b"DUCK", 8  # every DuckDB file has it there
NEVER = "1TB"  # of log, before DuckDB makes a checkpoint unasked
NESTING_TYPES = frozenset({"list", "array", "struct", "tuple", "map", "union"})

logger = logging.getLogger(__name__)

T = TypeVar("T")
Parameters = Mapping[str, object]
Config = dict[str, str | bool | int | float | list[str]]
ArrowTables = Mapping[str, pa.Table | pa.RecordBatchReader]
ColumnExpression = Callable[[str, frozenset[str]], str]  # (column, names of its type and of all types in it) to SQL


@dataclass(frozen=True, slots=True)
class DatabaseLimits:
    """What DuckDB may take from the host."""

    memory_limit: str  # as DuckDB writes it: '1GB'
    threads: int
    temp_directory: Path  # spill files


@contextmanager
def _driver_errors(where: str) -> Iterator[None]:
    """Translates DuckDB's errors to ours, and its RuntimeError after Ctrl-C to KeyboardInterrupt."""
    try:
        yield
    except duckdb.OutOfMemoryException as error:
        raise OutOfMemory(f"{where}{first_line(error)}{_advice(error)}") from error
    except duckdb.Error as error:
        raise StoreError(f"{where}{_without_stack(error)}{_advice(error)}") from error
    except RuntimeError as error:
        if "interrupted" in str(error).lower():
            raise KeyboardInterrupt from error
        raise


class Database:
    """One open connection; see `open_database`."""

    def __init__(self, connection: duckdb.DuckDBPyConnection) -> None:
        self._connection = connection

    def execute(self, name: str, parameters: Parameters | None = None, tables: ArrowTables | None = None) -> None:
        """Runs the SQL of that name (see `read_sql`), which may read the given Arrow tables by their names."""
        with self._registered(tables), _driver_errors(f"sql/{name}: "):
            self._connection.execute(read_sql(name), dict(parameters) if parameters else None)

    def append(self, table: str, rows: pa.Table) -> None:
        """Adds rows, which have the table's columns in any order."""
        with _driver_errors(f"{table}: "):
            columns = self._connection.table(table).columns
            self._connection.from_arrow(rows.select(columns)).insert_into(table)

    def query(self, name: str, parameters: Parameters | None = None, tables: ArrowTables | None = None) -> pa.Table:
        """Runs the one statement of that name (see `read_sql`) and returns its rows."""
        return self.query_text(read_sql(name), parameters, tables)

    def query_text(
        self, statement: str, parameters: Parameters | None = None, tables: ArrowTables | None = None
    ) -> pa.Table:
        """Runs a statement given as text (an analyst's, or a file already read) and returns its rows."""
        with self._registered(tables), _driver_errors(""):
            relation = self._connection.sql(statement, params=dict(parameters or {}))
            return pa.table({}) if relation is None else relation.to_arrow_table()

    def query_as(self, statement: str, expression_of: ColumnExpression) -> pa.Table:
        """Rows of an analyst's statement, each column as the SQL expression that is chosen by its type.

        Equal column names are numbered: x, x_1, as DuckDB numbers those of a subquery.
        """
        with _driver_errors(""):
            relation = self._relation(statement)
            if relation is None:
                return pa.table({})
            names = [name.replace('"', '""') for name in relation.project("*").columns]
            expressions = [
                f'{expression_of(f"#{place}", _type_names(each))} as "{name}"'
                for place, (name, each) in enumerate(zip(names, relation.types, strict=True), start=1)
            ]
            return relation.project(", ".join(expressions)).to_arrow_table()

    def query_json(self, statement: str) -> list[str]:
        """Rows of an analyst's statement as JSON objects, written by DuckDB: not a number is NaN there."""
        with _driver_errors(""):
            relation = self._relation(statement)
            if relation is None:
                return []
            row = "r" * (1 + max(map(len, relation.columns)))  # no column has that name
            return [text for (text,) in relation.set_alias(row).project(f"to_json({row})").fetchall()]

    def _relation(self, statement: str) -> duckdb.DuckDBPyRelation | None:
        return self._connection.sql(statement)  # None for a statement without rows

    def stream(self, name: str, rows: int, parameters: Parameters | None = None) -> Iterator[pa.RecordBatch]:
        """The rows of the statement of that name in Arrow batches of at most `rows`: bounded memory."""
        with _driver_errors(f"sql/{name}: "):
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
        self.path = path
        self._descriptor = descriptor  # of the file, to read it

    @contextmanager
    def attached(self, path: Path, attach: str, detach: str, wait_s: float) -> Iterator[None]:
        """Has another file open beside this one, which the statement `attach` opens to read, and `detach` closes.

        Raises:
            DatabaseLocked: somebody writes to it, for longer than is waited.
            StoreError: it cannot be opened.
        """
        with contextlib.ExitStack() as opened:
            _in_turn(path, opened, wait_s, lambda: self._try_to_attach(path, attach))
            opened.callback(self.execute, detach)
            yield

    def _try_to_attach(self, path: Path, attach: str) -> bool | None:
        try:
            if not roll_back(path):
                return None
            self._connection.execute(read_sql(attach), {"path": str(path)})
        except duckdb.Error as error:
            if "set lock on file" in str(error):
                return None
            raise StoreError(f"{path}: cannot open the database: {_diagnosis(path, error)}") from error
        return True

    def checkpoint(self) -> None:
        """Moves everything from the write-ahead log into the file, and waits until that is on the disk.

        Raises:
            StoreError: the disk is full, ...: all of it is still in the log.
        """
        blocks = self.query("database/list_metadata_blocks").to_pylist()
        sizes = [(row["block_id"], row["block_size_bytes"]) for row in blocks]
        extents = [Extent(HEADERS_BYTES + block_id * num_bytes, num_bytes) for block_id, num_bytes in sizes]
        with journaled(self.path, self._descriptor, extents):
            self.execute("database/checkpoint")

    def empty_log(self) -> None:
        """Makes a checkpoint if there is something in the log; a failure is told, since nothing is lost by it.

        None after one that failed: its journal would be written anew, from blocks that it may have overwritten.
        """
        if journal_of(self.path).exists() or not self.path.with_name(f"{self.path.name}.wal").exists():
            return
        try:
            self.checkpoint()
        except StoreError as error:
            logger.warning("%s: what was committed stays in the log for now: %s", self.path, first_line(error))


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

    DuckDB lets one process write or several read, and refuses at once: so a lock held elsewhere is retried up to
    `wait_s`. Threads of this process take turns, since their transactions would conflict. What the unit committed is
    then moved from the log into the file; where that fails, it stays in the log, and a warning says so.

    Args:
        path: the file; a new one is made if it is not there.
        limits: what DuckDB may take from the host.
        read_only: whether others may read beside it; statements then reach no other file.
        wait_s: how long a lock held elsewhere is waited for, seconds.
        storage_version: of a new file: DuckDB from this version on can open it.

    Raises:
        DatabaseLocked: the lock was not to be had.
        LogUnreadable: see there.
        StoreError: the file is not a database that this DuckDB can open. In each case nothing was changed, and the
            message says what to do.
    """
    path = path.resolve()  # DuckDB's log and our journal lie beside the file, not beside a link to it
    config = _config_of(limits) | {"storage_compatibility_version": storage_version, "checkpoint_threshold": NEVER}
    with contextlib.ExitStack() as opened:
        connection = _connect(path, config, opened, read_only=read_only, wait_s=wait_s)
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
    if isinstance(error, duckdb.OutOfMemoryException) and "No space left" not in told:
        return ". DuckDB keeps to [store] memory_limit: raise it and run the same command again"
    if "No space left" in told:
        return ". Free the disk and run the same command again"
    if "Corrupt database file" in told or "Could not read enough bytes" in told:  # pages are read when they are needed
        return f". The file is damaged, see {RECOVERY}"
    if "disabled by configuration" in told or "disabled through configuration" in told:
        return ". Read-only commands reach their own database only; packrank sql --output FILE writes a result"
    return ""


def _without_stack(error: duckdb.Error) -> str:
    """DuckDB's message; an internal error has its C++ stack below it."""
    return str(error).partition("Stack Trace:")[0].strip()


def _type_names(column_type: DuckDBPyType) -> frozenset[str]:
    """DuckDB's names of a type and of all types inside it, such as list, struct and integer."""
    names: set[str] = {column_type.id}
    for _, inner in column_type.children if column_type.id in NESTING_TYPES else ():
        if isinstance(inner, DuckDBPyType):  # an array's size stands there too
            names |= _type_names(inner)
    return frozenset(names)


def arrow_schemas(name: str) -> dict[str, pa.Schema]:
    """The columns, as Arrow has them, of every table that the SQL of that name creates, by table."""
    with duckdb.connect(config={"threads": 1}) as connection:
        connection.execute("set TimeZone = 'UTC'")
        connection.execute(read_sql(name))
        tables = connection.execute("show tables").fetchall()
        return {table: connection.table(table).limit(0).to_arrow_table().schema for (table,) in tables}


@cache
def read_sql(name: str) -> str:
    """SQL by its name: 'runs/find_run' is the statement find_run of `sql/runs.sql`, if there is that file.

    'checks/volume' is the whole file `sql/checks/volume.sql`, since there is no `sql/checks.sql`, and 'views' is every
    file of `sql/views`, in the order of their names.

    Raises:
        StoreError: the file has no statement of that name, or several.
    """
    subject, _, statement = name.partition("/")
    path = SQL_FOLDER / f"{subject}.sql"
    if not path.exists():
        files = [SQL_FOLDER / f"{name}.sql"] if statement else sorted((SQL_FOLDER / name).glob("*.sql"))
        return "\n".join(file.read_text(encoding="utf-8") for file in files)
    statements = named_statements(path)
    if statement not in statements:
        raise StoreError(f"{path}: has no statement {statement!r}, only {', '.join(statements)}.")
    return statements[statement]


@cache
def named_statements(path: Path) -> dict[str, str]:
    """The statements of a file, in its order. Each begins with a line `-- name: find_run` and its header comment.

    Raises:
        StoreError: two statements have the same name.
    """
    _, *parts = NAME_LINE.split(path.read_text(encoding="utf-8"))
    statements: dict[str, str] = {}
    for name, text in zip(parts[::2], parts[1::2], strict=True):
        if name in statements:
            raise StoreError(f"{path}: has two statements named {name!r}. Rename one.")
        statements[name] = text.strip()
    return statements


def _config_of(limits: DatabaseLimits) -> Config:
    return {
        "memory_limit": limits.memory_limit,
        "threads": limits.threads,
        "temp_directory": str(limits.temp_directory),
        "autoinstall_known_extensions": False,  # nothing is downloaded
    }


_turns: defaultdict[Path, threading.Lock] = defaultdict(threading.Lock)  # by path: one connection at a time


def _connect(
    path: Path, config: Config, opened: contextlib.ExitStack, *, read_only: bool, wait_s: float
) -> duckdb.DuckDBPyConnection:
    return _in_turn(path, opened, wait_s, lambda: _try_to_connect(path, config, read_only=read_only))


def _in_turn(path: Path, opened: contextlib.ExitStack, wait_s: float, attempt: Callable[[], T | None]) -> T:
    """What `attempt` gives once the file's lock can be had, before that None; `opened` then holds this process's turn.

    The turn is passed on between two tries, so that a thread that cannot write yet keeps no other from reading.
    """
    turn, wait = _turns[path.absolute()], LockWait(path, wait_s)
    while True:
        holder = "another thread of this process"
        if turn.acquire(timeout=min(wait.left_s, 1.0)):  # not polled for: a thread that reads in a loop would starve us
            with contextlib.ExitStack() as taken:
                taken.callback(turn.release)
                had = attempt()
                if had is not None:
                    opened.push(taken.pop_all())
                    wait.end()
                    return had
                holder = lock_holder(path)
        wait.pause(holder)


def _try_to_connect(path: Path, config: Config, *, read_only: bool) -> duckdb.DuckDBPyConnection | None:
    """None where another process holds the lock."""
    try:
        if not roll_back(path):
            return None
        connection = _connected(path, config, read_only=read_only)
    except duckdb.Error as error:
        if "set lock on file" in str(error):
            return None
        raise (LogUnreadable if _is_torn_log(error) else StoreError)(
            f"{path}: cannot open the database: {_diagnosis(path, error)}"
        ) from error
    with contextlib.suppress(OSError):  # who may only read leaves it
        journal_of(path).unlink()
    return connection


def _connected(path: Path, config: Config, *, read_only: bool) -> duckdb.DuckDBPyConnection:
    connection = duckdb.connect(str(path), read_only=read_only, config=config)
    connection.execute("set TimeZone = 'UTC'; set enable_progress_bar = false")  # a bar would go to stdout
    connection.execute("pragma disable_checkpoint_on_shutdown")
    if read_only:  # an analyst's statement: no copy to, attach, read_csv or httpfs; spilling goes on
        connection.execute("set enable_external_access = false; set lock_configuration = true")
    return connection


def _is_torn_log(error: duckdb.Error) -> bool:
    """Or another file's; a log that a small memory cannot replay is neither."""
    told = first_line(error)
    return "WAL" in told and ("Corrupt" in told or "does not match" in told)


def _diagnosis(path: Path, error: duckdb.Error) -> str:
    """What is wrong with a file that DuckDB refused, and what to do; nothing is deleted or moved here."""
    told = first_line(error).rstrip(".")
    if "WAL" in told:
        return (
            f"{told}. Move {path.name}.wal aside and run the same command again, a night does so by itself: what it "
            f"held is in the spool, or is done again. See {RECOVERY}."
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
    return None if head[MAGIC_AT:] == MAGIC else "the file is not a DuckDB database"
