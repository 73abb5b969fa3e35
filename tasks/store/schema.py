"""The tables of a database, and which packrank made them.

Nothing is migrated: a database of another schema is refused, whoever opens it. Knows nothing of runs and locks.
"""

from pathlib import Path

from tasks.system.database import Database
from tasks.system.errors import StoreError

SCHEMA = 33  # to be raised with every change of a table or column; 1 to 31 were the migrations before it


def has_schema(database: Database, path: Path) -> bool:
    """Whether the database has the tables that this packrank reads and writes; False where it has none of packrank's.

    Raises:
        StoreError: another packrank made it.
    """
    tables = database.query("database/list_tables").column("table_name").to_pylist()
    if "schema_version" in tables:
        (found,) = database.query("database/find_schema").column("number").to_pylist()
    elif "schema_files" in tables:
        (found,) = database.query("database/find_migration").column("number").to_pylist()
    else:
        return False
    if found < SCHEMA:
        raise StoreError(
            f"{path}: was made by an older packrank, its schema is {found}; this packrank reads and writes schema "
            f"{SCHEMA} only. Export the runs that you need with the older packrank (packrank export), then name a new "
            "file as [store] database."
        )
    if found > SCHEMA:
        raise StoreError(
            f"{path}: was made by a newer packrank, its schema is {found}; this packrank reads and writes schema "
            f"{SCHEMA} only. Use the newer packrank, or name another file as [store] database."
        )
    return True


def create_tables(database: Database, path: Path) -> None:
    """Creates every table.

    Raises:
        StoreError: the database has tables of somebody else.
    """
    if database.query("database/list_tables").num_rows:
        raise StoreError(f"{path}: has tables, but none of packrank's. It was left as it is; name another database.")
    database.execute("database/create_schema_version")
    database.execute("database/note_schema", {"number": SCHEMA})
    database.execute("schema")
