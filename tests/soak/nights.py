"""A night of the soak: its input and settings, what a kill may leave of it, and the rows that it must end with."""

import json
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from tasks.store.schema import has_schema
from tasks.store.spool import BATCH_DIGITS
from tasks.system.database import DatabaseLimits, open_database
from tasks.system.run_lock import run_lock
from tests.makers import asked, make_inputs, make_settings, write_parquet

LISTS = [0, 1, 2, 5, 9, 12, 7, 3, 8]
GONE_WITHIN_S = 60.0  # an engine child, after its parent: 0.03 s on a fake engine; a real one has gigabytes to free

KEYS = {"windows": ("query_id", "round", "window_no", "attempt"), "rankings": ("query_id",)} | {
    "outcomes": ("query_id", "round", "window_no", "attempt"),
    "scores": ("query_id", "doc_id"),
}
TABLES = ("runs", "batches", "windows", "rankings", "scores", "outcomes", "quarantine", "check_results", "metrics")
LIMITS = DatabaseLimits("200MB", 1, Path("/nowhere"))  # nothing is spilled
LATENCIES = {"queue_s", "prefill_s", "ttft_s", "tpot_s", "e2el_s"}
MAY_DIFFER = {  # from an uninterrupted run: times, batch numbers, host, commit, and where the database lies
    "runs": {"started_at", "finished_at", "elapsed_s", "published_at", "offered_at", "host", "git_commit", "settings"},
    "windows": {"batch_no"} | LATENCIES,
    "rankings": set(),
    "scores": set(),
    "outcomes": set(),
    "quarantine": set(),
    "check_results": set(),
    "metrics": set(),
}

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Committed:
    """What is durable: the rows of database and spool together."""

    batches: dict[int, Row]  # by batch_no
    tables: dict[str, list[Row]]

    @property
    def asked_batches(self) -> list[tuple[int, int]]:
        """(prompts, prompt tokens) of the batches that the engine was asked, in their order."""
        rows = [self.batches[number] for number in sorted(self.batches)]
        return [(row["num_prompts"], row["prompt_tokens"]) for row in rows if row["num_prompts"]]


def make_ragged_inputs(folder: Path, lists: Sequence[int] = LISTS) -> dict[str, str]:
    """Lists of the given lengths, and judgments; one document is blank, one candidate has no document, one no query."""
    paths = make_inputs(folder, lists)
    documents = pq.read_table(folder / "documents.parquet").to_pydict()
    documents["text"][4], documents["title"][4] = " ", None
    write_parquet(folder / "documents.parquet", **documents)
    candidates = pq.read_table(folder / "candidates.parquet").to_pydict()
    for query_id, doc_id in (("q003", "nowhere"), ("nobody", "d0001")):
        for name, value in (("query_id", query_id), ("doc_id", doc_id), ("rank", 99), ("score", 0.5)):
            candidates[name].append(value)
    write_parquet(folder / "candidates.parquet", **candidates)
    judged = {"query_id": ["q004", "q008"], "doc_id": ["d0006", "d0009"], "relevance": [1, 2]}
    return paths | {"inputs.qrels": str(write_parquet(folder / "qrels.parquet", **judged))}


class SoakNight:
    """One night in a folder and a database of its own."""

    def __init__(self, folder: Path, model: Path, values: Mapping[str, object]) -> None:
        folder.mkdir(parents=True)
        make_settings(folder, model, values)
        self.folder = folder
        self.database = folder / "var" / "test.duckdb"

    def _loaded(self) -> dict[str, list[Row]]:
        """The tables of the database, read as an analyst reads: a start that goes on finds what the killed one left."""
        if not self.database.exists():
            return {}
        with open_database(self.database, LIMITS, read_only=True) as database:
            if not has_schema(database, self.database):  # killed before it was there
                return {}
            return {name: database.query_text(f"from {name}").to_pylist() for name in TABLES}

    def committed(self) -> Committed:
        """Reads database and spool.

        Raises:
            AssertionError: a batch is not whole.
        """
        tables: dict[str, list[Row]] = {name: [] for name in TABLES} | self._loaded()
        batches = {row["batch_no"]: row for row in tables.pop("batches")}
        for folder in sorted((self.folder / "var" / "spool" / "test").glob("*/*/" + "[0-9]" * BATCH_DIGITS)):
            if int(folder.name) in batches:
                continue  # loaded before the kill, and not yet removed, or not all of it
            (row,) = pq.read_table(folder / "batches.parquet", partitioning=None).to_pylist()
            batches[row["batch_no"]] = row
            for name, rows in tables.items():
                if (folder / f"{name}.parquet").exists():
                    rows += pq.read_table(folder / f"{name}.parquet", partitioning=None).to_pylist()
        require_whole(batches, tables)
        return Committed(batches, tables)

    def require_nothing_left_running(self) -> float:
        """No process of the night and no lock; returns after how long, seconds.

        Raises:
            AssertionError: a process outlives its night, or the lock cannot be had.
        """
        began = time.monotonic()
        while left := processes_of(self.folder):
            assert time.monotonic() - began < GONE_WITHIN_S, f"orphans: {left}"
            time.sleep(0.01)
        with run_lock(self.database, "soak"):
            pass
        return time.monotonic() - began

    def require_clean(self) -> None:
        """A night that ended by itself leaves database and logs; one killed while it cleaned up, its last scratch."""
        var = self.folder / "var"
        assert not list((var / "spool").rglob("*.parquet"))
        assert {path.name for path in var.iterdir()} - {"staging", "tmp"} <= {
            *("test.duckdb", "test.duckdb.lock", "spool", "logs")
        }

    def final_rows(self) -> dict[str, list[Row]]:
        """The rows that do not depend on how often the night was started, in one order."""
        tables = self._loaded()
        return {
            name: sorted(
                ({column: row[column] for column in row if column not in differ} for row in tables[name]), key=frozen
            )
            for name, differ in MAY_DIFFER.items()
        }

    def start_log(self) -> str:
        """The last lines that the starts wrote."""
        path = self.folder / "start.log"
        return "\n".join(path.read_text(encoding="utf-8").splitlines()[-40:]) if path.exists() else ""


