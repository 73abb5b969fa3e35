"""Durable batches: one folder each, written aside, fsynced, renamed. What has its name is whole.

    {spool}/{run_id}/{shard}/{batch_no}/{table}.parquet

Nothing that was committed here is lost to a killed process, a full disk or a locked database. Knows nothing of
DuckDB: see `store.load_spool`.
"""

import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from tasks.store.tables import SCHEMAS
from tasks.system.atomic_files import sync
from tasks.system.errors import StoreError, first_line

BATCH_DIGITS = 8


@dataclass(frozen=True, slots=True)
class SpooledBatch:
    """A committed batch that is not in the database yet, or not known to be."""

    shard: int
    batch_no: int
    folder: Path

    def read(self, table: str) -> pa.Table | None:
        """Its rows of one table; None if it has none."""
        path = self.folder / f"{table}.parquet"
        return pq.read_table(path, schema=SCHEMAS[table], partitioning=None) if path.exists() else None

    def remove(self) -> None:
        """Deletes it, once its rows are in the database."""
        shutil.rmtree(self.folder)


class Spool:
    """The batches of one run, or of one of its shards."""

    def __init__(self, folder: Path, run_id: str, shard: int | None = None) -> None:
        self._folder = folder / run_id
        self._shards = "*" if shard is None else str(shard)

    def commit(self, shard: int, batch_no: int, tables: Mapping[str, pa.Table]) -> None:
        """Makes a batch durable: it survives whatever comes after this returns.

        Raises:
            StoreError: it could not be written, the disk is full for instance.
        """
        parent = self._folder / str(shard)
        final = parent / f"{batch_no:0{BATCH_DIGITS}}"
        aside = parent / f".{final.name}.part"
        try:
            shutil.rmtree(aside, ignore_errors=True)
            aside.mkdir(parents=True)
            for name, table in tables.items():
                if table.num_rows:
                    _write(aside / f"{name}.parquet", table)
            sync(aside)
            aside.rename(final)
            sync(parent)
        except OSError as error:
            raise StoreError(
                f"{final}: cannot commit the batch: {first_line(error)}. Its scores are lost, earlier batches are "
                "safe: free the disk and run the same command again."
            ) from error

    def batches(self) -> list[SpooledBatch]:
        """The committed batches, in order."""
        found = [path for path in self._folder.glob(f"{self._shards}/*") if path.name.isdigit() and path.is_dir()]
        batches = [SpooledBatch(int(path.parent.name), int(path.name), path) for path in found]
        return sorted(batches, key=lambda batch: (batch.shard, batch.batch_no))

    def drop(self, batch: SpooledBatch) -> None:
        """Lets go of a batch whose rows are in the database."""
        batch.remove()

    def remove(self) -> None:
        """Deletes the run's folder; only when all of it is in the database."""
        shutil.rmtree(self._folder, ignore_errors=True)


def _write(path: Path, table: pa.Table) -> None:
    with path.open("wb") as stream:
        pq.write_table(table, stream, compression="zstd")
        stream.flush()
        os.fsync(stream.fileno())
