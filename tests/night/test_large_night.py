"""A night of many rows: memory is a cohort's, and the first scores are stored long before the last prompt is made."""

import json
import subprocess
import sys

import numpy as np
import pytest

from tests.makers import make_settings, make_text, write_parquet

NUM_QUERIES, LENGTH, NUM_DOCUMENTS = 3_000, 100, 20_000

RANK = """
import json, re, sys
from datetime import date
from pathlib import Path
from tasks.nightly.night import run_night
from tasks.nightly.prepare import NightRequest, prepare_night
from tests.makers import select
prepared = prepare_night(NightRequest(config=Path(sys.argv[1]), night=date(2026, 11, 29)))
run_night(prepared)
peak_kb = re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1]
batches = select(prepared, "select num_prompts, epoch(submitted_at) as submitted, epoch(finished_at) as finished from "
                 "batches where num_prompts > 0 order by batch_no")
rows = select(prepared, "select count(*) as scores, count(distinct query_id) as queries from scores")[0]
print(json.dumps({"peak_mb": int(peak_kb) >> 10, "batches": batches} | rows))
"""


@pytest.mark.soak
@pytest.mark.fault(49)
def test_three_hundred_thousand_candidates_are_ranked_in_bounded_memory_cohort_by_cohort(
    tmp_path, model_folder, fake_vllm
):
    queries = np.array([f"q{number:05d}" for number in range(NUM_QUERIES)])
    documents = np.array([f"d{number:05d}" for number in range(NUM_DOCUMENTS)])
    picks = (np.arange(NUM_QUERIES)[:, None] * 37 + np.arange(LENGTH) * 199) % NUM_DOCUMENTS
    texts = [make_text(number) for number in range(50)]
    paths = {
        "queries": write_parquet(tmp_path / "q.parquet", query_id=queries, text=["what is it"] * NUM_QUERIES),
        "documents": write_parquet(
            tmp_path / "d.parquet", doc_id=documents, text=[texts[number % 50] for number in range(NUM_DOCUMENTS)]
        ),
        "candidates": write_parquet(
            tmp_path / "c.parquet",
            query_id=np.repeat(queries, LENGTH),
            doc_id=documents[picks.ravel()],
            rank=np.tile(np.arange(1, LENGTH + 1), NUM_QUERIES),
        ),
    }
    values = {f"inputs.{name}": str(path) for name, path in paths.items()}
    values |= {"strategy.name": "single", "strategy.depth": 4, "strategy.stride": None, "packing.cohort_queries": 500}
    config = make_settings(tmp_path, model_folder, values)

    answer = subprocess.run(
        [sys.executable, "-c", RANK, str(config)], capture_output=True, text=True, check=False, timeout=600
    )

    assert answer.returncode == 0, answer.stderr[-2000:]
    found = json.loads(answer.stdout)
    assert (found["scores"], found["queries"]) == (NUM_QUERIES * LENGTH, NUM_QUERIES)
    assert sum(batch["num_prompts"] for batch in found["batches"]) == NUM_QUERIES
    assert max(batch["num_prompts"] for batch in found["batches"]) <= 500
    assert found["batches"][0]["finished"] < found["batches"][-1]["submitted"]
    assert found["peak_mb"] < 800
