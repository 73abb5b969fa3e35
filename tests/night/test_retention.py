"""Old nights go, what younger ones need stays, and the file stops growing."""

from datetime import UTC, date, datetime, timedelta

import pyarrow as pa
import pytest

from tasks.store.publication import publish_by_hand
from tasks.store.tables import SCHEMAS
from tasks.system.database import read_sql
from tests.makers import make_finished_run, rows, store_at

FIRST = date(2026, 11, 1)
NOON = datetime(2026, 11, 1, 12, tzinfo=UTC)
ORDER = {"q1": (["a", "b"], ["b", "a"])}


@pytest.fixture
def database(tmp_path):
    return tmp_path / "var" / "test.duckdb"


def runs_in(database, table="runs"):
    return {row["run_id"] for row in rows(database, f"select distinct run_id from {table}")}


def add_rows(database, run_id, table, columns):
    """Rows of a batch's table with what matters here; the rest is 0, '' or empty."""
    zero = {"int": 0, "uint": 0, "double": 0.0, "float": 0.0, "string": "", "list": [], "timestamp": NOON}
    filler = {
        field.name: next(value for kind, value in zero.items() if str(field.type).startswith(kind))
        for field in SCHEMAS[table]
    }
    made = pa.Table.from_pylist([filler | {"run_id": run_id} | each for each in columns], SCHEMAS[table])
    with store_at(database).unit_of_work() as opened:
        opened.append(table, made)


@pytest.fixture
def night(database):
    """A night of a series, published unless it says otherwise, with one window and one batch."""

    def make(run_id, day, *, publish=True, order=ORDER, settings=None, **given):
        make_finished_run(
            database,
            run_id,
            order,
            night=FIRST + timedelta(days=day),
            failed_checks=given.pop("failed_checks", []),
            **given,
        )
        add_rows(database, run_id, "batches", [{"batch_no": 0, "num_prompts": 1}])
        add_rows(database, run_id, "windows", [{"docs": [0, 1]}])
        add_rows(database, run_id, "engine_steps", [{"step": 0}])
        overrides = {f"store.{key}": value for key, value in (settings or {}).items()}
        return publish_by_hand(database, run_id, overrides) if publish else []

    return make


def test_everything_is_kept_where_nothing_says_otherwise(night, database):
    for day in range(4):
        night(f"r{day}", day)

    assert len(runs_in(database)) == 4


def test_what_an_old_run_says_of_retention_deletes_nothing_by_hand(night, database):
    strict = {"store": {"keep_nights": 1, "keep_window_nights": 1}}
    make_finished_run(database, "strict", ORDER, night=FIRST, settings=strict, failed_checks=[])
    for day in range(1, 3):
        night(f"r{day}", day)

    publish_by_hand(database, "strict")

    assert runs_in(database) == {"strict", "r1", "r2"}
    assert runs_in(database, "windows") == {"r1", "r2"}


def test_only_the_newest_published_nights_of_the_series_stay(night, database):
    night("other", 0, name="other")
    for day in range(3):
        night(f"r{day}", day)
    night("failed-old", 0, publish=False, status="failed")
    night("trial-old", 1, publish=False, is_limited=True)
    night("failed-new", 2, publish=False, status="failed")

    told = night("r3", 3, settings={"keep_nights": 2})

    assert runs_in(database) == {"other", "r2", "r3", "failed-new"}
    assert told[-1] == "retention: 4 old runs deleted"
    with store_at(database).unit_of_work() as opened:
        tables = opened.query_text(
            "select distinct table_name from duckdb_columns() join duckdb_tables() using (table_name) "
            "where column_name = 'run_id'"
        )
    for table in tables.column("table_name").to_pylist():
        assert runs_in(database, table) <= {"other", "r2", "r3", "failed-new"}, table


def test_logs_and_pages_of_deleted_runs_go_and_all_others_stay(night, database):
    old = [f"logs/r1{end}" for end in (".engine.log", ".shard0.engine.log", ".shard12.engine.log")] + [
        "reports/r1.html"
    ]
    kept = [
        "logs/r1-r2.engine.log",
        "logs/r10.engine.log",
        "logs/r1.engine.log.gz",
        "logs/bench.engine.log",
        "reports/r10.html",
    ]
    for name in (*old, *kept):
        path = database.parent / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("told")
    night("r1", 0)
    night("r1-r2", 1)
    night("r10", 2, settings={"keep_nights": 2})

    assert runs_in(database) == {"r1-r2", "r10"}
    assert [name for name in old if (database.parent / name).exists()] == []
    assert [name for name in kept if not (database.parent / name).exists()] == []


def test_every_table_of_runs_is_emptied(database):
    store_at(database).prepare()
    text = read_sql("retention/delete_old_runs")

    found = rows(
        database,
        "select distinct table_name as name from duckdb_columns() join duckdb_tables() using (table_name) "
        "where column_name = 'run_id'",
    )
    assert len(found) >= 12
    assert [row["name"] for row in found if f"delete from {row['name']} where" not in text] == []


def test_a_run_that_a_younger_one_points_to_stays_and_so_do_its_scores(night, database):
    night("r0", 0)
    night("r1", 1)
    night("r2", 2, scores_run_id="r0")

    night("r3", 3, scores_run_id="r0", settings={"keep_nights": 1})

    assert runs_in(database) == {"r0", "r3"}
    assert len(rows(database, "select * from latest_scores where run_id = 'r3'")) == 2


def test_a_late_publication_of_an_old_night_survives_itself(night, database):
    for day in (5, 6):
        night(f"r{day}", day)

    night("r0", 0, settings={"keep_nights": 2})

    assert runs_in(database) == {"r0", "r5", "r6"}


def test_windows_of_old_nights_go_and_their_scores_stay(night, database):
    night("degraded", 0, publish=False, failed_checks=["budget_kept"])
    for day in range(3):
        night(f"r{day}", day)

    told = night("r3", 3, settings={"keep_window_nights": 2})

    for table in ("windows", "batches", "engine_steps"):
        assert runs_in(database, table) == {"degraded", "r2", "r3"}
    assert runs_in(database, "scores") == {"degraded", "r0", "r1", "r2", "r3"}
    assert told[-1] == "retention: windows and batches of 2 old runs deleted"


def test_what_an_unfinished_old_run_left_in_the_spool_goes_with_it(night, database):
    night("dead", 0, publish=False, status="failed")
    left = database.parent / "spool" / "test" / "dead" / "0" / "00000000"
    left.mkdir(parents=True)
    night("r1", 1)

    night("r2", 2, settings={"keep_nights": 2})

    assert not left.exists()


@pytest.mark.soak
@pytest.mark.fault(70)
def test_the_file_stops_growing(night, database):
    order = {
        f"q{query:04d}": ([f"d{query}-{place}" for place in range(100)], [f"d{query}-{place}" for place in range(100)])
        for query in range(200)
    }
    sizes = []
    for day in range(12):
        night(f"r{day}", day, order=order, settings={"keep_nights": 3})
        sizes.append(database.stat().st_size)

    assert len(runs_in(database)) == 3
    assert sizes[3] > sizes[0]
    assert max(sizes[8:]) <= 1.1 * max(sizes[:8])  # blocks of dropped views and rows come and go
