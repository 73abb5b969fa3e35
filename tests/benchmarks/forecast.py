"""Forecasts against what nights took: one calibration of a minute, then three nights on the same engine settings.

    python -m tests.benchmarks.forecast [--data /path/to/dl19] [--queries 43] [--seconds 60]

`--data` has queries, documents and candidates as Parquet; the test collections' DL19 if not given. List-wise prompts are
measured; the nights are list-wise in few rounds, point-wise, and list-wise with windows that depend on the model's
answers. `ratio` is actual / expected.
"""

import argparse
from pathlib import Path

from tasks.nightly.night import run_night
from tasks.nightly.outlook import rates_path
from tasks.nightly.prepare import NightRequest, prepare_night
from tasks.tools.rates_bench import calibrate, write_rates
from tests.benchmarks.common import NotHere, run_bench, sample_model, scratch_folder
from tests.conftest import find_test_data
from tests.makers import select

SETTINGS = """preset = "sample"

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
LISTWISE = {"strategy.window_size": 20, "strategy.decode_mode": "first_token"}
NIGHTS = {
    "sliding 20/10, depth 30": LISTWISE | {"strategy.name": "sliding", "strategy.depth": 30},
    "pointwise yes_no, depth 20": {
        "strategy.name": "pointwise",
        "strategy.decode_mode": "yes_no",
        "strategy.depth": 20,
    },
    "tdpart 20, depth 30": LISTWISE | {"strategy.name": "tdpart", "strategy.depth": 30},
}


def bench(data: Path | None, limit_queries: int, seconds: float):
    if data is None or not data.is_dir():
        raise NotHere("no dl19 among the test collections: give --data, or set PACKRANK_TEST_DATA to their folder")
    sample_model()
    with scratch_folder() as folder:
        config = folder / "forecast.toml"
        config.write_text(SETTINGS.format(data=data.absolute(), folder=folder), encoding="utf-8")
        first = prepare_night(NightRequest(config=config, overrides=next(iter(NIGHTS.values()))))
        rates = calibrate(first, seconds)
        write_rates(rates, rates_path(first))
        rows = [{"night": name} | _night(config, overrides, limit_queries) for name, overrides in NIGHTS.items()]
    largest = max(abs(row["ratio"] - 1) for row in rows)
    told = rates.model_dump(exclude_none=True, mode="json")
    return {"queries": limit_queries, "calibrated_s": seconds, "largest_error": round(largest, 3), "rates": told}, rows


def _night(config: Path, overrides: dict[str, object], limit_queries: int):
    prepared = prepare_night(NightRequest(config=config, overrides=overrides, limit_queries=limit_queries))
    run_id = run_night(prepared)
    (row,) = select(
        prepared,
        "select low_s, expected_s, high_s, actual_s, engine_s, num_windows, prompt_tokens, elapsed_s "
        f"from forecasts join run_summary using (run_id, actual_s) where run_id = '{run_id}'",
    )
    shown = {name: round(value, 2) for name, value in row.items()}
    return shown | {"ratio": round(row["actual_s"] / row["expected_s"], 3)}


def main() -> None:
    found = find_test_data()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=None if found is None else found / "dl19")
    parser.add_argument("--queries", type=int, default=43)
    parser.add_argument("--seconds", type=float, default=60.0)
    asked = parser.parse_args()
    run_bench("forecast", lambda: bench(asked.data, asked.queries, asked.seconds))


if __name__ == "__main__":
    main()
