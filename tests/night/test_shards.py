"""A night in shards: the rows of one without, only what is missing ranked again, nothing asked or kept twice."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from datetime import date
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tasks.errors import AlreadyRunning, CanaryFailed, ConfigError, EngineError, InputError, StoreError
from tasks.keep.shards import ShardFolder, shard_of
from tasks.night import shard_stage
from tasks.night.night import open_night, run_night
from tasks.night.request import NightRequest, prepare_night
from tasks.night.shard import rank_shard
from tests.makers import FAKE_VLLM, ROOT, asked, make_inputs, make_settings, select, value

pytestmark = pytest.mark.slow

LISTS = [0, 1, 2, 5, 9, 12, 7, 4, 3, 6]
ROWS = {
    "scores": "query_id, rank",
    "rankings": "query_id",
    "windows": "query_id, round, window_no, attempt",
    "outcomes": "query_id, round, window_no, attempt",
    "quarantine": "source, query_id, doc_id",
}
TIMES = ("queue_s", "prefill_s", "ttft_s", "tpot_s", "e2el_s", "shard", "batch_no", "run_id", "scores_run_id")


@pytest.fixture
def night(tmp_path, model_folder, fake_vllm):
    """Prepares a night; what is wrong with its input is the same each time."""
    fake_vllm(log=str(tmp_path / "asked"))

    def make(folder, *, shards=2, day=29, request=(), **settings):
        inputs = make_inputs(tmp_path / "in", LISTS)
        spoil(tmp_path / "in")
        values = {name.replace("__", "."): value for name, value in settings.items()} | {"packing.shards": shards}
        (tmp_path / folder).mkdir(exist_ok=True)
        limits = {"checks.max_unmatched_share": 0.9, "checks.max_quarantined_share": 0.9}
        config = make_settings(tmp_path / folder, model_folder, inputs | limits | values)
        return prepare_night(NightRequest(config=config, night=date(2026, 11, day), **dict(request)))

    return make


def spoil(folder):
    """Rows that are set aside or repaired: unknown and null ids, blank and double texts, double candidates."""
    queries = pq.read_table(folder / "queries.parquet").to_pylist()
    queries += [{"query_id": "blank", "text": " "}, queries[4]]
    documents = pq.read_table(folder / "documents.parquet").to_pylist()
    documents += [documents[3], documents[3], {"doc_id": "empty", "text": "", "title": None}]
    candidates = pq.read_table(folder / "candidates.parquet").to_pylist()
    for query in ("q004", "q005", "blank", "unknown1", "unknown2", "unknown3", None):
        candidates += [
            {"query_id": query, "doc_id": doc, "rank": 90, "score": None} for doc in ("d0001", "empty", "d9")
        ]
    for name, rows in (("queries", queries), ("documents", documents), ("candidates", candidates)):
        schema = pq.read_schema(folder / f"{name}.parquet")
        pq.write_table(pa.Table.from_pylist(rows, schema), folder / f"{name}.parquet")


def all_rows(prepared):
    found = {}
    for table, order in ROWS.items():
        rows = select(prepared, f"select * from {table} order by {order}")
        found[table] = [{name: each for name, each in row.items() if name not in TIMES} for row in rows]
    (run,) = select(prepared, "select num_queries, num_candidates, input_notes::varchar as notes, device from runs")
    return found | {"run": run | {"notes": json.loads(run["notes"])}}


def num_asked_twice(tmp_path):
    keys = [tuple(each["ids"]) for each in asked(tmp_path / "asked")]
    return len(keys) - len(set(keys))


@pytest.mark.parametrize("shards", [2, 5])
def test_shards_have_the_rows_of_a_night_without(night, tmp_path, shards):
    whole = night("whole", shards=1)
    run_night(whole)
    num_whole = len(asked(tmp_path / "asked"))

    sharded = night("sharded", shards=shards, checks__canary="warn")
    run_id = run_night(sharded)

    assert run_id == value(whole, "select run_id from runs")
    expected, found = all_rows(whole), all_rows(sharded)
    assert expected["run"]["notes"].keys() == {
        *("duplicate documents", "duplicate queries", "candidates with a tied rank", "candidates without a score"),
    }
    for table in expected:
        assert found[table] == expected[table], table
    assert {row["shard"] for row in select(sharded, "select shard from batches")} == set(range(shards))
    assert len(asked(tmp_path / "asked")) >= 2 * num_whole
    assert not (sharded.settings.spool_folder / run_id).exists()
    assert not list((sharded.work_folder / "shards").rglob("*.*"))
    assert value(sharded, "select count(*) from check_results where not passed") == 0
    assert value(sharded, "select count(*) from canaries") == 5