def require_whole(batches: Mapping[int, Row], tables: Mapping[str, list[Row]]) -> None:
    """Every batch has all of its windows, every window its outcome, every ranking all of its scores, no key is there twice.

    Raises:
        AssertionError: something is missing, or too much.
    """
    assert sorted(batches) == list(range(len(batches)))
    windows, tokens, scores = Counter(), Counter(), Counter(row["query_id"] for row in tables["scores"])
    for row in tables["windows"]:
        windows[row["batch_no"]] += 1
        tokens[row["batch_no"]] += row["prompt_tokens"]
    for number, row in batches.items():
        assert (windows[number], tokens[number]) == (row["num_prompts"], row["prompt_tokens"]), row
    for name, key in KEYS.items():
        keys = Counter(tuple(row[column] for column in key) for row in tables[name])
        assert keys.total() == len(keys), (name, keys.most_common(3))
    for row in tables["rankings"]:
        assert scores.pop(row["query_id"], 0) == row["num_candidates"], row
    assert not scores, "scores without a ranking"
    if not any(row["status"] == "published" for row in tables["runs"]):
        asked_keys, told_keys = (
            {tuple(row[column] for column in KEYS["windows"]) for row in tables[name]}
            for name in ("windows", "outcomes")
        )
        assert asked_keys == told_keys


def require_kept(before: Committed, after: Committed) -> None:
    """What was committed once stays as it was, to the last bit and clock; publication takes outcomes' log-probabilities.

    Raises:
        AssertionError: a row was lost or changed.
    """
    is_published = any(row["status"] == "published" for row in after.tables["runs"])
    for name in (*KEYS, "quarantine"):
        was, now = before.tables.get(name, []), after.tables[name]
        if name == "outcomes" and is_published:
            was, now = ([row | {"outcome_logprobs": None} for row in rows] for rows in (was, now))
        lost = Counter(map(frozen, was)) - Counter(map(frozen, now))
        assert not lost, f"{name}: {len(lost)} committed rows were lost or changed, e.g. {next(iter(lost))}"


def asked_batches(log: Path) -> list[tuple[tuple[int, ...], ...]]:
    """The prompts of each batch that a start's engines answered, in their order."""
    batches: dict[int, list[tuple[int, ...]]] = {}
    for line in asked(log):
        batches.setdefault(line["batch"], []).append(tuple(line["ids"]))
    return [tuple(batches[number]) for number in sorted(batches)]


def num_begun(log: Path) -> int:
    """How many batches a start's engines were handed, answered or not."""
    path = Path(f"{log}.count")
    return int(path.read_text(encoding="utf-8")) if path.exists() else 0


def processes_of(folder: Path) -> dict[int, str]:
    """The processes whose command line or environment names the folder, by process id."""
    found = {}
    for process in Path("/proc").glob("[0-9]*"):
        try:
            told = (process / "cmdline").read_bytes() + b"\0" + (process / "environ").read_bytes()
        except OSError:
            continue
        if str(folder).encode() in told:
            found[int(process.name)] = told.split(b"\0\0")[0].replace(b"\0", b" ").decode(errors="replace")
    return found


def engines_of(folder: Path) -> list[int]:
    """The process ids of the night's engine children."""
    return [pid for pid, words in processes_of(folder).items() if "tasks.engine.child" in words]


def frozen(row: Row) -> str:
    return json.dumps(row, default=str, sort_keys=True)


def sizes_of(batches: Iterable[tuple[tuple[int, ...], ...]]) -> list[tuple[int, int]]:
    """(prompts, prompt tokens) of each batch."""
    return [(len(prompts), sum(map(len, prompts))) for prompts in batches]
