"""Nights that follow each other: what did not change is not asked again, and what is asked again says why."""

from datetime import date

import pyarrow.parquet as pq
import pytest

from tasks.nightly.night import run_night
from tasks.nightly.prepare import NightRequest, prepare_night
from tasks.report.explain import explain_query
from tasks.system.errors import ConfigError, PackrankError
from tasks.tools.plan import CacheAssumption, plan_night
from tests.makers import asked, make_inputs, make_settings, select, value

LISTS = [0, 1, 2, 5, 9, 6]
READY = 5


@pytest.fixture
def nights(tmp_path, model_folder, fake_vllm):
    """Runs night after night on one database; `change` edits the input in between."""
    fake_vllm(log=str(tmp_path / "asked"))
    inputs = make_inputs(tmp_path / "in", LISTS)

    def run(day, *, request=(), **settings):
        values = inputs | {name.replace("__", "."): value for name, value in settings.items()}
        config = make_settings(tmp_path, model_folder, values)
        given = {"publish": True} | dict(request)
        prepared = prepare_night(NightRequest(config=config, night=date(2026, 11, day), **given))
        run_night(prepared)
        return prepared

    return run


def rewrite(path, column, query_or_doc, new):
    table = pq.read_table(path)
    key = table.column_names[0]
    values = [
        new if k == query_or_doc else v for k, v in zip(table[key].to_pylist(), table[column].to_pylist(), strict=True)
    ]
    pq.write_table(table.set_column(table.column_names.index(column), column, [values]), path)


def reasons(prepared, run_id=None):
    latest = "(select run_id from runs order by night desc, run_id desc limit 1)"
    where = f"run_id = {latest}" if run_id is None else f"run_id = '{run_id}'"
    rows = select(prepared, f"select query_id, status, reuse_reason from rankings where {where} order by query_id")
    return {row["query_id"]: row["reuse_reason"] or row["status"] for row in rows}


def shown(prepared):
    columns = "query_id, doc_id, rank, score, score_kind, first_stage_rank"
    return select(prepared, f"select {columns} from latest_scores order by query_id, rank")


def test_a_night_without_a_change_starts_no_engine_and_is_published(nights, tmp_path):
    first = nights(28)
    before, num_asked = shown(first), len(asked(tmp_path / "asked"))
    logs = sorted((tmp_path / "var" / "logs").glob("*.engine.log"))

    second = nights(29)

    assert len(asked(tmp_path / "asked")) == num_asked
    assert sorted((tmp_path / "var" / "logs").glob("*.engine.log")) == logs
    assert shown(second) == before
    assert value(second, "select night from latest_scores limit 1") == date(2026, 11, 29)
    run = select(second, "select * from runs order by night desc limit 1")[0]
    assert (run["status"], run["num_reused_queries"], run["device"]) == ("published", READY, None)
    assert set(reasons(second).values()) == {"reused", "no_candidates"}
    assert value(second, "select count(*) from check_results where not passed") == 0

    third = nights(30)

    computed = select(third, "select distinct scores_run_id from rankings where status = 'reused'")
    assert computed == [{"scores_run_id": select(third, "select run_id from runs order by night")[0]["run_id"]}]


def test_one_changed_query_is_the_only_one_asked_and_says_why(nights, tmp_path):
    nights(28)
    num_asked = len(asked(tmp_path / "asked"))
    rewrite(tmp_path / "in" / "queries.parquet", "text", "q003", "what is another thing")

    second = nights(29)

    assert reasons(second)["q003"] == "text changed"
    assert set(reasons(second).values()) == {"text changed", "reused", "no_candidates"}
    assert len(asked(tmp_path / "asked")) == num_asked + 2  # 5 candidates, windows of 4
    assert value(second, "select count(*) from latest_scores") == sum(LISTS)


