"""A run and its batches as a night's ledger has them, without a night."""

from dataclasses import replace
from datetime import UTC, date, datetime
from pathlib import Path

import pyarrow as pa

from tasks.store.night_store import Store
from tasks.store.runs import Run
from tasks.store.tables import SCHEMAS, BatchId, BatchRows, promptless_batch_row
from tasks.system.database import DatabaseLimits, open_database

RUN = "2026-11-29-test-00000000"
LIMITS = DatabaseLimits("200MB", 1, Path("spill"))


def make_run(**given):
    base = {
        "run_id": RUN,
        "name": "test",
        "night": date(2026, 11, 29),
        "started_at": datetime(2026, 11, 29, 1, 30, tzinfo=UTC),
        "settings": "{}",
        "resolved": "{}",
        "input_digest": "0",
        "model": "m",
        "model_identity": "i",
        "strategy": "sliding",
        "decode_mode": "first_token",
        "versions": "{}",
        "host": "h",
        "recipe": "{}",
    }
    return Run(**(base | given))


def make_tables(batch_no, num_scores=2):
    batch_id = BatchId(RUN, 0, batch_no)
    row = promptless_batch_row(batch_id, datetime(2026, 11, 29, tzinfo=UTC))
    scores = pa.Table.from_pylist(
        [
            {
                "run_id": RUN,
                "query_id": f"q{batch_no}",
                "doc_id": f"d{place}",
                "rank": place + 1,
                "score": 1.0 / (place + 1),
                "score_kind": "reciprocal_rank",
                "first_stage_rank": place + 1,
                "status": "ranked",
            }
            for place in range(num_scores)
        ],
        SCHEMAS["scores"],
    )
    return BatchRows().tables(batch_id, row) | {"scores": scores}


def make_store(folder):
    store = Store(folder / "test.duckdb", replace(LIMITS, temp_directory=folder / "spill"))
    store.prepare()
    store.begin_run(make_run())
    return store


def count(store, table):
    with open_database(store.path, store.limits) as database:
        return database.query_text(f"select count(*) as n from {table}").to_pylist()[0]["n"]
