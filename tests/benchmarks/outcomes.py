"""What the windows' answers of a published night take in the database: `[store.keep_outcomes]`.

    python -m tests.benchmarks.outcomes [--queries 60] [--candidates 100] [--copies 100]

Nights on the fake engine, published once without and once with log-probabilities; its log-probabilities are drawn, so they
compress as little as a model's. DuckDB's files grow by 256 KiB, hence the answers of each night are written --copies times,
as so many runs, into a database of their own, whose bytes are then those of the table alone.
"""

import argparse
import os
from pathlib import Path

import duckdb
import numpy as np

from tasks.nightly.night import run_night
from tests.benchmarks.common import fake_engine, prepare, run_bench, scratch_folder
from tests.benchmarks.generated import write_inputs
from tests.benchmarks.host import RANKING
from tests.makers import value

NO_LIMIT = {f"checks.max_{name}_share": 1.0 for name in ("fallback", "partial", "constant", "as_given")}
NIGHTS = [  # window, stride, decode mode, whether log-probabilities are kept
    *((20, 10, "first_token", kept) for kept in (False, True)),
    *((5, 2, "first_token", kept) for kept in (False, True)),
    (20, 10, "permutation", False),
]


def bench(num_queries: int, num_candidates: int, copies: int):
    os.environ.update(fake_engine(num_gpu_blocks=8_000))  # the engine children of this process
    rows = []
    with scratch_folder() as folder:
        inputs = write_inputs(folder / "inputs", np.full(num_queries, num_candidates))
        for number, (window, stride, mode, kept) in enumerate(NIGHTS):
            asked = {"strategy.window_size": window, "strategy.stride": stride, "strategy.decode_mode": mode}
            values = inputs | RANKING | NO_LIMIT | asked | {"store.keep_outcomes.logprobs": kept}
            prepared = prepare(folder / str(number), values, publish=True)
            run_night(prepared)
            num_windows = value(prepared, "select count(*) from outcomes")
            held = _bytes_of(prepared.settings.database_path, folder / f"{number}.duckdb", copies)
            rows.append(
                {"window": window, "decode_mode": mode, "logprobs": kept, "windows": num_windows}
                | {"bytes_a_window": round(held / (copies * num_windows), 1)}
            )
    largest = max(row["bytes_a_window"] for row in rows)
    return {"queries": num_queries, "copies": copies, "largest_bytes_a_window": largest}, rows


def _bytes_of(database: Path, output: Path, copies: int) -> int:
    """Of the table `outcomes` with so many copies of its rows, one run after the other."""
    with duckdb.connect(str(output)) as connection:
        connection.execute("checkpoint")
    empty = output.stat().st_size
    with duckdb.connect(str(output)) as connection:
        connection.execute(f"attach '{database}' as nights (read_only)")
        connection.execute("create table outcomes as select * from nights.outcomes limit 0")
        for copy in range(copies):
            connection.execute(
                "insert into outcomes select * replace (run_id || '-r' || $1 as run_id) from nights.outcomes", [copy]
            )
        connection.execute("checkpoint")
    return output.stat().st_size - empty


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--queries", type=int, default=60)
    parser.add_argument("--candidates", type=int, default=100)
    parser.add_argument("--copies", type=int, default=100)
    asked = parser.parse_args()
    run_bench("outcomes", lambda: bench(asked.queries, asked.candidates, asked.copies))


if __name__ == "__main__":
    main()