def test_each_kind_of_change_has_its_reason(nights, tmp_path):
    nights(28)
    candidates = pq.read_table(tmp_path / "in" / "candidates.parquet")
    keep = [
        row != ("q004", "d0004")
        for row in zip(*candidates.select(["query_id", "doc_id"]).to_pydict().values(), strict=True)
    ]
    pq.write_table(candidates.filter(keep), tmp_path / "in" / "candidates.parquet")
    rewrite(tmp_path / "in" / "documents.parquet", "text", "d0010", "a new text")  # only in q004 and q005

    changed = reasons(nights(29))

    assert changed == {
        "q000": "no_candidates",
        "q001": "reused",
        "q002": "reused",
        "q003": "reused",
        "q004": "candidates changed",
        "q005": "document changed",
    }
    settings = reasons(nights(30, strategy__stride=1))
    assert {reason for query, reason in settings.items() if query != "q000"} == {"settings changed"}


def test_another_wording_of_the_prompt_asks_everything_again(nights, tmp_path, repo_root):
    nights(28)
    words = (repo_root / "configs" / "prompts" / "first_token.toml").read_text(encoding="utf-8")
    (tmp_path / "words.toml").write_text(words.replace("You judge", "You weigh"), encoding="utf-8")

    changed = reasons(nights(29, prompt__template=str(tmp_path / "words.toml")))

    assert {reason for query, reason in changed.items() if query != "q000"} == {"prompt changed"}


def test_another_model_asks_everything_again(nights, tmp_path, model_folder):
    nights(28)
    other = tmp_path / "other"
    other.mkdir()
    for path in model_folder.iterdir():
        (other / path.name).write_bytes(path.read_bytes())
    (other / "generation_config.json").write_text("{}")

    second = nights(29, engine__model=str(other))

    assert {r for q, r in reasons(second).items() if q != "q000"} == {"model changed"}


def test_full_asks_everything_and_a_trial_and_a_repetition_do_too(nights, tmp_path):
    nights(28)
    num_asked = len(asked(tmp_path / "asked"))

    second = nights(29, request={"full": True})

    assert len(asked(tmp_path / "asked")) == 2 * num_asked
    assert value(second, "select count(*) from rankings where status = 'reused' or reuse_reason is not null") == 0
    nights(29, request={"rerun": True})
    assert len(asked(tmp_path / "asked")) == 3 * num_asked
    trial = nights(29, request={"limit_queries": 4, "publish": False})
    assert value(trial, "select count(*) from rankings where status = 'reused'") == 0


def test_an_unpublished_night_is_not_reused(nights, tmp_path):
    nights(28, request={"publish": False})
    num_asked = len(asked(tmp_path / "asked"))

    nights(29)

    assert len(asked(tmp_path / "asked")) == 2 * num_asked


def test_a_night_that_fell_back_is_asked_again_by_the_next_and_by_requeue(nights, fake_vllm, tmp_path):
    fake_vllm(answers=["[1] > [2] > [3] > [4]", "no idea", "no idea", "no idea"], log=str(tmp_path / "asked"))
    lenient = {
        "checks__max_fallback_share": 1.0,
        "checks__max_partial_share": 1.0,
        "strategy__decode_mode": "permutation",
    }
    first = nights(28, **lenient)
    fell = [
        r["query_id"] for r in select(first, "select query_id from rankings where status in ('partial', 'fallback')")
    ]
    assert fell
    fake_vllm(log=str(tmp_path / "well"))

    again = nights(28, request={"requeue": True}, **lenient)

    run_id = value(again, "select max(run_id) from runs")
    assert run_id.endswith("-r2")
    assert {q for q, reason in reasons(again, run_id).items() if reason == "fell back last time"} == set(fell)
    assert value(again, f"select count(*) from rankings where run_id = '{run_id}' and status = 'ranked'") == len(fell)
    assert value(again, "select distinct run_id from latest_scores") == run_id
    num_asked = len(asked(tmp_path / "well"))
    nights(28, request={"requeue": True}, **lenient)  # nothing is set aside any more
    assert value(again, "select count(*) from runs") == 2
    assert len(asked(tmp_path / "well")) == num_asked


