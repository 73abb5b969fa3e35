"""Which files behind a path are a night's: dates in every usual form, folders that are not understood, links, tables."""

import os
import re
from datetime import date, datetime, timedelta

import fsspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.inputs.locations import Wanted, locate
from tasks.inputs.partitions import NightFolders, choose_partition, is_same_value
from tasks.system.errors import ConfigError, InputError, InputNotReady
from tests.makers import make_inputs, write_parquet
from tests.staged import NIGHT, stage

FORMS = {
    "iso": "dt=%Y-%m-%d",
    "compact": "dt=%Y%m%d",
    "underscores": "day=%Y_%m_%d",
    "timestamp, escaped": "ts=%Y-%m-%d 03%%3A15%%3A00",
    "timestamp, T and Z": "run_time=%Y-%m-%dT03:15:00Z",
    "timestamp, compact": "snapshot=%Y%m%dT031500",
    "slashes, escaped": "date=%Y%%2F%m%%2F%d",
    "steps": "year=%Y/month=%m/day=%d",
    "steps, short": "y=%Y/m=%m/d=%d/hour=03",
    "steps, prefixed": "event_year=%Y/event_month=%m/event_day=%d",
    "plain": "%Y-%m-%d",
    "plain, compact": "%Y%m%d",
    "plain, steps": "%Y/%m/%d",
    "plain, named": "candidates_%Y-%m-%d",
    "plain, month and day": "%Y-%m/%Y-%m-%d",
    "below a key": "lang=ko/dt=%Y-%m-%d",
    "above a key": "dt=%Y-%m-%d/lang=ko",
    "above parts": "dt=%Y%m%d/part-0",
}


def touch(root, *names):
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()
    return str(root)


def found(path, **wanted):
    located = locate("candidates", str(path), Wanted(NIGHT, **wanted))
    return [located.relative(each) for each in located.paths], located.partition


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS.keys())
@given(days=st.sets(st.integers(-400, 30), min_size=1, max_size=5))
@settings(max_examples=15)
def test_of_dated_folders_the_newest_not_after_the_night_is_taken_whatever_the_form(form, days):
    nights = {NIGHT + timedelta(days=each) for each in days}
    folders = {night: tuple(night.strftime(form).split("/")) for night in nights}
    asked = NightFolders(NIGHT, None, may_be_older=True, is_glob=False)
    before = [night for night in nights if night <= NIGHT]
    if not before:
        with pytest.raises(InputNotReady, match=f"up to the night {NIGHT}"):
            choose_partition("candidates: c", folders, asked)
        return

    chosen = choose_partition("candidates: c", folders, asked)

    assert list(chosen) == [max(before)]
    assert chosen[max(before)].name in max(before).strftime(form)
    if max(before) < NIGHT:
        with pytest.raises(InputNotReady, match=f"the newest before it is {max(before)}"):
            choose_partition("candidates: c", folders, NightFolders(NIGHT, None, may_be_older=False, is_glob=False))


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS.keys())
def test_a_night_may_be_named_by_its_folder_in_every_form(tmp_path, form):
    names = [(NIGHT - timedelta(days=each)).strftime(form) for each in range(3)]
    root = touch(tmp_path, *[f"{name}/p.parquet" for name in names])
    _, newest = found(root)

    assert found(root, partition=newest) == found(root)
    assert found(root, partition=names[1])[0] == [f"{names[1]}/p.parquet"]
    with pytest.raises(InputNotReady, match="no partition"):
        found(root, partition=datetime(2020, 1, 1).strftime(form))


def test_months_hours_and_times_of_day(tmp_path):
    monthly = touch(tmp_path / "m", "month=2026-10/p.parquet", "month=2026-11/p.parquet", "month=2026-12/p.parquet")
    hourly = touch(tmp_path / "h", *[f"2026/11/{day}/{hour:02d}/p.parquet" for day in (28, 29) for hour in range(3)])
    again = touch(
        tmp_path / "t", "ts=2026-11-29T01/p.parquet", "ts=2026-11-29T02/p.parquet", "ts=2026-11-28T05/p.parquet"
    )

    assert found(monthly) == (["month=2026-11/p.parquet"], "month=2026-11")
    assert found(monthly, may_be_older=False)[1] == "month=2026-11"
    assert found(hourly) == ([f"2026/11/29/{hour:02d}/p.parquet" for hour in range(3)], "2026/11/29")
    assert found(again) == (["ts=2026-11-29T02/p.parquet"], "ts=2026-11-29T02")


