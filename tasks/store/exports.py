"""The published scores of a night as Parquet, for whoever reads files rather than DuckDB.

    {folder}/{name}/night=YYYY-MM-DD/scores.parquet, and manifest.json beside it

Each is written aside and renamed, the manifest last: its SHA-256 tells whether the scores beside it are those that it
describes. Knows nothing of how a run was published.
"""

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, date, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from tasks.store.night_store import Store
from tasks.store.runs import Runs
from tasks.store.score_tables import EXPORT_SCHEMA, Tally, score_tables
from tasks.system.atomic_files import whole_file
from tasks.system.errors import PackrankError, first_line

SCORES, MANIFEST = "scores.parquet", "manifest.json"

# The columns of latest_scores, but for `night`: its folder has it, and readers of Hive folders refuse it twice.
SCHEMA = pa.schema([("name", pa.string()), ("run_id", pa.string()), *EXPORT_SCHEMA])


@dataclass(frozen=True, slots=True)
class PublishedNight:
    """A night of a series."""

    name: str
    night: date

    def folder(self, root: Path) -> Path:
        """Where its export lies: a Hive partition."""
        return root / self.name / f"night={self.night.isoformat()}"


def export_night(store: Store, published: PublishedNight, root: Path) -> str:
    """Writes the scores of the night's published run; where it has none any more, its export goes.

    Returns:
        What to tell, one line.

    Raises:
        PackrankError: the folder cannot be written.
        StoreError: the database is locked, or the run's rows have no strict order.
    """
    folder = published.folder(root)
    with store.reader() as database:
        run = Runs(database).find_published(published.name, published.night)
    try:
        if run is None or run.night != published.night:
            return _withdraw(folder)
        folder.mkdir(parents=True, exist_ok=True)
        tally = _write_scores(store, published.name, run.run_id, folder / SCORES)
        _write_manifest(published, run.run_id, tally, folder)
    except OSError as error:
        raise PackrankError(f"{folder}: cannot be written: {first_line(error)}") from error
    return f"export: {folder / SCORES}, {tally.num_rows:,} rows of {tally.num_queries:,} queries"


def _write_scores(store: Store, name: str, run_id: str, output: Path) -> Tally:
    tally = Tally()
    with (
        whole_file(output) as stream,
        pq.ParquetWriter(stream, SCHEMA, compression="zstd", write_page_checksum=True) as writer,
    ):
        for table in _named(name, run_id, tally.counted(score_tables(store.query, run_id))):
            writer.write_table(table)
    return tally


def _named(name: str, run_id: str, tables: Iterable[pa.Table]) -> Iterable[pa.Table]:
    for table in tables:
        constants = [pa.repeat(text, table.num_rows) for text in (name, run_id)]
        yield pa.table([*constants, *table.columns], schema=SCHEMA)


def _write_manifest(published: PublishedNight, run_id: str, tally: Tally, folder: Path) -> None:
    with (folder / SCORES).open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    manifest = {
        "name": published.name,
        "night": published.night.isoformat(),
        "run_id": run_id,
        "file": SCORES,
        "sha256": digest,
        "rows": tally.num_rows,
        "queries": tally.num_queries,
        "columns": SCHEMA.names,
        "written_at": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    with whole_file(folder / MANIFEST) as out:
        out.write(json.dumps(manifest, ensure_ascii=False, indent=1).encode() + b"\n")


def _withdraw(folder: Path) -> str:
    """The manifest goes first: scores without one are not to be used."""
    was_there = (folder / MANIFEST).exists()
    for name in (MANIFEST, SCORES):
        (folder / name).unlink(missing_ok=True)
    if folder.is_dir() and not any(folder.iterdir()):
        folder.rmdir()
    return f"export: {folder} {'withdrawn' if was_there else 'has nothing'}"
