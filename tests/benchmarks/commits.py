"""What durability costs: commits to the spool, and the loader that moves them into the database.

    python -m tests.benchmarks.commits [--queries 2000] [--candidates 100] [--prompts 64] [--at-once 10]

Real rows: a night's batches of `--prompts` prompts each (windows of 20, stride 10, `first_token`), caught on their way to
the ledger. Each is committed alone (files written, fsynced, renamed), `--at-once` of them are loaded in one go, with the
checkpoint that ends a load.
"""

import argparse
import time
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pyarrow as pa

from tasks.nightly.prepare import PreparedNight
from tasks.nightly.run_choice import store_of
from tasks.ranking.cohort import Cohort
from tasks.store.night_store import Store
from tasks.store.spool import Spool
from tasks.store.tables import BatchId
from tasks.tools.plan import CacheAssumption, FirstStageEngine, assumed_limits
from tests.benchmarks.common import median, prepare, run_bench, scratch_folder
from tests.benchmarks.generated import write_inputs
from tests.benchmarks.host import RANKING


class _Caught:
    """Keeps batches instead of committing them."""

    def __init__(self) -> None:
        self.batches: list[tuple[BatchId, Mapping[str, pa.Table]]] = []
        self._following = 0

    def next_id(self) -> BatchId:
        self._following += 1
        return BatchId("bench", 0, self._following - 1)

    def commit(self, batch_id: BatchId, tables: Mapping[str, pa.Table]) -> None:
        self.batches.append((batch_id, tables))

    def flush(self) -> None:
        pass


def bench(num_queries: int, num_candidates: int, num_prompts: int, at_once: int):
    with scratch_folder() as folder:
        inputs = write_inputs(folder / "inputs", np.full(num_queries, num_candidates))
        sizes = {"engine.max_num_seqs": num_prompts, "packing.batch_loads": 1}
        prepared = prepare(folder, inputs | RANKING | sizes)
        batches = _catch(prepared, folder)
        store = store_of(prepared)
        store.prepare()
        empty_bytes = store.path.stat().st_size
        commits_s, loads = _commit_and_load(batches, store, Spool(folder / "spool", "bench"), at_once)
        database_bytes = store.path.stat().st_size - empty_bytes
    num_rows = sum(table.num_rows for _, tables in batches for table in tables.values())
    loads_s = [seconds for seconds, _ in loads]
    figures = {
        "batches": len(batches),
        "prompts_a_batch": num_prompts,
        "num_rows": num_rows,
        "batches_a_load": at_once,
        "commit_ms": median([1_000 * each for each in commits_s]),
        "commit_p99_ms": round(float(np.percentile(commits_s, 99)) * 1_000, 3),
        "commits_per_s": round(len(commits_s) / sum(commits_s), 1),
        "load_ms": median([1_000 * each for each in loads_s]),
        "load_ms_a_batch": round(1_000 * sum(loads_s) / len(batches), 3),
        "load_rows_per_s": round(num_rows / sum(loads_s)),
        "database_bytes_a_row": round(database_bytes / num_rows, 1),
        "database_bytes_a_candidate": round(database_bytes / (num_queries * num_candidates), 1),
    }
    by_table = [{"table": name, "rows_a_batch": _rows_a_batch(batches, name)} for name in batches[0][1]]
    return figures, by_table


def _rows_a_batch(batches, table: str) -> float:
    return median([tables[table].num_rows for _, tables in batches])


def _catch(prepared: PreparedNight, folder: Path) -> list[tuple[BatchId, Mapping[str, pa.Table]]]:
    staged, caught = prepared.stage(folder / "staging"), _Caught()
    engine = FirstStageEngine(assumed_limits(prepared, CacheAssumption(27_500, 16)), prepared.recipe)
    cohort = Cohort(staged, prepared.recipe, caught)
    for query_index in range(staged.num_queries):
        cohort.add_query(query_index, [])
    cohort.rank(engine, lambda _: None)
    return caught.batches


def _commit_and_load(batches, store: Store, spool: Spool, at_once: int):
    commits_s, loads = [], []
    for first in range(0, len(batches), at_once):
        for batch_id, tables in batches[first : first + at_once]:
            started = time.monotonic()
            spool.commit(batch_id.shard, batch_id.batch_no, tables)
            commits_s.append(time.monotonic() - started)
        started = time.monotonic()
        num_batches = store.load_spool(spool, "bench")
        loads.append((time.monotonic() - started, num_batches))
    return commits_s, loads


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--queries", type=int, default=2_000)
    parser.add_argument("--candidates", type=int, default=100)
    parser.add_argument("--prompts", type=int, default=64, help="a batch")
    parser.add_argument("--at-once", type=int, default=10, help="batches a load")
    asked = parser.parse_args()
    run_bench("commits", lambda: bench(asked.queries, asked.candidates, asked.prompts, asked.at_once))


if __name__ == "__main__":
    main()
