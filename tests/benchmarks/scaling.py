"""The host's part of a night from 10^3 to 10^6 candidates, or 10^7: is it linear, and is its memory bounded?

    python -m tests.benchmarks.scaling [--most 6] [--candidates 100]

Lists of 100; see `tests.benchmarks.host` for what is measured. `--most 7` takes 4 GB of disk under `var/bench`.
"""

import argparse

from tests.benchmarks.common import run_bench
from tests.benchmarks.host import KEPT, measure

SHOWN = ("night_s", "stage_s", "rank_s", "check_s", "publish_s", "night_cpu_s", "peak_mb", "database_mb")


def bench(most: int, num_candidates: int):
    rows = []
    for power in range(3, most + 1):
        seen = measure(10**power // num_candidates, num_candidates, KEPT)
        row = {"candidates": 10**power, "candidates_per_s": round(seen["candidates_per_s"])}
        row |= {name: round(seen[name], 2) for name in SHOWN}
        rows.append(row | {"passages_per_s": round(seen["passages_per_s"]), "ratio": round(seen["ratio"], 3)})
    return {"candidates_a_query": num_candidates}, rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--most", type=int, default=6, help="the largest power of ten")
    parser.add_argument("--candidates", type=int, default=100)
    asked = parser.parse_args()
    run_bench("scaling", lambda: bench(asked.most, asked.candidates))


if __name__ == "__main__":
    main()