def test_other_keys_and_parts_are_one_data_set(tmp_path):
    keys = touch(tmp_path / "k", "lang=ko/p.parquet", "lang=en/p.parquet", "lang=__HIVE_DEFAULT_PARTITION__/p.parquet")
    parts = touch(
        tmp_path / "p", "part-0/p.parquet", "part-1/p.parquet", "q.parquet", "x.parquet/part-0.snappy.parquet"
    )
    null = touch(tmp_path / "n", "dt=2026-11-28/p.parquet", "dt=__HIVE_DEFAULT_PARTITION__/p.parquet")
    only = touch(tmp_path / "o", "data/train/p.parquet", "data/train/q.PARQUET")

    assert [len(found(each)[0]) for each in (keys, parts, null, only)] == [3, 4, 1, 2]
    assert found(keys, partition="lang=ko") == (["lang=ko/p.parquet"], "lang=ko")
    assert found(null)[1] == "dt=2026-11-28"


NOT_UNDERSTOOD = {
    "day first": ("28.11.2026/p.parquet", "29.11.2026/p.parquet"),
    "weeks": ("week=2026-W47/p.parquet", "week=2026-W48/p.parquet"),
    "seconds": ("x=1764288000/p.parquet", "x=1764374400/p.parquet"),
    "months by name": ("day=28-Nov-2026/p.parquet", "day=29-Nov-2026/p.parquet"),
    "no such day": ("dt=2026-11-31/p.parquet", "dt=2026-13-01/p.parquet"),
    "versions": ("v1/p.parquet", "v2/p.parquet"),
    "runs": ("run_id=a/p.parquet", "run_id=b/p.parquet"),
    "beside files": ("p.parquet", "old/p.parquet"),
    "two snapshots of a day": ("dt=2026-11-29/run=1/p.parquet", "dt=2026-11-29/run=2/p.parquet"),
    "two runs above a day": ("run=1/dt=2026-11-29/p.parquet", "run=2/dt=2026-11-29/p.parquet"),
}


@pytest.mark.parametrize("names", NOT_UNDERSTOOD.values(), ids=NOT_UNDERSTOOD.keys())
def test_folders_that_are_not_understood_are_never_read_as_one(tmp_path, names):
    root = touch(tmp_path, *names)

    with pytest.raises(
        InputError, match=r"sub-folders whose names are no date .* \[inputs\] partition = '.*glob"
    ) as told:
        found(root)
    partition = re.search(r"partition = '([^']*)'", str(told.value))[1]

    assert len(found(root, partition=partition)[0]) == 1
    assert len(found(f"{root}/**/*.parquet")[0]) == 2  # named one by one
    assert found(f"{root}/{names[0]}")[0] == ["p.parquet"]


def test_files_beside_dated_folders_two_forms_of_a_night_and_dated_files_are_refused(tmp_path):
    beside = touch(tmp_path / "b", "p.parquet", "dt=2026-11-29/p.parquet", "dt=2026-11-28/p.parquet")
    twice = touch(tmp_path / "t", "dt=2026-11-29/p.parquet", "dt=20261129/p.parquet")
    files = touch(tmp_path / "f", "c_2026-11-28.parquet", "c_2026-11-29-0.parquet", "c_2026-11-29-1.snappy.parquet")

    with pytest.raises(InputError, match=r"1 of 3 files are not in a folder with a date.*b/p.parquet"):
        found(beside)
    with pytest.raises(InputError, match="dt=2026-11-29 and dt=20261129 are the same night"):
        found(twice)
    with pytest.raises(InputError, match=r"named after 2 dates \(2026-11-28 to 2026-11-29\)"):
        found(files)
    assert len(found(f"{files}/*29*.parquet")[0]) == 2


def test_an_input_without_the_given_partition_is_read_by_its_own_dates(tmp_path):
    """Queries by dt=, documents by month: the partition of one says nothing of the other."""
    root = touch(tmp_path, "month=2026-10/p.parquet", "month=2026-11/p.parquet")

    assert found(root, partition="dt=2026-10-03") == (["month=2026-11/p.parquet"], "month=2026-11")


@pytest.mark.parametrize(
    ("folder", "inside", "is_same"),
    [
        ("20261128", "2026-11-28", True),
        ("2026-11-28 03%3A00%3A00", "2026-11-28 03:00:00", True),
        ("2026-11-28", "2026-11-28 13:05:09", True),
        ("01", "1", True),
        ("ko%20KR", "ko KR", True),
        ("20261128", "2026-11-29", False),
        ("01", "10", False),
        ("ko", "en", False),
    ],
)
def test_a_column_is_held_against_what_its_folder_means(folder, inside, is_same):
    assert is_same_value(folder, inside) == is_same


def test_a_partition_in_steps_is_staged_and_recorded(tmp_path):
    rows = {"query_id": ["q000"], "doc_id": ["d0000"], "rank": [1], "month": [11], "day": [8]}
    for day in ("08", "09"):
        write_parquet(tmp_path / f"c/year=2026/month=11/day={day}/p.parquet", **(rows | {"day": [int(day)]}))
    given = make_inputs(tmp_path / "in", [3]) | {"inputs.candidates": str(tmp_path / "c")}

    assert stage(tmp_path, given).num_candidates == 1
    assert stage(tmp_path, given, partition="year=2026/month=11/day=08").num_candidates == 1
    with pytest.raises(ConfigError, match="no input has folders of that name"):
        stage(tmp_path, given, partition="2026-11-08")


