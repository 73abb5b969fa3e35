"""Reading and staging of what is large."""

import subprocess
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.inputs.candidates import CandidateLimits
from tasks.inputs.staging import open_night_input, stage_input
from tasks.settings import InputSettings
from tasks.system.database import DatabaseLimits
from tasks.system.errors import InputError, OutOfMemory
from tests.makers import make_inputs, write_parquet
from tests.staged import NIGHT, WordTokens, lists, stage


def stage_in_little_memory(tmp_path, doc_ids):
    write_parquet(tmp_path / "queries.parquet", query_id=["q"], text=["x"])
    write_parquet(tmp_path / "documents.parquet", doc_id=["a"], text=["b"])
    rows = {"query_id": pa.repeat("q", len(doc_ids)), "doc_id": doc_ids, "rank": np.arange(1, len(doc_ids) + 1)}
    write_parquet(tmp_path / "candidates.parquet", **rows)
    paths = {name: str(tmp_path / f"{name}.parquet") for name in ("queries", "documents", "candidates")}
    found = open_night_input(InputSettings(**paths), NIGHT)
    limits, memory = CandidateLimits(1, None, 1.0, None, 50), DatabaseLimits("20MB", 2, tmp_path / "spill")
    return stage_input(found, tmp_path / "staging", WordTokens(), limits, 256, memory)


def test_a_pair_that_fills_the_memory_is_an_error_of_the_input_and_other_lists_ask_for_more_memory(tmp_path):
    with pytest.raises(
        InputError, match=r"candidates\.parquet: query 'q' has document 'a' in 1000000 rows.*memory_limit"
    ):
        stage_in_little_memory(tmp_path, pa.repeat("a", 1_000_000))

    with pytest.raises(OutOfMemory, match=r"\[store\] memory_limit: raise it") as told:
        stage_in_little_memory(tmp_path, pa.array(["a", *(f"d{number}" for number in range(1_999_999))]))
    assert "SET memory_limit" not in str(told.value)


def test_a_list_longer_than_can_be_stored_is_refused(tmp_path):
    paths = make_inputs(tmp_path / "in", [65_536], num_words=1)

    with pytest.raises(InputError, match=r"query 'q000' has 65536 candidates, at most 65535.*top_k"):
        stage(tmp_path, paths)
    assert stage(tmp_path, paths, top_k=65_535).num_candidates == 65_535


@pytest.fixture
def paths(tmp_path):
    return make_inputs(tmp_path / "in", [3, 2, 4])


@given(st.permutations(list(range(9))), st.integers(1, 9))
@settings(max_examples=8)
def test_the_order_of_rows_and_row_groups_means_nothing(tmp_path, paths, order, row_group_size):
    plain = lists(stage(tmp_path, paths))
    shuffled = tmp_path / "shuffled.parquet"
    pq.write_table(pq.read_table(paths["inputs.candidates"]).take(order), shuffled, row_group_size=row_group_size)

    assert lists(stage(tmp_path, paths | {"inputs.candidates": str(shuffled)})) == plain


STAGE_BIG = """
import re, sys
from pathlib import Path
from tests.staged import NIGHT, WordTokens, open_night_input, stage_input
from tasks.ranking.query import StagedQuery
from tasks.inputs import token_store
from tasks.inputs.candidates import CandidateLimits
from tasks.system.database import DatabaseLimits
from tasks.settings import InputSettings
from tasks.settings import StoreSettings
folder = Path(sys.argv[1])
found = open_night_input(InputSettings(**{name: str(folder / f"{name}.parquet") for name in ("queries", "documents", "candidates")}), NIGHT)
limits = CandidateLimits(1, None, 0.2, None, 50)
store = StoreSettings()
staged = stage_input(found, folder / "staging", WordTokens(), limits, 64, DatabaseLimits(store.memory_limit, store.threads, folder / "spill"))
status = Path("/proc/self/status").read_text()  # ru_maxrss begins with the parent's
print(staged.num_candidates, int(re.search(r"VmHWM:\\s+(\\d+)", status)[1]) << 10)
"""


@pytest.mark.soak
@pytest.mark.fault(50)
def test_ten_million_candidates_need_less_than_two_gigabytes(tmp_path):
    num_queries, length, num_documents = 100_000, 100, 500_000
    write_parquet(
        tmp_path / "queries.parquet", query_id=[f"q{n:07d}" for n in range(num_queries)], text=["w"] * num_queries
    )
    names = np.char.add("d", np.arange(num_documents).astype(str))
    write_parquet(tmp_path / "documents.parquet", doc_id=names, text=["a b c"] * num_documents)
    schema = pa.schema(
        [("query_id", pa.string()), ("doc_id", pa.string()), ("rank", pa.int32()), ("score", pa.float64())]
    )
    with pq.ParquetWriter(tmp_path / "candidates.parquet", schema) as writer:
        for first in range(0, num_queries, 10_000):
            queries = np.repeat([f"q{n:07d}" for n in range(first, first + 10_000)], length)
            picks = (np.arange(first, first + 10_000)[:, None] * 37 + np.arange(length) * 4_999) % num_documents
            ranks = np.tile(np.arange(1, length + 1, dtype=np.int32), 10_000)
            writer.write_table(
                pa.table(
                    {"query_id": queries, "doc_id": names[picks.ravel()], "rank": ranks, "score": 1.0 / ranks}
                ).cast(schema)
            )

    answer = subprocess.run(
        [sys.executable, "-c", STAGE_BIG, str(tmp_path)], capture_output=True, text=True, check=False
    )

    assert answer.returncode == 0, answer.stderr
    num_candidates, peak_bytes = map(int, answer.stdout.split())
    assert num_candidates == 10_000_000
    assert peak_bytes < 2e9
