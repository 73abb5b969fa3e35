"""Each check on a database made by hand: it finds its fault, and lets an honest night pass."""

import io
import shutil
from datetime import date

import pytest
from rich.console import Console

from tasks.ranking.canaries import CanaryAnswer, outside_identifiers, wrong_canaries
from tasks.report.page import RunTexts, render_page
from tasks.report.run_report import read_facts
from tasks.report.summary import summarise
from tasks.report.summary_tables import print_tables
from tasks.report.table_formats import to_markdown
from tasks.settings import CheckSettings, StoreSettings
from tasks.store.checks import NOTHING, checks_of, failed_checks, run_checks
from tasks.store.publication import publish
from tasks.system.database import read_sql
from tests.makers import make_finished_run, rows, store_at

DOCS = ["a", "b", "c", "d", "e"]
QUERIES = [f"q{number:02d}" for number in range(1, 26)]
NIGHTS = [date(2026, 11, day) for day in (25, 26, 27, 28)]
TONIGHT = date(2026, 11, 29)
BATCH = (
    "insert into batches (run_id, shard, batch_no, driver, num_prompts, prompt_tokens, cached_tokens, output_tokens, "
    "num_blocks, block_budget, last_block_waste_tokens, num_preemptions, submitted_at, finished_at, engine_s) "
    "values ('{run}', 0, 0, 'generate', 25, 900, 0, 25, 60, 64, 0, 0, now(), now(), 1.0)"
)
WINDOWS = (
    "insert into windows (run_id, query_id, round, window_no, attempt, shard, batch_no, request_id, docs, prompt_tokens, "
    "cached_tokens, output_tokens, truncated_passages, truncated_tokens, num_preemptions, finish_reason, parse_status, "
    "num_missing, num_duplicate, num_out_of_range) select run_id, query_id, 0, 0, 0, 0, 0, 'r', [0, 1, 2, 3, 4], 36, 0, 1, 0, 0, 0, "
    "'length', 'ok', 0, 0, 0 from rankings where run_id = '{run}'"
)
MODEL_SCORES = "update scores set model_score = -0.125 * rank where run_id = '{run}'"
CANARIES = "insert into canaries values ('{run}', 'first_token/tides', 3.0, true, 7), ('{run}', 'first_token/eggs', 1.5, true, 7)"

SWAPPED = "doc_id = case doc_id when 'a' then 'b' else 'a' end"


def copy_night(run_id, night, status="published"):
    """Statements that repeat r25 as another run."""
    yield (
        f"insert into runs by name select * exclude (elapsed_s) replace ('{run_id}' as run_id, date '{night}' as night, '{status}' as status, "
        f"{'now()' if status == 'published' else 'null'} as published_at, "
        f"{'(select coalesce(max(publication_no), 0) + 1 from runs)' if status == 'published' else 'null'} as publication_no) from runs where run_id = 'r25'"
    )
    yield f"insert into rankings select * replace ('{run_id}' as run_id, '{run_id}' as scores_run_id) from rankings where run_id = 'r25'"
    for table in ("scores", "windows", "batches", "canaries"):
        yield f"insert into {table} select * replace ('{run_id}' as run_id) from {table} where run_id = 'r25'"


@pytest.fixture(scope="module")
def honest(tmp_path_factory):
    """Four published nights and tonight's, complete: the same queries, orders, numbers and canaries each night."""
    database = tmp_path_factory.mktemp("honest") / "honest.duckdb"
    orders = {query: (DOCS, ["b", "a", "c", "d", "e"]) for query in QUERIES}
    make_finished_run(database, "r25", orders, night=NIGHTS[0])
    rows(
        database,
        *(text.format(run="r25") for text in (BATCH, WINDOWS, MODEL_SCORES, CANARIES)),
        "update runs set num_queries = 25, num_candidates = 125, failed_checks = [], status = 'published', published_at = now(), publication_no = 1",
        *(statement for night in NIGHTS[1:] for statement in copy_night(f"r{night.day}", night)),
        *copy_night("tonight", TONIGHT, "complete"),
    )
    return database


@pytest.fixture
def database(honest, tmp_path):
    return shutil.copy(honest, tmp_path / "x.duckdb")


