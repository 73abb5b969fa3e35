"""Shards: which queries are whose, and the files through which a night and its shards communicate.

    {spool}/{run_id}/shards.json           written by the night: what is asked; while it is there, shards may run
    {spool}/{run_id}/earlier.parquet       rankings of the run whose rows may be reused
    {spool}/{run_id}/{shard}/{batch_no}/   the shard's batches, as any run's; they stay until the night loads them
    {spool}/{run_id}/{shard}/shard.json    written by the shard: what it did, with is_done last of all
    {spool}/{run_id}/{shard}/shard.lock    held while a process ranks it

Every file is whole or not there. Knows nothing of how a shard is ranked or started.
"""

import errno
import fcntl
import json
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from tasks.inputs.query_subsets import IsOwn, id_hash, where_ids
from tasks.store.spool import Spool, SpooledBatch
from tasks.system.atomic_files import write_whole
from tasks.system.errors import AlreadyRunning, StoreError
from tasks.system.run_lock import run_lock

LOCK_WAIT_S = 15.0  # whoever looks whether it is held has it for a moment; one that is told to stop needs seconds
SEEN_BY_ALL = frozenset({"duplicate documents"})  # notes on what every shard reads


def shard_of(query_id: str | None, num_shards: int) -> int:
    """The shard of a query, the same on every machine; rows without a query_id are the first one's.

    >>> [shard_of(f"q{number}", 4) for number in range(8)]
    [2, 3, 2, 1, 2, 1, 3, 2]
    """
    if query_id is None:
        return 0
    return id_hash(query_id) % num_shards


def queries_of(shard: int, num_shards: int) -> IsOwn:
    """Tells of a column of query ids which are the shard's; each different id is hashed once."""
    return partial(where_ids, lambda query_id: shard_of(query_id, num_shards) == shard)


@dataclass(frozen=True, slots=True)
class ShardOrder:
    """What a night asks of its shards."""

    base_run_id: str  # that settings, model and input must give on every machine
    num_shards: int
    earlier_run_id: str | None  # whose rows may be reused
    recipe_change: str | None  # why a query that the earlier run ranked by another recipe is ranked anew
    git_commit: str | None = None  # of the night's checkout, see `fingerprints.git_commit`

    def write(self, run_folder: Path) -> None:
        """Lets shards begin."""
        write_whole(run_folder / "shards.json", json.dumps(asdict(self)).encode())


def read_order(run_folder: Path) -> ShardOrder:
    """What is asked of a run's shards.

    Raises:
        StoreError: nothing, or nothing any more.
    """
    try:
        return ShardOrder(**json.loads((run_folder / "shards.json").read_bytes()))
    except FileNotFoundError as error:
        raise StoreError(
            f"{run_folder}: no night asks for shards here. Its run has ended, or this machine does not see the same "
            "[store] spool."
        ) from error


@dataclass(frozen=True, slots=True)
class ShardRecord:
    """What a shard did: so far, or all of it."""

    is_done: bool
    host: str
    versions: Mapping[str, str]  # of libraries
    engine: Mapping[str, Any] | None = None  # as it reported itself, columns of runs; None: it was not needed
    canaries: tuple[dict[str, Any], ...] = ()  # as they answered: pair, margin, passed
    forecast: Mapping[str, Any] | None = None  # columns of forecasts; None: it has no rates, or asked nothing
    num_batches: int = 0
    num_queries: int = 0
    num_candidates: int = 0
    notes: Mapping[str, int] | None = None  # repairs of the input, as staged


def sum_notes(records: list[ShardRecord]) -> dict[str, int]:
    """The notes of a whole night."""
    notes: dict[str, int] = {}
    for record in records:
        for note, num_rows in (record.notes or {}).items():
            before = notes.get(note, 0)
            notes[note] = max(before, num_rows) if note in SEEN_BY_ALL else before + num_rows
    return notes