def test_folders_that_are_links_are_read(tmp_path):
    elsewhere = tmp_path / "elsewhere"
    touch(elsewhere, "b/p.parquet", "night/p.parquet")
    parts = touch(tmp_path / "parts", "part-a/p.parquet")
    os.symlink(elsewhere / "b", tmp_path / "parts/part-b")
    nights = touch(tmp_path / "nights", "dt=2026-11-28/p.parquet")
    os.symlink(elsewhere / "night", tmp_path / "nights/dt=2026-11-29")
    os.symlink("dt=2026-11-29", tmp_path / "nights/latest")

    assert found(parts)[0] == found(f"{parts}/*/*.parquet")[0] == ["part-a/p.parquet", "part-b/p.parquet"]
    assert found(f"{parts}/part-*")[0] == found(parts)[0]
    assert found(nights) == (["dt=2026-11-29/p.parquet"], "dt=2026-11-29")


def test_links_that_lead_nowhere_or_in_a_circle_are_named(tmp_path):
    nowhere = touch(tmp_path / "n", "dt=2026-11-28/p.parquet")
    os.symlink(tmp_path / "gone", tmp_path / "n/dt=2026-11-29")
    circle = touch(tmp_path / "c", "part-a/p.parquet", "part-b/p.parquet")
    os.symlink(tmp_path / "c/part-b", tmp_path / "c/part-a/part-x1")
    os.symlink(tmp_path / "c/part-a", tmp_path / "c/part-b/part-y1")

    with pytest.raises(InputNotReady, match=r"n/dt=2026-11-29: a broken link \(.*gone does not exist"):
        found(nowhere)
    with pytest.raises(InputError, match="a link to a folder that contains it"):
        found(circle)


def test_a_folder_that_may_not_be_looked_into_is_an_error(tmp_path, monkeypatch):
    """Left out, its night would be ranked without it. Root may look everywhere, so the refusal is made here."""
    root = touch(tmp_path, "part-0/p.parquet", "part-1/p.parquet")
    scandir = os.scandir

    def refuse(path):
        if str(path).endswith("part-1"):
            raise PermissionError(13, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refuse)

    with pytest.raises(InputError, match=r"cannot be read: PermissionError.*part-1"):
        found(root)


TABLES = {
    "Delta": ("p.parquet", "_delta_log/00000000000000000000.json"),
    "Delta, only checkpoints": ("dt=2026-11-29/p.parquet", "_delta_log/00000000000000000010.checkpoint.parquet"),
    "Iceberg": ("data/p.parquet", "metadata/v3.metadata.json"),
    "Hudi": ("dt=2026-11-29/p.parquet", ".hoodie/hoodie.properties"),
    "Lance": ("data/0.lance", "_versions/1.manifest"),
    "DuckLake": ("ducklake-0193c0a4-p.parquet", "ducklake-0193c0a4-delete.parquet"),
    "Paimon": ("bucket-0/data-0.parquet", "snapshot/snapshot-1"),
}


@pytest.mark.parametrize(("table", "names"), TABLES.items(), ids=TABLES.keys())
def test_a_table_of_a_lake_format_is_refused_with_what_to_do(tmp_path, table, names):
    root = touch(tmp_path / "table", *names)
    ways = [root, f"{root}/{names[0]}", f"{root}/**/*.parquet", str((tmp_path / "table" / names[0]).parent)]
    for way in ways if names[0].endswith(".parquet") else ways[:1]:
        with pytest.raises(InputError, match=rf"{table.partition(',')[0]} table|Lance data set") as told:
            found(way)

        assert "Write its rows as plain Parquet: " in str(told.value)
        assert "\n" not in str(told.value)


def test_tables_and_dates_are_known_in_object_stores_too():
    memory = fsspec.filesystem("memory")
    for name in ("d/p.parquet", "d/_delta_log/0.json", "n/20261128/p.parquet", "n/20261129/p.parquet"):
        memory.touch(f"/lake/{name}")

    assert found("memory://lake/n")[1] == "20261129"
    with pytest.raises(InputError, match="a Delta table"):
        found("memory://lake/d")
    with pytest.raises(InputError, match="a Delta table"):
        found("memory://lake/d/*.parquet")


def test_a_partition_is_taken_of_the_night_not_of_today():
    chosen = choose_partition(
        "c", {"a": ("20261128",), "b": ("20261129",)}, NightFolders(date(2026, 11, 28), None, True, False)
    )

    assert list(chosen) == ["a"]