def check(database, **settings):
    """Runs the checks of tonight's run; returns check_name -> its row."""
    checks = checks_of(CheckSettings(**settings), keeps_budget=True)
    run_checks(store_at(database), "tonight", checks)
    return {row["check_name"]: row for row in rows(database, "select * from check_results where run_id = 'tonight'")}


def failed(results):
    return {name for name, row in results.items() if not row["passed"]}


def skipped(results):
    return {name for name, row in results.items() if row["skip_reason"] is not None}


def test_an_honest_night_passes_every_check_and_none_is_skipped(database):
    results = check(database)

    assert failed(results) == set()
    assert skipped(results) == set()
    assert {name for name, row in results.items() if row["num_offending"]} == set()
    assert len(results) == 17


@pytest.mark.fault(7, 19, 32, 34)
@pytest.mark.parametrize(
    ("name", "num_offending", "examples", "breaks"),
    [
        ("every_query_once", 1, "", "delete from rankings where query_id = 'q03'"),
        ("every_query_once", 1, "q03", "insert into rankings select * from rankings where run_id = 'tonight' and query_id = 'q03'"),
        ("every_candidate_once", 1, "q03", "delete from scores where query_id = 'q03' and doc_id = 'e'"),
        ("every_candidate_once", 1, "q03", "update scores set doc_id = 'a' where query_id = 'q03' and doc_id = 'e'"),
        ("ranks_are_1_to_n", 1, "q03", "update scores set rank = 6 where query_id = 'q03' and rank = 5"),
        ("scores_strictly_decrease", 1, "q03", "update scores set score = 1.0 where query_id = 'q03' and rank = 2"),
        ("scores_strictly_decrease", 1, "q03", "update scores set score = 'nan' where query_id = 'q03' and rank = 5"),
        ("budget_kept", 1, "0", "update batches set num_preemptions = 1"),
        ("budget_kept", 1, "0", "update batches set num_blocks = 65"),
        ("queries_without_candidates", 7, "q01, q02, q03", "update rankings set status = 'no_candidates' where query_id < 'q08'"),
        ("volume", 1, "12 queries, usually 25", "update runs set num_queries = 12"),
        ("volume", 1, "62 candidates, usually 125", "update runs set num_candidates = 62"),
        ("volume", 2, "0 queries, usually 25, 0 candidates, usually 125", "update runs set num_queries = 0, num_candidates = 0"),
        ("fallback_queries", 2, "q03, q04", "update rankings set status = 'fallback' where query_id in ('q03', 'q04')"),
        ("partial_queries", 6, "q01, q02, q03", "update rankings set status = 'partial' where query_id < 'q07'"),
        (
            "quarantined_candidates",
            40,
            "q01",
            "insert into quarantine select 'tonight', 'candidates', 'q01', 'x', 'blank text', '' from range(40)",
        ),
        ("constant_scores", 2, "q03, q04", "update scores set model_score = -1.5 where query_id in ('q03', 'q04')"),
        ("churn_without_cause", 30, "q01, q02, q03", "update scores set doc_id = doc_id || 'x' where doc_id > 'a' and query_id < 'q08' or doc_id in ('d', 'e') and query_id = 'q08'"),
        ("canary_margins", 2, "first_token/eggs, first_token/tides", "update canaries set passed = false"),
        ("canary_bands", 1, "first_token/tides", "update canaries set margin = 1.9 where pair = 'first_token/tides'"),
        ("canary_bands", 1, "first_token/eggs", "update canaries set margin = 2.6 where pair = 'first_token/eggs'"),
    ],
)  # fmt: skip
def test_a_check_finds_its_fault_and_names_it(database, name, num_offending, examples, breaks):
    verb = " and" if " where " in breaks else " where"
    statement = breaks if breaks.startswith("insert") else f"{breaks}{verb} run_id = 'tonight'"
    rows(database, statement.replace("or doc_id in", "and run_id = 'tonight' or doc_id in"))

    results = check(database, min_overlap_at_10=0.8)

    assert failed(results) == {name}
    assert results[name]["num_offending"] == num_offending
    (told,) = failed_checks(store_at(database), "tonight", checks_of(CheckSettings(), keeps_budget=True))
    assert told.startswith(f"{name}: {num_offending} offending, share ")
    assert told.endswith(f"(e.g. {examples})" if examples else f"allowed {results[name]['max_share']:.4f}")


