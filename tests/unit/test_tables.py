"""Tables: folded on a terminal, unpadded in a pipe, values for programs."""

import csv
import io
import json
from datetime import UTC, date, datetime

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console

from tasks.engine.kv_cache import KVCacheGroup, KVCacheLimits
from tasks.report.summary_tables import SummaryTable, Worded, listing, pairs, print_tables, value_text
from tasks.report.table_formats import tables_csv, tables_json, to_markdown

STARTED = datetime(2026, 11, 29, 16, 30, tzinfo=UTC)
STRATEGY = {"name": "cascade", "first": {"name": "pointwise"}, "keep": 30}
PLAN = pairs("Plan", [("run_id", "2026-11-29-x-1"), ("prompt tokens", 12_345), ("strategy", STRATEGY)])
TIMES = SummaryTable(
    "Times, by night",
    ("night", "started_at", "engine time", "share"),
    ((date(2026, 11, 29), STARTED, Worded({"low_s": 60.0, "high_s": 90.5}, "1 to 2 min"), np.float64("nan")),),
)


def drawn(table, width=None):
    """What is printed, on a terminal of a width or in a pipe."""
    stream = io.StringIO()
    print_tables([table], Console(file=stream, width=width, force_terminal=width is not None, color_system=None))
    return stream.getvalue()


def test_programs_get_values_where_people_read_words():
    read = json.loads(tables_json([PLAN, TIMES]))
    rows = list(csv.DictReader(io.StringIO(tables_csv([PLAN, TIMES]))))
    (alone,) = csv.DictReader(io.StringIO(tables_csv([TIMES])))

    assert read["plan"] == {"run_id": "2026-11-29-x-1", "prompt_tokens": 12345, "strategy": STRATEGY}
    assert read["times"] == [
        {
            "night": "2026-11-29",
            "started_at": "2026-11-29T16:30:00+00:00",
            "engine_time": {"low_s": 60.0, "high_s": 90.5},
            "share": "nan",
        }
    ]
    assert rows[1] == {"table": "plan", "row": "1", "column": "prompt_tokens", "value": "12345"}
    assert json.loads(alone["engine_time"]) == read["times"][0]["engine_time"]
    for text in (drawn(PLAN), drawn(TIMES), to_markdown([PLAN])):
        assert "{" not in text
    assert "cascade (first pointwise, keep 30)" in drawn(PLAN)
    assert "2026-11-29 16:30:00 UTC" in drawn(TIMES)


def test_no_cell_is_a_dict_or_a_record():
    limits = KVCacheLimits(91, 128, 256, 2048, 4096, (KVCacheGroup("full_attention", 128),))

    for value in (limits, [STRATEGY], {"a": limits}):
        assert not set(value_text(value)) & set("{}[]=")


@given(
    st.lists(st.lists(st.text("ab 밀,1_", max_size=90) | st.integers(), min_size=6, max_size=6), max_size=8),
    st.lists(st.from_regex(r"[a-z]{1,9}(_[a-z]{1,9}){0,3}", fullmatch=True), min_size=6, max_size=6, unique=True),
    st.integers(40, 140),
)
@settings(deadline=None, max_examples=60)
def test_a_table_fits_any_terminal_and_no_line_ends_in_blanks(rows, names, width):
    table = SummaryTable("T", tuple(names), tuple(map(tuple, rows)), note="Read this. " * 20)

    shown, piped = drawn(table, width), drawn(table)

    assert max(map(cell_len, shown.splitlines())) <= max(width, 80)
    assert [line for line in (shown + piped).splitlines() if line != line.rstrip()] == []
    assert len(piped.splitlines()) >= 4 + len(rows)


@pytest.mark.parametrize("num_rows", [2, 9])
def test_columns_that_do_not_fit_are_named_and_few_rows_are_printed_one_by_one(num_rows):
    rows = [
        {f"column_{number}": "x" * 18 + str(place) for number in range(5)} | {"same": 7} for place in range(num_rows)
    ]
    shown = drawn(listing("Wide, indeed", rows), 80)

    if num_rows == 2:
        assert shown.count("same") == 2
        assert shown.count("xxx0") == 5
    else:
        assert "Left out at 80 columns: column_3, column_4, same (7)." in shown
        assert shown.count("xxx8") == 3
    assert "x" * 18 + "1" in shown


def test_a_long_id_is_whole_and_sentences_fold_around_it():
    run_id = "2026-11-29-a-series-with-a-long-name-1a2b3c4d-r2"
    shown = drawn(listing("Errors", [{"run_id": run_id, "error": "it did not work out " * 9}]), 80)

    assert run_id in shown
    assert len(shown.splitlines()) > 6