def test_requeue_needs_a_finished_run(nights):
    with pytest.raises(PackrankError, match="nothing to requeue"):
        nights(28, request={"requeue": True})
    with pytest.raises(ConfigError, match="full and dry_run cannot be combined with it"):
        nights(28, request={"requeue": True, "full": True})


def test_a_plan_asks_for_what_changed_and_an_explanation_shows_the_windows_of_the_night_that_asked(nights, tmp_path):
    first = nights(28)
    rewrite(tmp_path / "in" / "queries.parquet", "text", "q003", "what is another thing")
    config = tmp_path / "nightly.toml"

    plan = plan_night(
        prepare_night(NightRequest(config=config, night=date(2026, 11, 29), dry_run=True)), CacheAssumption()
    )

    figures = dict(plan[0].texts)
    assert (figures["queries reused"], figures["prompts"]) == ("4", "2")
    second = nights(29)
    run_id = value(second, "select max(run_id) from runs")
    tables = {table.title: table for table in explain_query(first.settings.database_path, run_id, "q004")}
    (windows,) = [table for title, table in tables.items() if title.startswith("Windows")]
    assert len(windows.rows) == 4
    assert all("A" in row[windows.columns.index("answer")] for row in windows.rows)


@pytest.mark.parametrize(("kept", "kept_runs"), [(7, 2), (1, 2), (0, 0)])
def test_answers_are_kept_as_far_as_the_newest_nights_show_them(nights, tmp_path, kept, kept_runs):
    """The newest night reuses all but q003, so the first night's answers stay for those others."""
    nights(28, store__keep_outcomes__nights=kept)
    rewrite(tmp_path / "in" / "queries.parquet", "text", "q003", "what is another thing")
    second = nights(29, store__keep_outcomes__nights=kept)

    asked_twice = select(second, "select run_id from outcomes where query_id = 'q003' group by run_id")
    of_runs = select(second, "select run_id from outcomes group by run_id")
    assert (len(of_runs), len(asked_twice)) == (kept_runs, {7: 2, 1: 1, 0: 0}[kept])

    shown = select(second, "select * from window_documents where query_id = 'q004' order by window_no, place")
    assert [row["place"] for row in shown if (row["round"], row["window_no"], row["attempt"]) == (0, 0, 0)] == [
        1,
        2,
        3,
        4,
    ]
    assert {row["answered_place"] is None for row in shown} == {kept == 0}
    places = select(
        second,
        "select doc_id, rank, first_stage_rank from published_scores where night = '2026-11-29' and query_id = 'q004'",
    )
    assert {(row["doc_id"], row["rank"], row["first_stage_rank"]) for row in shown} == {
        tuple(row.values()) for row in places
    }
    (table,) = [
        each
        for each in explain_query(second.settings.database_path, value(second, "select max(run_id) from runs"), "q004")
        if each.title.startswith("Query")
    ]
    assert ("no longer kept" in (table.note or "")) == (kept == 0)
    assert dict(table.rows)["question"]


def test_log_probabilities_are_kept_of_the_nights_that_say_so_and_those_of_other_series_are_left_alone(nights):
    """Each publication took those of all published runs, whosever they were."""

    def nights_with_logprobs(prepared):
        statement = "select distinct night, name from outcomes join runs using (run_id) where len(outcome_logprobs) > 1"
        return sorted((row["name"], row["night"].day) for row in select(prepared, statement))

    nights(28, store__keep_outcomes__logprobs=True, night__name="kept", request={"full": True})
    nights(28, night__name="dropped", request={"full": True})
    last = nights(29, night__name="kept", request={"full": True})

    assert nights_with_logprobs(last) == [("kept", 28)]
    assert value(last, "select count(distinct run_id) from outcomes") == 3
    last = nights(30, store__keep_outcomes__nights=1, night__name="kept", request={"full": True})
    assert nights_with_logprobs(last) == []
    assert value(last, "select count(distinct run_id) from outcomes") == 2