def test_a_check_whose_limit_is_1_is_a_figure(database):
    rows(
        database,
        "update windows set truncated_passages = 5 where run_id = 'tonight'",
        "update scores set first_stage_rank = rank where run_id = 'tonight'",
    )

    results = check(database)

    assert failed(results) == set()
    assert (results["truncated_passages"]["share"], results["orders_as_given"]["share"]) == (1.0, 1.0)
    assert failed(check(database, max_truncated_share=0.9, max_as_given_share=0.9)) == {
        "truncated_passages",
        "orders_as_given",
    }


def test_a_run_that_asked_nothing_says_which_checks_were_skipped_and_why(database):
    rows(
        database,
        *(f"delete from {table} where run_id = 'tonight'" for table in ("batches", "windows", "canaries")),
        "update scores set model_score = null where run_id = 'tonight'",
    )

    results = check(database)

    assert failed(results) == set()
    assert skipped(results) == {
        *("budget_kept", "truncated_passages", "constant_scores", "canary_margins", "canary_bands")
    }
    assert results["canary_margins"]["skip_reason"] == "no canaries were asked"


def test_short_lists_may_tie_and_counted_scores_may_too(database):
    rows(
        database,
        "update scores set model_score = case when rank <= 3 then -0.5 end where run_id = 'tonight' and query_id < 'q10'",
        "update scores set model_score = 2, score_kind = 'points' where run_id = 'tonight' and query_id >= 'q10'",
    )

    assert check(database)["constant_scores"]["skip_reason"] == "no query has four numbers of the model"


# ---- volume


def test_a_night_may_have_half_or_twice_of_the_usual_and_more_is_a_warning(database, caplog):
    rows(database, "update runs set num_queries = 13, num_candidates = 250 where run_id = 'tonight'")
    assert failed(check(database)) == set()
    assert "volume_growth" not in caplog.text

    rows(database, "update runs set num_candidates = 251 where run_id = 'tonight'")
    results = check(database)

    assert failed(results) == set()
    assert results["volume_growth"]["num_offending"] == 1
    assert "run_id=tonight volume_growth: 1 offending" in caplog.text
    assert "(e.g. 251 candidates, usually 125)" in caplog.text


def test_a_raised_limit_lets_a_smaller_night_through(database):
    rows(database, "update runs set num_queries = 0, num_candidates = 20 where run_id = 'tonight'")

    assert failed(check(database, max_volume_fall=0.85)) == {"volume"}
    assert failed(check(database, max_volume_fall=1.0)) == set()


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ("update runs set is_limited = true where run_id = 'tonight'", "a trial"),
        ("update runs set status = 'complete' where run_id <> 'tonight'", "the first night"),
        ("update runs set name = 'other' where run_id <> 'tonight'", "another series"),
        ("update runs set night = date '2026-11-30' where run_id <> 'tonight'", "a backfill before all others"),
        ("update runs set night = date '2026-11-29' where run_id <> 'tonight'", "the same night again"),
    ],
)
def test_without_an_earlier_published_night_there_is_no_usual_volume(database, change, reason):
    rows(database, change, "update runs set num_queries = 1, num_candidates = 1 where run_id = 'tonight'")

    results = check(database)

    assert failed(results) == set(), reason
    for name in ("volume", "volume_growth"):
        assert results[name]["skip_reason"] == NOTHING["volumes"]


def test_the_usual_volume_is_the_median_of_the_last_seven_nights_one_run_a_night(tmp_path):
    database = tmp_path / "x.duckdb"
    sizes = [900, 40, 50, 60, 1, 70, 80, 90]  # the oldest is out of sight, and one night went wrong
    make_finished_run(database, "r25", {"q": (["a"], ["a"])})
    rows(
        database,
        *(each for day in range(10, 18) for each in copy_night(f"r{day}", date(2026, 11, day))),
        *(f"update runs set num_queries = {size}, num_candidates = 0 where run_id = 'r{day}'" for day, size in enumerate(sizes, 10)),
        *copy_night("r17-r2", date(2026, 11, 17)),
        "update runs set num_queries = 65, published_at = now() + interval 1 hour where run_id = 'r17-r2'",
        *copy_night("tonight", TONIGHT, "complete"),
        "update runs set num_queries = 30, num_candidates = 9 where run_id = 'tonight'",
    )  # fmt: skip

    found = rows(database, "select * exclude (run_id) from volumes where run_id = 'tonight'")

    assert found == [
        {"quantity": "queries", "number": 30, "usual_number": 60.0, "change": -0.5, "num_nights": 7}
    ]  # a usual number of 0 says nothing


