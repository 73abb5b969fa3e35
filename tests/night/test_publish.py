"""What is published, what is refused, and what latest_scores shows after each."""

import re
from datetime import date

import pytest

from tasks.store.publication import publish_by_hand, unpublish_by_hand
from tasks.store.runs import Runs
from tasks.system.errors import AlreadyRunning, CheckFailed, ConfigError, PackrankError, StoreError
from tasks.system.run_lock import run_lock
from tests.makers import make_finished_run, rows, store_at

NIGHTS = [date(2026, 11, day) for day in (27, 28, 29)]
ORDER = {"q1": (["a", "b"], ["b", "a"]), "q2": (["c"], ["c"])}


@pytest.fixture
def database(tmp_path):
    return tmp_path / "var" / "test.duckdb"


def make(database, run_id, night=NIGHTS[2], *, failed_checks=(), **given):
    make_finished_run(database, run_id, ORDER, night=night, failed_checks=failed_checks, **given)


def shown(database):
    return {row["run_id"] for row in rows(database, "select run_id from latest_scores")}


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


def test_of_a_nights_publications_the_last_is_shown_whatever_the_clock_said(database, tmp_path):
    for run_id in ("x", "x-r2"):
        make(database, run_id)
        publish_by_hand(database, run_id, {"store.export": str(tmp_path / "export")})
        rows(database, f"update runs set published_at = now() + interval 2 day where run_id = '{run_id}'")
    rows(database, "update runs set published_at = now() where run_id = 'x-r2'")  # the clock was set back in between
    make(database, "tonight", NIGHTS[2])

    assert shown(database) == {"x-r2"}
    assert rows(database, "select distinct previous_run_id from churn where run_id = 'tonight'") == [
        {"previous_run_id": "x-r2"}
    ]
    with store_at(database).reader() as opened:
        assert Runs(opened).find_published("test", NIGHTS[2]).run_id == "x-r2"
    (changes,) = store_at(database).query("page/churn", {"run_id": "tonight"}).to_pylist()
    assert changes["previous_run_id"] == "x-r2"
    unpublish_by_hand(database, "x")
    publish_by_hand(database, "x")
    assert shown(database) == {"x"}


@pytest.mark.parametrize(
    ("night", "words"),
    [
        (date(2026, 11, 30), r"latest_scores shows the run later of the later night 2026-11-30, not this one\.$"),
        (date(2062, 11, 29), r"That night has not come yet: `packrank unpublish later` takes it back"),
    ],
)
def test_a_publication_that_latest_scores_does_not_show_says_so(database, night, words):
    for run_id, of_night in (("later", night), ("x", NIGHTS[2])):
        make(database, run_id, of_night)
        told = publish_by_hand(database, run_id)

    assert told[0] == "run x: published"
    assert re.search(words, told[1])
    assert len(publish_by_hand(database, "later")) == 1


@pytest.mark.parametrize(
    ("given", "error", "words"),
    [
        ({"status": "failed"}, PackrankError, "is 'failed', expected complete"),
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


def test_only_a_published_run_is_taken_back(database):
    make(database, "x", status="failed")

    with pytest.raises(PackrankError, match="is 'failed', expected published"):
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
        ({"strategy.depth": 3}, "expected store.KEY=VALUE"),
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

    with pytest.raises(StoreError, match="has no runs: it is not a packrank database"):
        publish_by_hand(database, "x")

    assert rows(database, "select table_name as name from duckdb_tables()") == [{"name": "theirs"}]


def test_a_failure_after_publishing_does_not_undo_it(database):
    make(database, "x")
    publish_by_hand(database, "x")

    store_at(database).write(lambda opened: Runs(opened).finish("x", "cancelled", "Ctrl-C"))

    assert shown(database) == {"x"}


def test_by_hand_no_other_nights_answers_are_deleted_unless_that_is_asked_for(database):
    """What an old run was told to keep says nothing of today."""
    old_settings = {"store": {"keep_answer_nights": 0, "keep_outcomes": {"nights": 0}}}
    for run_id, night in zip("abc", NIGHTS, strict=True):
        make(database, run_id, night, settings=old_settings)
        rows(
            database,
            f"insert into outcomes by name select '{run_id}' as run_id, 'q1' as query_id, 0 as round, 0 as window_no, "
            "0 as attempt, [1, 0] as outcome_order, [-0.1, -2.0] as outcome_logprobs",
        )
    for run_id in "bca":
        publish_by_hand(database, run_id, {"store.keep_outcomes.logprobs": run_id == "b"})

    kept = "select run_id, outcome_logprobs is not null as has_logprobs from outcomes order by run_id"
    assert [tuple(row.values()) for row in rows(database, kept)] == [("a", False), ("b", True), ("c", False)]

    unpublish_by_hand(database, "a")
    publish_by_hand(database, "a", {"store.keep_outcomes.nights": 1})
    assert [tuple(row.values()) for row in rows(database, kept)] == [("c", False)]