def slowest_forecast(records: list[ShardRecord]) -> dict[str, Any] | None:
    """A night's forecast: of shards side by side the slowest counts. None where a shard that asked has none."""
    asked = [record.forecast for record in records if record.engine is not None]
    told = [each for each in asked if each is not None]
    if not told or len(told) < len(asked):
        return None
    slowest = {name: max(each[name] for each in told) for name in ("low_s", "expected_s", "high_s")}
    return slowest | {"rates": "; ".join(dict.fromkeys(each["rates"] for each in told))}


def worst_canaries(records: Sequence[ShardRecord]) -> tuple[dict[str, Any], ...]:
    """A night's canaries: those of the shard that missed most in one decode mode; empty if none asked any.

    One host with a broken build must not hide behind the others. Of equals the first counts.
    """

    def most_missed(record: ShardRecord) -> int:
        missed = Counter(each["pair"].split("/")[0] for each in record.canaries if not each["passed"])
        return max(missed.values(), default=0)

    asked = [record for record in records if record.canaries]
    return max(asked, key=most_missed).canaries if asked else ()


class ShardFolder:
    """One shard's part of the spool."""

    def __init__(self, spool_folder: Path, run_id: str, shard: int) -> None:
        self.spool_folder = spool_folder
        self.run_id = run_id
        self.shard = shard
        self.path = spool_folder / run_id / str(shard)

    def record(self) -> ShardRecord | None:
        """The record that the shard wrote; None if there is none yet."""
        try:
            told = json.loads((self.path / "shard.json").read_bytes())
        except FileNotFoundError:
            return None
        return ShardRecord(**told | {"canaries": tuple(told["canaries"])})

    @property
    def is_done(self) -> bool:
        """Whether all its batches are durable."""
        record = self.record()
        return record is not None and record.is_done

    def write(self, record: ShardRecord) -> None:
        """Writes the shard's record."""
        write_whole(self.path / "shard.json", json.dumps(asdict(record)).encode())

    def forget(self) -> None:
        """Deletes the record."""
        (self.path / "shard.json").unlink()

    def batch_nos(self) -> set[int]:
        """The batches that are here."""
        return {batch.batch_no for batch in self._batches()}

    @property
    def has_gaps(self) -> bool:
        """Whether batches are gone, as after half a load into a database that was then lost."""
        found = self.batch_nos()
        return found != set(range(len(found)))

    def clear(self) -> None:
        """Deletes its batches."""
        for batch in self._batches():
            batch.remove()

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Holds the shard, so that two processes never rank it; freed by the kernel even after kill -9.

        Raises:
            AlreadyRunning: another process holds it; the message names it.
            StoreError: the folder cannot be written, or its file system cannot lock.
        """
        deadline = time.monotonic() + LOCK_WAIT_S
        with ExitStack() as held:
            while True:
                try:
                    held.enter_context(run_lock(self.path / "shard", self.run_id))
                    break
                except AlreadyRunning:
                    if time.monotonic() > deadline:
                        raise
                    time.sleep(0.2)
            yield

    def is_held(self) -> bool:
        """Whether a process, on whatever machine, ranks the shard now."""
        try:
            with (self.path / "shard.lock").open("r+", encoding="utf-8") as stream:
                fcntl.flock(stream, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except FileNotFoundError:
            return False
        except OSError as error:
            if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
                return True
            raise
        return False

    def _batches(self) -> list[SpooledBatch]:
        return Spool(self.spool_folder, self.run_id, self.shard).batches()


class KeptSpool(Spool):
    """A shard's spool as the shard sees it: what it has read it does not read again, and all stays for the night."""

    def __init__(self, folder: ShardFolder) -> None:
        super().__init__(folder.spool_folder, folder.run_id, folder.shard)
        self._read: set[int] = set()

    def batches(self) -> list[SpooledBatch]:
        """Those that were not dropped yet."""
        return [batch for batch in super().batches() if batch.batch_no not in self._read]

    def drop(self, batch: SpooledBatch) -> None:
        """Remembers it."""
        self._read.add(batch.batch_no)

    def remove(self) -> None:
        """Leaves everything."""