def test_a_trial_may_have_queries_without_candidates(database):
    rows(
        database,
        "update rankings set status = 'no_candidates' where run_id = 'tonight'",
        "update runs set is_limited = true where run_id = 'tonight'",
    )

    result = check(database)["queries_without_candidates"]

    assert (result["passed"], result["skip_reason"]) == (True, "the run has no queries, or is a trial")


# ---- canaries


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ("update canaries set recipe_digest = 8 where run_id = 'tonight'", "another model"),
        ("update canaries set recipe_digest = null", "runs older than the column"),
        ("update runs set status = 'complete' where run_id in ('r25', 'r26')", "two nights are too few"),
        ("update runs set name = 'other' where run_id <> 'tonight'", "another series"),
        ("update runs set night = date '2026-12-01' where run_id <> 'tonight'", "later nights"),
    ],
)
def test_a_canary_has_a_band_only_from_three_earlier_nights_of_its_recipe_and_series(database, change, reason):
    rows(database, change, "update canaries set margin = 9 where run_id = 'tonight'")

    result = check(database)["canary_bands"]

    assert result["passed"], reason
    assert result["skip_reason"] == "fewer than three earlier nights with this recipe are published"


def test_the_band_is_around_the_median_of_the_last_seven_nights_one_run_a_night(tmp_path):
    database = tmp_path / "x.duckdb"
    margins = [9.0, 1.0, 1.1, 1.2, 5.0, 1.3, 1.4, 1.5]  # the oldest is out of sight, and one night went wrong
    make_finished_run(database, "r25", {"q": (["a"], ["a"])})
    rows(
        database,
        "insert into canaries values ('r25', 'm/p', 2.25, true, 7)",
        *(each for day in range(10, 18) for each in copy_night(f"r{day}", date(2026, 11, day))),
        *(f"update canaries set margin = {margin} where run_id = 'r{day}'" for day, margin in enumerate(margins, 10)),
        *copy_night("r17-r2", date(2026, 11, 17)),
        "update canaries set margin = 1.25 where run_id = 'r17-r2'",
        "update runs set publication_no = 99 where run_id = 'r17-r2'",
        *copy_night("tonight", TONIGHT, "complete"),
    )

    (band,) = rows(database, "select usual_margin, drift, num_nights from canary_bands where run_id = 'tonight'")

    assert band == {"usual_margin": 1.25, "drift": 1.0, "num_nights": 7}
    assert check(database)["canary_bands"]["passed"]
    assert failed(check(database, max_canary_drift=0.9)) == {"canary_bands"}


def test_a_night_that_goes_on_with_wrong_canaries_is_degraded_unless_the_limits_say_otherwise(database):
    rows(database, "update canaries set margin = -5, passed = false where run_id = 'tonight'")

    for policy in ("stop", "warn"):
        assert failed(check(database, canary=policy)) == {"canary_margins", "canary_bands"}
    assert failed(check(database, canary="warn", max_missed_canary_share=1.0)) == {"canary_bands"}
    assert failed(check(database, canary="warn", max_missed_canary_share=1.0, max_canary_drift=9.0)) == set()
    assert not {"canary_margins", "canary_bands"} & check(database, canary="off").keys()


PAIRS = ("tides", "passport", "bicycle", "vitamin", "volcano")


def ask_pairs(database, decode_mode, margins):
    rows(
        database,
        *(
            f"insert into canaries values ('tonight', '{decode_mode}/{pair}', {margin}, {margin > 0}, 8)"
            for pair, margin in zip(PAIRS, margins, strict=True)
        ),
    )


def test_pairs_that_pass_in_one_mode_do_not_hide_those_that_fail_in_the_other(database):
    """Four of five wrong in the mode of the first places are 0.8, not 0.4 of ten."""
    rows(database, "delete from canaries where run_id = 'tonight'")
    ask_pairs(database, "query_likelihood", [2.0, 1.0, 3.0, 1.5, 1.0])
    assert failed(check(database)) == set()
    ask_pairs(database, "first_token", [-0.5, -0.1, 0.9, -0.2, -0.3])

    result = check(database)["canary_margins"]

    assert (result["num_offending"], result["share"], result["passed"]) == (4, 0.8, False)
    modes = rows(database, "select * from canary_modes where run_id = 'tonight' order by decode_mode")
    assert [(row["decode_mode"], row["missed_share"], row["is_worst"]) for row in modes] == [
        ("first_token", 0.8, True),
        ("query_likelihood", 0.0, False),
    ]


