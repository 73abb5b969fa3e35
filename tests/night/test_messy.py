"""Every case of the dirty collection leads to what its manifest says: error, quarantine or accept.

An error stops before an engine was asked, and before one could start unless it lies in the passages themselves, which
are read while the model loads. What is taken is also run to its end, on the real night but for the engine
child, which answers at once: every list is then a permutation of its remaining candidates.
"""

import json
import os
import re
from collections import Counter, defaultdict
from datetime import date

import pyarrow.parquet as pq
import pytest

from tasks.nightly.night import run_night
from tasks.nightly.prepare import NightRequest, prepare_night
from tasks.nightly.run_choice import store_of
from tasks.system.errors import InputError
from tests.conftest import find_test_data
from tests.makers import make_settings
from tests.processes import engines_of
from tests.staged import stage

SOURCES = ("queries", "documents", "candidates")


def load_manifest(soak_but=("",)):
    """The items; in `make test` those with one of the words in their path."""
    folder = find_test_data()
    if folder is None:
        return [pytest.param(None, marks=pytest.mark.skip(reason="no test collections: set PACKRANK_TEST_DATA"))]
    items = json.loads((folder / "messy" / "manifest.json").read_text(encoding="utf-8"))["items"]
    return [
        pytest.param(
            item,
            id=f"{item['path']}-{item['expect']}",
            marks=[] if any(words in item["path"] for words in soak_but) else [pytest.mark.soak],
        )
        for item in items
    ]


def input_paths(folder, item):
    if "nested" in item["path"]:
        return {"inputs.nested": str(folder / item["path"])}
    paths = {f"inputs.{source}": str(folder / "base" / f"{source}.parquet") for source in SOURCES}
    paths[f"inputs.{item['replaces']}"] = str(folder / item["path"])
    for other in filter(None, item.get("use_with", "").split(", ")):
        source = next(source for source in SOURCES if source in other)
        paths[f"inputs.{source}"] = str(folder / other)
    return paths


EXPECTED_WORDS = {  # beyond the file's name: what the row's message must name
    "queries/null_id.parquet": ["query_id", "1 of 8"],
    "queries/no_text_column.parquet": ["'text'", "query_id"],
    "queries/column_case.parquet": ["'query_id'", "Query_ID, TEXT", 'query_id = "Query_ID"'],
    "queries/duplicate_column.parquet": ["2 columns", "'text'"],
    "queries/binary.parquet": ["binary", "8 rows"],
    "queries/int_ids.parquet": ["int64", "string", "base/candidates.parquet", "0 of 80"],
    "candidates/all_docs_unknown.parquet": ["0 of 80", "base/documents.parquet"],
    "candidates/rank_and_score_missing.parquet": ["'rank'", "'score'", "80 rows"],
    "candidates/rank_zero_based.parquet": ["'rank'", "smallest 0", "8 of 80"],
    "candidates/score_string.parquet": ["'score'", "string", "80 rows"],
    "candidates/int_ids.parquet": ["int64", "string", "0 of 80"],
    "documents/duplicate_id_other_text.parquet": ["'d0003'", "2 rows"],
    "documents/int_ids.parquet": ["int64", "string", "0 of 80"],
    "files/zero_bytes.parquet": ["0 bytes"],
    "files/not_parquet.parquet": ["not a Parquet file"],
    "files/schema_only.parquet": ["0 rows"],
    "files/empty_row_group.parquet": ["0 rows"],
    "hive_column_clash/": ["'dt'", "2026-11-27", "2026-11-28", "80 rows"],
    "drift_missing_column/": ["part-1", "'score'", "40 rows"],
    "one_bad_part/": ["part-1"],
}

EXPECTED_QUARANTINE = {  # rows by (source, reason)
    "queries/null_text.parquet": {("queries", "null query text"): 1, ("candidates", "null query text"): 10},
    "queries/empty_text.parquet": {("queries", "empty query text"): 1, ("candidates", "empty query text"): 10},
    "queries/long_text.parquet": {("queries", "query too long"): 1, ("candidates", "query too long"): 10},
    "candidates/unknown_doc.parquet": {("candidates", "document not found"): 3},
    "candidates/unknown_query.parquet": {("candidates", "query not found"): 10},
    "candidates/query_without_candidates.parquet": {("queries", "no candidates"): 1},
    "candidates/null_query_id.parquet": {("candidates", "null query_id"): 2},
    "documents/null_text.parquet": {("candidates", "null document text"): 4},
    "documents/empty_text.parquet": {("candidates", "empty document text"): 4},
}

