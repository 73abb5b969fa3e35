"""Published scores as files: whole or as they were, described by a manifest, readable as Hive folders."""

import hashlib
import json
from datetime import date

import duckdb
import pandas as pd
import pyarrow.parquet as pq
import pytest

from tasks.inputs.locations import Wanted
from tasks.inputs.parquet_files import open_input
from tasks.inputs.parquet_schema import Column
from tasks.store.publication import publish_by_hand, unpublish_by_hand
from tasks.system.errors import FollowUpFailed
from tests.makers import make_finished_run

NIGHT = date(2026, 11, 29)
ORDER = {"q2": (["a", "b", "c"], ["c", "a", "b"]), "q1": (["x"], ["x"])}
ROWS = [("q1", "x", 1), ("q2", "c", 1), ("q2", "a", 2), ("q2", "b", 3)]


@pytest.fixture
def database(tmp_path):
    return tmp_path / "var" / "test.duckdb"


@pytest.fixture
def root(tmp_path):
    return tmp_path / "out"


@pytest.fixture
def publish(database, root):
    def call(run_id, *, order=ORDER, night=NIGHT, **store):
        settings = {"store": {"export": str(root)} | store}
        make_finished_run(database, run_id, order, night=night, settings=settings, failed_checks=[])
        return publish_by_hand(database, run_id)

    return call


def folder_of(root, night=NIGHT):
    return root / "test" / f"night={night}"


def manifest_of(root, night=NIGHT):
    return json.loads((folder_of(root, night) / "manifest.json").read_text(encoding="utf-8"))


def rows_of(table):
    return [(row["query_id"], row["doc_id"], row["rank"]) for row in table.to_pylist()]


def test_a_published_night_is_a_file_and_its_manifest(publish, root):
    told = publish("first")
    path = folder_of(root) / "scores.parquet"
    manifest = manifest_of(root)

    assert told[1] == f"export: {path}, 4 rows of 2 queries"
    table = pq.ParquetFile(path).read()
    assert rows_of(table) == ROWS
    assert set(table.column("run_id").to_pylist()) == {"first"}
    assert pq.ParquetFile(path).metadata.row_group(0).column(0).compression == "ZSTD"
    assert manifest.pop("written_at").endswith("+00:00")
    assert manifest == {
        "name": "test",
        "night": "2026-11-29",
        "run_id": "first",
        "file": "scores.parquet",
        "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
        "rows": 4,
        "queries": 2,
        "columns": table.column_names,
    }
    assert sorted(each.name for each in folder_of(root).iterdir()) == ["manifest.json", "scores.parquet"]


def test_the_columns_are_those_of_latest_scores(publish, root, database):
    publish("first")
    with duckdb.connect(str(database), read_only=True) as connection:
        columns = [row[0] for row in connection.execute("describe latest_scores").fetchall()]
        read = connection.execute(f"select * from read_parquet('{root}/test/*/*.parquet')")
        from_files = {column[0] for column in read.description}

    assert from_files == set(columns)
    assert manifest_of(root)["columns"] == [name for name in columns if name != "night"]


def test_readers_of_hive_folders_take_all_nights(publish, root):
    publish("before", night=date(2026, 11, 28))
    publish("tonight")

    frame = pd.read_parquet(sorted((root / "test").glob("*/scores.parquet")))
    columns = [Column(name, "rank" if name == "rank" else "id", name) for name in ("query_id", "doc_id", "rank")]
    ours = open_input("candidates", str(root / "test"), columns, Wanted(NIGHT), allow_empty=False)

    assert len(frame) == 8
    assert set(frame["night"].astype(str)) == {"2026-11-28", "2026-11-29"}
    assert (ours.partition, ours.num_rows) == ("night=2026-11-29", 4)


def test_publishing_again_writes_the_file_again_and_a_later_run_of_the_night_replaces_it(publish, root, database):
    publish("first")
    (folder_of(root) / "scores.parquet").write_bytes(b"damaged")

    assert publish_by_hand(database, "first")[0] == "run first: already published"
    assert rows_of(pq.ParquetFile(folder_of(root) / "scores.parquet").read()) == ROWS

    publish("second")
    assert manifest_of(root)["run_id"] == "second"
    publish_by_hand(database, "first")
    assert manifest_of(root)["run_id"] == "second"  # what latest_scores shows

    unpublish_by_hand(database, "second")
    assert manifest_of(root)["run_id"] == "first"
    told = unpublish_by_hand(database, "first")
    assert told[1] == f"export: {folder_of(root)} withdrawn"
    assert not folder_of(root).exists()


def test_a_failed_export_leaves_the_scores_published_and_says_how_to_go_on(publish, root, database, tmp_path):
    root.write_text("a file in the way")

    with pytest.raises(
        FollowUpFailed, match=r"run first is published, but .*out/test.*`packrank publish first"
    ) as told:
        publish("first")
    assert "\n" not in str(told.value)
    with duckdb.connect(str(database), read_only=True) as connection:
        assert connection.execute("select count(*) from latest_scores").fetchall() == [(4,)]

    publish_by_hand(database, "first", {"store.export": str(tmp_path / "other")})
    assert manifest_of(tmp_path / "other")["rows"] == 4


def test_a_torn_write_leaves_the_old_file(publish, root, database, monkeypatch):
    publish("first")
    before = (folder_of(root) / "scores.parquet").read_bytes()

    def tear(self, table):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(pq.ParquetWriter, "write_table", tear)
    with pytest.raises(FollowUpFailed, match="No space left on device"):
        publish_by_hand(database, "first")

    assert (folder_of(root) / "scores.parquet").read_bytes() == before
    assert sorted(each.name for each in folder_of(root).iterdir()) == ["manifest.json", "scores.parquet"]