@pytest.mark.parametrize("policy", ["stop", "warn"])
@pytest.mark.parametrize(
    ("margins", "num_missed"),
    [
        ([0.0] * 5, 5),  # says the same of every passage
        ([-9.0, 1.0, 1.0, 1.0, 1.0], 1),  # wrong on the whole
        ([-0.1, -0.1, -0.1, 3.0, 3.0], 3),
        ([-0.1, -0.1, 3.0, 3.0, 3.0], 2),
        ([1.0] * 5, 0),
    ],
)
def test_the_check_says_what_stops_a_run(database, policy, margins, num_missed):
    rows(database, "delete from canaries where run_id = 'tonight'")
    ask_pairs(database, "first_token", margins)
    answered = [
        CanaryAnswer(f"first_token/{pair}", margin, passed=margin > 0)
        for pair, margin in zip(PAIRS, margins, strict=True)
    ]

    settings = CheckSettings(canary=policy)
    wrong = wrong_canaries(answered, settings.max_missed_canary_share)

    assert bool(wrong) is ("canary_margins" in failed(check(database, canary=policy)))
    (mode,) = rows(database, "select num_missed from canary_modes where run_id = 'tonight'")
    assert mode["num_missed"] == num_missed


@pytest.mark.parametrize(
    ("margins", "level", "words"),
    [
        ([-0.5, -0.1, 0.9, -0.2, -0.3], "bad", "in 4 of 5 pairs (passport, tides, vitamin, volcano)"),
        ([-0.1, 2.0, 2.0, 2.0, 2.0], "caution", "in 1 of 5 pairs (tides), mean margin 1.580"),
    ],
)
def test_a_missed_canary_is_a_box_on_terminal_page_and_artifact(database, margins, level, words):
    rows(database, "delete from canaries where run_id = 'tonight'")
    ask_pairs(database, "first_token", margins)
    ask_pairs(database, "query_likelihood", [1.0] * 5)
    check(database, max_missed_canary_share=1.0)

    tables = summarise(store_at(database), "tonight")
    (box,) = [table for table in tables if table.alarm]
    page = render_page(read_facts(store_at(database).query, "tonight"), RunTexts({}, {}))
    terminal = io.StringIO()
    print_tables(tables, Console(file=terminal, width=100, force_terminal=True))
    last = terminal.getvalue()[terminal.getvalue().rindex("╭") - 10 :]

    assert tables[0] is box
    assert (box.alarm, box.title) == (level, "Canaries missed in first_token")
    assert words in box.rows[0][0]
    assert "This mode decides the first places." in box.rows[0][0]
    assert f'<p class="box {level}" role="note" data-key="notice"><b>Canaries missed in first_token.</b>' in page
    assert words in page
    assert to_markdown(tables).startswith("> **Canaries missed in first_token.** The irrelevant passage")
    assert "Canaries missed in first_token" in last
    assert ("\x1b[31m" if level == "bad" else "\x1b[33m") in last


def test_a_night_whose_canaries_all_passed_has_no_box(database):
    check(database)

    assert not [table for table in summarise(store_at(database), "tonight") if table.alarm]
    page = render_page(read_facts(store_at(database).query, "tonight"), RunTexts({}, {}))
    assert 'data-key="notice"' not in page


def test_a_model_that_says_something_else_has_a_yellow_box_and_a_low_figure_in_the_list_of_runs(database):
    """A hundred good windows of the point-wise step must not hide the few of the mode of the first places."""
    rows(
        database,
        "update windows set decode_mode = 'yes_no', id_mass = 0.9 where run_id = 'tonight'",
        "update windows set decode_mode = 'first_token', id_mass = 0.125 where run_id = 'tonight' and query_id in ('q01', 'q02')",
    )
    check(database)

    tables = summarise(store_at(database), "tonight")
    page = render_page(read_facts(store_at(database).query, "tonight"), RunTexts({}, {}))
    listed = rows(database, read_sql("reports/runs"))

    (box,) = [table for table in tables if table.alarm]
    assert (box.alarm, box.title) == ("caution", "Answers outside the requested form, in first_token")
    assert "have 0.125 of the probability at the first token, on average over 2 windows" in box.rows[0][0]
    assert box.title in page
    assert {row["run_id"]: row["mean_id_mass"] for row in listed}["tonight"] == 0.125