EXPECTED_NOTES = {
    "queries/duplicate_id_same_text.parquet": {"duplicate queries": 1},
    "candidates/duplicate_pair_same.parquet": {"duplicate candidates": 4},
    "candidates/rank_int64_nulls.parquet": {"lists ordered by score, a rank was null": 3},
    "candidates/rank_ties_and_gaps.parquet": {"candidates with a tied rank": 4},
    "candidates/score_null.parquet": {"candidates without a score": 4},
    "documents/duplicate_id_same_text.parquet": {"duplicate documents": 1},
}

FOUND_IN_PASSAGES = {"files/silent_corruption.parquet"}

SAME_AS_BASE = re.compile(
    r"extra_columns|pandas_index|large_string|dictionary|duplicate_(id|pair)_same|int_ids|rank_int64|rank_missing|score_|"
    r"unsorted|nested.parquet|hive|drift_|codecs|column_order"
)


@pytest.mark.fault(19, 21, 22, 23, 24, 25, 30, 31, 52, 53, 54, 55, 56, 78)
@pytest.mark.parametrize("item", load_manifest())
def test_a_messy_input_leads_to_what_its_manifest_says(item, collections, tmp_path):
    paths = input_paths(collections / "messy", item)
    if item["expect"] == "error":
        with pytest.raises(InputError) as refused:
            stage(tmp_path, paths)
        message = str(refused.value)
        assert item["path"].rstrip("/") in message
        assert [words for words in EXPECTED_WORDS.get(item["path"], []) if words not in message] == []
        return

    staged = stage(tmp_path, paths)

    aside = Counter((row["source"], row["reason"]) for row in staged.quarantine.to_pylist())
    assert dict(aside) == EXPECTED_QUARANTINE.get(item["path"], {})
    assert (item["expect"] == "quarantine") == bool(aside)
    assert staged.notes == EXPECTED_NOTES.get(item["path"], {})
    if SAME_AS_BASE.search(item["path"]):
        assert first_stage_of(staged) == base_order(collections / "messy", as_integers="int_ids" in item["path"])


IN_A_NIGHT = (
    "silent_corruption",
    "all_docs_unknown",
    "nested",
    "rank_ties",
    "queries/null_text",
    "documents/empty_text",
)


@pytest.mark.parametrize("item", load_manifest(soak_but=IN_A_NIGHT))
def test_a_messy_input_ends_as_an_error_before_the_engine_or_as_a_complete_run(
    item, collections, model_folder, fake_vllm, tmp_path
):
    config = make_settings(tmp_path, model_folder, input_paths(collections / "messy", item))
    request = NightRequest(config=config, night=date(2026, 11, 29))
    if item["expect"] == "error":
        with pytest.raises(InputError):
            run_night(prepare_night(request))
        assert bool(list(tmp_path.rglob("*.engine.log"))) == (item["path"] in FOUND_IN_PASSAGES)
        assert engines_of(os.getpid()) == []
        assert not list(tmp_path.rglob("batches.parquet"))
        return

    prepared = prepare_night(request)
    run_night(prepared)

    ranks = defaultdict(list)
    with store_of(prepared).unit_of_work() as database:
        (run,) = database.query_text("select status from runs").to_pylist()
        for row in database.query_text("select query_id, rank from scores").to_pylist():
            ranks[row["query_id"]].append(row["rank"])
    assert run["status"] == "complete"
    assert ranks
    assert all(sorted(each) == list(range(1, len(each) + 1)) for each in ranks.values())


def first_stage_of(staged):
    doc_ids = staged.doc_ids.to_pylist()
    return {
        (query_id, doc_ids[staged.doc_index[row]]): int(row - staged.offsets[place] + 1)
        for place, query_id in enumerate(staged.query_ids)
        for row in range(staged.offsets[place], staged.offsets[place + 1])
    }


def base_order(folder, *, as_integers):
    rows = pq.read_table(folder / "base" / "candidates.parquet").to_pylist()

    def name(text):
        return str(int(text.removeprefix("d"))) if as_integers else text

    return {(name(row["query_id"]), name(row["doc_id"])): row["rank"] for row in rows}
