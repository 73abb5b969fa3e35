"""DuckDB behind one small door: SQL files with bound parameters, Arrow in and out.

The only module that imports duckdb. A connection lives for one unit of work and belongs to one thread. Memory,
threads and the spill folder are always set, since DuckDB would otherwise plan with the whole host's memory beside
the engine. Knows nothing of runs, queries or scores.
"""

import contextlib
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import duckdb
import pyarrow as pa

from tasks.environment import ROOT
from tasks.errors import StoreError, first_line

SQL_FOLDER = ROOT / "sql"

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
        raise StoreError(f"{where}{error}") from error
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
                raise StoreError(f"the transaction was rolled back: {first_line(error)}") from error
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


@contextmanager
def open_database(
    path: Path,
    limits: DatabaseLimits,
    *,
    read_only: bool = False,
    wait_s: float = 1.0,
    storage_version: str | None = None,
) -> Iterator[Database]:
    """Opens the file for one unit of work, and closes it after.

    DuckDB lets one process write or several read, and refuses at once: so a lock held elsewhere is retried every
    10 ms up to `wait_s`.

    Args:
        path: the file; a new one is made if it is not there.
        limits: what DuckDB may take from the host.
        read_only: whether others may read beside it.
        wait_s: how long a lock held elsewhere is waited for, seconds.
        storage_version: of DuckDB, for a new file: older clients than the newest can open it.

    Raises:
        StoreError: the lock was not to be had, or the file is not a database that this DuckDB can open.
    """
    config = _config_of(limits)
    if storage_version is not None:
        config["storage_compatibility_version"] = storage_version
    connection = _connect(path, config, read_only=read_only, wait_s=wait_s)
    try:
        yield Database(connection)
    finally:
        connection.close()


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


def _connect(path: Path, config: Config, *, read_only: bool, wait_s: float) -> duckdb.DuckDBPyConnection:
    deadline = time.monotonic() + wait_s
    while True:
        try:
            connection = duckdb.connect(str(path), read_only=read_only, config=config)
            connection.execute("set TimeZone = 'UTC'; set enable_progress_bar = false")  # a bar would go to stdout
            return connection
        except duckdb.IOException as error:
            if "lock" not in str(error) or time.monotonic() >= deadline:
                raise StoreError(f"{path}: cannot open the database: {first_line(error)}") from error
            time.sleep(0.01)
        except duckdb.Error as error:
            raise StoreError(f"{path}: cannot open the database: {first_line(error)}") from error