@pytest.mark.parametrize(("masses", "told"), [([0.2, 0.7], "0.450"), ([0.4, 0.7], ""), ([None, None], "")])
def test_canaries_tell_that_a_model_says_something_else(masses, told):
    answered = [CanaryAnswer(f"first_token/{place}", 1.0, True, mass) for place, mass in enumerate(masses)]
    answered += [CanaryAnswer("yes_no/a", 1.0, True, 0.9), CanaryAnswer("query_likelihood/a", 1.0, True)]

    outside = outside_identifiers(answered)

    assert bool(outside) is bool(told)
    assert told in outside
    assert "yes_no" not in outside


def test_a_night_twice_as_large_has_a_yellow_box(database):
    rows(database, "update runs set num_queries = 51, num_candidates = 2000 where run_id = 'tonight'")
    check(database)

    (box,) = [table for table in summarise(store_at(database), "tonight") if table.alarm]

    assert box.alarm == "caution"
    assert box.rows[0][0].startswith("51 queries, usually 25; 2,000 candidates, usually 125.")


# ---- churn


def churn(database, run_id="tonight"):
    found = rows(database, f"select * from churn where run_id = '{run_id}' order by query_id")
    return {row["query_id"]: row for row in found}


def test_what_changed_is_told_by_cause_before_and_after_publishing(database):
    rows(
        database,
        "update rankings set query_digest = 1 where run_id = 'tonight' and query_id = 'q01'",
        "update rankings set candidates_digest = 1 where run_id = 'tonight' and query_id = 'q02'",
        "update rankings set documents_digest = 1 where run_id = 'tonight' and query_id = 'q03'",
        "update rankings set recipe_digest = 1 where run_id = 'tonight' and query_id = 'q04'",
        "update rankings set scores_run_id = 'r28', status = 'reused' where run_id = 'tonight' and query_id = 'q05'",
        "delete from rankings where run_id = 'r28' and query_id = 'q06'",
        f"update scores set {SWAPPED} where run_id = 'tonight' and query_id = 'q07' and rank < 3",
    )

    before = churn(database)
    run_checks(store_at(database), "tonight", checks_of(CheckSettings(), keeps_budget=True))
    publish(store_at(database), "tonight", StoreSettings())

    assert churn(database) == before
    assert [before[query]["change"] for query in QUERIES[:8]] == [
        *("input_changed", "input_changed", "input_changed", "recipe_changed", "reused", "new_query", "moved"),
        "unchanged",
    ]
    assert {row["previous_run_id"] for row in before.values()} == {"r28"}
    assert (before["q07"]["num_moved"], before["q07"]["has_new_first"], before["q07"]["overlap_at_10"]) == (2, True, 1)
    assert before["q06"]["rbo"] is None
    assert {row["rbo"] for query, row in before.items() if query not in ("q06", "q07")} == {1.0}


def test_a_night_is_compared_with_the_newest_published_night_not_after_it(database):
    rows(
        database,
        *copy_night("r28-r2", NIGHTS[3], "complete"),
        "update runs set night = date '2026-11-30' where run_id = 'r27'",
    )

    assert churn(database)["q01"]["previous_run_id"] == "r28"
    publish(store_at(database), "r28-r2", StoreSettings())
    assert churn(database)["q01"]["previous_run_id"] == "r28-r2"
    assert churn(database, "r28-r2")["q01"]["previous_run_id"] == "r28"
    assert churn(database, "r25") == {}
    (night,) = rows(database, "select count(*) as n from runs where run_id in (select run_id from churn)")
    assert night["n"] == 5


@pytest.mark.parametrize(
    ("change", "num_steady"),
    [
        ("update rankings set query_digest = 1 where run_id = 'tonight' and query_id <= 'q06'", 19),
        ("update rankings set recipe_digest = 1 where run_id = 'tonight'", 0),
        ("update rankings set scores_run_id = 'tonight', run_id = 'other' where run_id = 'r28'", 0),
    ],
)
def test_churn_with_a_cause_fails_nothing(database, change, num_steady):
    rows(database, "update scores set doc_id = doc_id || 'x' where run_id = 'tonight'", change)

    result = check(database)["churn_without_cause"]

    assert sum(row["change"] in ("moved", "unchanged") for row in churn(database).values()) == num_steady
    assert result["passed"]
    assert result["skip_reason"].startswith("fewer than twenty queries")


