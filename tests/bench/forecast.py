"""Forecasts against what nights took: one calibration of a minute, then three nights on the same engine settings.

    python -m tests.bench.forecast --data /path/to/dl19 [--queries 43]

`--data` has queries, documents and candidates as Parquet. List-wise prompts are measured; the nights are list-wise in
few rounds, point-wise, and list-wise with windows that depend on the model's answers. Prints a table and one JSON line;
`ratio` is actual / expected.
"""

import argparse
import json
import tempfile
from datetime import UTC, datetime
from pathlib import Path

from tasks.night.calibration import calibrate, write_rates
from tasks.night.night import run_night
from tasks.night.outlook import rates_path
from tasks.night.request import NightRequest, prepare_night
from tasks.night.runs import store_of

SETTINGS = """preset = "configs/models/sample.toml"

[inputs]
queries = "{data}/queries.parquet"
documents = "{data}/documents.parquet"
candidates = "{data}/candidates.parquet"

[engine]
model = "models/sample"
max_model_len = 4096

[store]
database = "{folder}/forecast.duckdb"

[checks]
canary = "off"
"""
LISTWISE = {"strategy.window_size": 20}
NIGHTS = {
    "sliding 20/10, depth 30": LISTWISE | {"strategy.name": "sliding", "strategy.depth": 30},
    "pointwise yes_no, depth 20": {
        "strategy.name": "pointwise",
        "strategy.decode_mode": "yes_no",
        "strategy.depth": 20,
    },
    "tdpart 20, depth 30": LISTWISE | {"strategy.name": "tdpart", "strategy.depth": 30},
}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--queries", type=int, default=43)
    parser.add_argument("--seconds", type=float, default=60.0)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="packrank-forecast-") as scratch:
        config = Path(scratch) / "forecast.toml"
        config.write_text(SETTINGS.format(data=given.data.absolute(), folder=scratch), encoding="utf-8")
        first = prepare_night(NightRequest(config=config, overrides=next(iter(NIGHTS.values()))))
        rates = calibrate(first, given.seconds)
        write_rates(rates, rates_path(first))
        found = [night(config, overrides, given.queries) for overrides in NIGHTS.values()]
    print(f"{'strategy':>28} {'low_s':>8} {'expected_s':>10} {'high_s':>8} {'actual_s':>8} {'ratio':>6}")
    for name, row in zip(NIGHTS, found, strict=True):
        values = (row[key] for key in ("low_s", "expected_s", "high_s", "actual_s"))
        print(f"{name:>28} " + " ".join(f"{value:8.1f}" for value in values) + f" {row['ratio']:6.3f}")
    document = {"bench": "forecast", "at": datetime.now(UTC).isoformat(timespec="seconds"), "queries": given.queries}
    print(
        json.dumps(
            document | {"rates": rates.model_dump(exclude_none=True), "nights": dict(zip(NIGHTS, found, strict=True))}
        )
    )


def night(config, overrides, limit_queries):
    prepared = prepare_night(NightRequest(config=config, overrides=overrides, limit_queries=limit_queries))
    run_id = run_night(prepared)
    with store_of(prepared).unit_of_work() as database:
        (row,) = database.query_text(
            "select low_s, expected_s, high_s, actual_s, engine_s, num_windows, prompt_tokens, elapsed_s "
            "from forecasts join run_summary using (run_id, actual_s) where run_id = $run_id",
            {"run_id": run_id},
        ).to_pylist()
    return {name: round(value, 3) for name, value in row.items()} | {
        "ratio": round(row["actual_s"] / row["expected_s"], 4)
    }


if __name__ == "__main__":
    main()
