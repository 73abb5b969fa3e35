"""What is published, what is refused, and what latest_scores shows after each."""

from datetime import date

import pytest

from tasks.database import DatabaseLimits
from tasks.errors import AlreadyRunning, CheckFailed, ConfigError, PackrankError, StoreError
from tasks.keep.store import Store, run_lock
from tasks.offer.publication import publish_by_hand, unpublish_by_hand
from tasks.offer.publish import publish_run
from tests.makers import make_finished_run

NIGHTS = [date(2026, 11, day) for day in (27, 28, 29)]
ORDER = {"q1": (["a", "b"], ["b", "a"]), "q2": (["c"], ["c"])}


@pytest.fixture
def database(tmp_path):
    return tmp_path / "var" / "test.duckdb"


def make(database, run_id, night=NIGHTS[2], *, failed_checks=(), **given):
    make_finished_run(database, run_id, ORDER, night=night, failed_checks=failed_checks, **given)


def store_of(database):
    return Store(database, DatabaseLimits("200MB", 1, database.parent / "spill"))


def rows(database, statement):
    with store_of(database).unit_of_work() as opened:
        return opened.query_text(statement).to_pylist()


def shown(database):
    return {row["run_id"] for row in rows(database, "select run_id from latest_scores")}


@pytest.mark.slow
def test_publishing_and_taking_back_change_what_is_shown(database):
    for run_id, night in zip(("old", "new"), NIGHTS[1:], strict=True):
        make(database, run_id, night)
        assert publish_by_hand(database, run_id)[0] == f"run {run_id}: published"

    assert shown(database) == {"new"}
    assert publish_by_hand(database, "new")[0] == "run new: already published"
    assert unpublish_by_hand(database, "new")[0] == "run new: no longer published"
    assert shown(database) == {"old"}
    assert rows(database, "select status, published_at from runs where run_id = 'new'") == [
        {"status": "complete", "published_at": None}
    ]
    assert unpublish_by_hand(database, "new")[0] == "run new: was not published"
    assert publish_by_hand(database, "new")[0] == "run new: published"
    assert shown(database) == {"new"}


@pytest.mark.parametrize(
    ("given", "error", "words"),
    [
        ({"status": "failed"}, PackrankError, "is 'failed', wanted complete"),
        ({"is_limited": True}, PackrankError, "is a trial: latest_scores would lose queries"),
        ({"failed_checks": None}, PackrankError, "was not checked"),
        ({"failed_checks": ["budget_kept", "partial_queries"]}, CheckFailed, "failed budget_kept, partial_queries"),
    ],
)
def test_what_is_not_published_and_why(database, given, error, words):
    make(database, "x", **given)

    with pytest.raises(error, match=words) as told:
        publish_by_hand(database, "x")

    assert "\n" not in str(told.value)
    assert shown(database) == set()


def test_a_run_older_than_the_column_is_published_only_by_who_knows_that_it_is_whole(database):
    make(database, "x")
    rows(database, "update runs set is_limited = null")

    with pytest.raises(PackrankError, match="does not tell whether it is a trial"):
        publish_by_hand(database, "x")
    assert publish_run(store_of(database), "x", is_whole=True)

    assert shown(database) == {"x"}


def test_only_a_published_run_is_taken_back(database):
    make(database, "x", status="failed")

    with pytest.raises(PackrankError, match="is 'failed', wanted published"):
        unpublish_by_hand(database, "x")
    with pytest.raises(PackrankError, match="no run 'y'"):
        unpublish_by_hand(database, "y")


def test_neither_goes_on_beside_a_run_or_without_a_database(database):
    make(database, "x")

    for by_hand in (publish_by_hand, unpublish_by_hand):
        with run_lock(database, "other"), pytest.raises(AlreadyRunning, match="run other"):
            by_hand(database, "x")
        with pytest.raises(StoreError, match="no such database"):
            by_hand(database.with_name("none.duckdb"), "x")
    assert not database.with_name("none.duckdb").exists()


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ({"strategy.depth": 3}, "wanted store.KEY=VALUE"),
        ({"store.exports": "x"}, r"\[store\] exports: unknown key"),
        ({"store.export": 3}, r"\[store\] export = 3"),
    ],
)
def test_a_wrong_override_publishes_nothing(database, override, words):
    make(database, "x")

    with pytest.raises(ConfigError, match=words):
        publish_by_hand(database, "x", override)

    assert shown(database) == set()


def test_somebody_elses_database_gets_no_tables(database):
    database.parent.mkdir(parents=True)
    rows(database, "create table theirs (x integer)")

    with pytest.raises(StoreError, match="has no runs, it is no database of packrank's"):
        publish_by_hand(database, "x")

    assert rows(database, "select table_name as name from duckdb_tables()") == [{"name": "theirs"}]


def test_a_failure_after_publishing_does_not_undo_it(database):
    make(database, "x")
    publish_by_hand(database, "x")

    store_of(database).update("finish_run", {"run_id": "x", "status": "cancelled", "error": "Ctrl-C"})

    assert shown(database) == {"x"}