def test_reused_queries_do_not_hide_that_the_others_moved(database):
    rows(
        database,
        "insert into rankings select run_id, 'u' || query_id || number, num_candidates, depth, num_windows, num_rounds, "
        "'reused', query_digest, candidates_digest, documents_digest, recipe_digest, 'r28', null "
        "from rankings, range(40) as numbers(number) where run_id in ('r28', 'tonight')",
        "insert into scores select run_id, 'u' || query_id || number, doc_id, rank, score, score_kind, model_score, "
        "first_stage_rank, first_stage_score, status from scores, range(40) as numbers(number) where run_id = 'r28'",
        "update runs set num_queries = 1025 where run_id = 'tonight'",
        "update scores set doc_id = doc_id || 'x' where run_id = 'tonight' and rank > 2",
    )

    results = check(database)

    assert failed(results) == {"churn_without_cause"}
    assert results["churn_without_cause"]["share"] == pytest.approx(0.6)


def test_rank_biased_overlap_is_as_computed_by_hand_and_as_its_definition_adds_up(tmp_path):
    by_hand = {  # before, after -> value
        ("abcd", "abcd"): 1.0,
        ("abcd", "wxyz"): 0.0,
        ("a", "a"): 1.0,
        ("ab", "ba"): 0.9,  # depth 2, agreement 0 and 1: 0.1 * 0.9 * 1 + 0.81 * 1 = 0.09 + 0.81
        ("abc", "acx"): 0.685,  # 1, 1/2 and 2/3: 0.1 * (1 + 0.9 / 2 + 0.81 * 2/3) + 0.729 * 2/3 = 0.199 + 0.486
        ("ab", "acbd"): 0.55,  # to depth 2, the shorter's: 1 and 1/2: 0.1 * (1 + 0.45) + 0.81 / 2 = 0.145 + 0.405
        ("acbd", "ab"): 0.55,
    }
    first = [f"d{number}" for number in range(260)]  # longer than the 200 ranks that the view adds up
    second = first[5:40] + [f"x{number}" for number in range(30)] + first[:5] + first[40:190]
    pairs = {f"q{number}": tuple(map(list, pair)) for number, pair in enumerate(by_hand)} | {"long": (first, second)}
    database = tmp_path / "x.duckdb"
    before, after = ({query: (pair[side], pair[side]) for query, pair in pairs.items()} for side in (0, 1))
    make_finished_run(database, "old", before, night=NIGHTS[0], status="published")
    make_finished_run(database, "tonight", after, night=TONIGHT)

    found = {query: row["rbo"] for query, row in churn(database).items()}

    depth = len(second)
    agreement = [len(set(first[:d]) & set(second[:d])) / d for d in range(1, depth + 1)]
    terms = sum(share * 0.9**d for d, share in enumerate(agreement, 1))
    assert found.pop("long") == pytest.approx(0.1 / 0.9 * terms + agreement[-1] * 0.9**depth, abs=1e-9)
    assert list(found.values()) == pytest.approx(list(by_hand.values()), abs=1e-12)


def test_churn_by_night_adds_up(database):
    rows(database, f"update scores set {SWAPPED} where run_id = 'tonight' and query_id = 'q07' and rank < 3")

    make_finished_run(database, "trial", {"q07": (["a", "b"], ["b", "a"])}, night=TONIGHT, is_limited=True)
    assert churn(database, "trial") == {}

    nights = rows(database, read_sql("reports/churn_by_night"))

    assert [row["run_id"] for row in nights] == ["tonight", "r28", "r27", "r26"]
    assert (nights[0]["num_moved"], nights[0]["num_unchanged"], nights[1]["num_unchanged"]) == (1, 24, 25)
    (table,) = [each for each in summarise(store_at(database), "tonight") if each.title.startswith("Changes")]
    assert [row[:2] for row in table.texts] == [("moved", "1"), ("unchanged", "24")]
    assert nights[0]["mean_overlap_without_cause"] == 1.0
    assert nights[0]["mean_rbo"] == pytest.approx(1 - 0.1 / 25)
