"""A whole night over the real engine child, pipe, spool and database; only the model behind the pipe is a fake."""

import os
import re
import signal
import subprocess
import sys
import threading
from dataclasses import replace
from datetime import date
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from rich.console import Console

from tasks.nightly.night import run_night
from tasks.nightly.prepare import NightRequest, prepare_night
from tasks.nightly.run_choice import store_of
from tasks.report.summary_tables import print_tables
from tasks.system.errors import AlreadyRunning, CheckFailed, ConfigError, EngineError, FollowUpFailed, InputError
from tasks.system.run_lock import run_lock
from tasks.tools.plan import CacheAssumption, plan_night
from tests.locks import held
from tests.makers import asked, make_inputs, make_settings, select, value, write_parquet
from tests.processes import engines_of, wait_for

LISTS = [0, 1, 2, 5, 9, 12]  # 0 + 0 + 1 + 2 + 4 + 5 windows of 4, stride 2
NUM_WINDOWS = 12


@pytest.fixture
def night(tmp_path, model_folder, fake_vllm):
    """Prepares a night over the given lists; keywords are settings with __ for the dot."""

    def make(lists=LISTS, *, folder="a", day=29, publish=False, rerun=False, limit_queries=None, **settings):
        values = {name.replace("__", "."): value for name, value in settings.items()}
        (tmp_path / folder).mkdir(exist_ok=True)
        config = make_settings(tmp_path / folder, model_folder, make_inputs(tmp_path / "in", lists) | values)
        return prepare_night(
            NightRequest(
                config=config, night=date(2026, 11, day), publish=publish, rerun=rerun, limit_queries=limit_queries
            )
        )

    return make


def score_rows(prepared):
    columns = "query_id, doc_id, rank, score, score_kind, model_score, first_stage_rank, first_stage_score, status"
    return select(prepared, f"select {columns} from scores order by query_id, rank")


@pytest.mark.parametrize("decode_mode", ["first_token", "permutation"])
def test_a_night_ends_with_every_row_published(night, decode_mode):
    prepared = night(publish=True, strategy__decode_mode=decode_mode)

    run_night(prepared)

    assert value(prepared, "select count(*) from latest_scores") == sum(LISTS)
    assert value(prepared, "select status from runs") == "published"
    assert select(prepared, "select status, count(*) as n from rankings group by status order by status") == [
        {"status": "no_candidates", "n": 1},
        {"status": "ranked", "n": 4},
        {"status": "single", "n": 1},
    ]
    assert value(prepared, "select count(*) from windows") == NUM_WINDOWS
    assert value(prepared, "select sum(num_preemptions)::bigint from batches") == 0
    assert value(prepared, "select count(*) from check_results where not passed") == 0
    assert value(prepared, "select count(*) from outcomes") == NUM_WINDOWS
    assert value(prepared, "select count(*) from outcomes where len(outcome_logprobs) > 1") == 0  # not when published
    assert value(prepared, "select count(*) from windows where docs is null or ttft_s is null") == 0
    has_gaps = value(prepared, "select bool_and(itl_count > 0) from batches where num_prompts > 0")
    assert has_gaps == (True if decode_mode == "permutation" else None)


@pytest.mark.fault(36, 42, 46)
def test_every_sampling_parameter_is_explicit(night, fake_vllm, tmp_path):
    """The fake knows no other parameter than these: a grammar, say, would fail the call."""
    fake_vllm(log=str(tmp_path / "asked"))

    run_night(night([3]))

    (prompt,) = asked(tmp_path / "asked")
    params = prompt["params"]
    assert (params["temperature"], params["top_p"], params["top_k"], params["max_tokens"]) == (0.0, 1.0, 0, 1)
    assert params["repetition_penalty"] == 1.0
    assert {params[name] for name in ("min_p", "presence_penalty", "frequency_penalty", "min_tokens")} == {0}
    assert (params["n"], params["stop"], params["prompt_logprobs"]) == (1, [], None)
    assert len(params["logprob_token_ids"]) == 3


@pytest.mark.fault(33)
def test_a_ranking_does_not_depend_on_batches_cohorts_or_memory(night, fake_vllm):
    roomy = night(folder="roomy")
    run_night(roomy)
    fake_vllm(num_gpu_blocks=70)
    tight = night(folder="tight", packing__batch_loads=1, packing__cohort_queries=2, engine__max_num_seqs=2)
    run_night(tight)

    streamed = night(folder="streamed", packing__driver="stream", engine__max_num_seqs=2)
    run_night(streamed)

    assert score_rows(tight) == score_rows(streamed) == score_rows(roomy)
    assert value(tight, "select count(*) from batches where num_prompts > 0") > value(
        roomy, "select count(*) from batches where num_prompts > 0"
    )
    assert value(tight, "select max(num_blocks / block_budget) from batches where num_prompts > 0") <= 1.0
    assert value(tight, "select sum(used_blocks)::bigint from batches") == value(
        tight,
        "select sum(ceil((prompt_tokens + output_tokens - 1) / block_size))::bigint from windows join runs using (run_id)",
    )


@pytest.mark.fault(1, 33)
def test_one_endless_passage_and_a_query_text_that_comes_twice_change_nothing_for_the_others(night, tmp_path):
    """q004's second document has 50,000 words; q002 and q003 have the same text and other candidates."""
    plain = night(folder="plain")
    run_night(plain)
    inputs = plain.settings.inputs
    documents, queries = (pq.read_table(path).to_pydict() for path in (inputs.documents, inputs.queries))
    documents["text"][5] = "tide " * 50_000
    queries["text"][3] = queries["text"][2]
    rows = score_rows(plain)

    odd = night(folder="odd")
    write_parquet(Path(inputs.documents), **documents)
    write_parquet(Path(inputs.queries), **queries)
    odd = prepare_night(NightRequest(config=tmp_path / "odd" / "nightly.toml", night=date(2026, 11, 29)))
    run_night(odd)

    found = score_rows(odd)
    same = {"q000", "q001", "q002"}  # neither sees the passage, nor another text
    assert [row for row in found if row["query_id"] in same] == [row for row in rows if row["query_id"] in same]
    assert {(row["query_id"], row["doc_id"]) for row in found} == {(row["query_id"], row["doc_id"]) for row in rows}
    cut = select(odd, "select query_id, truncated_passages, truncated_tokens from truncations order by query_id")
    assert [row["query_id"] for row in cut] == ["q003", "q004", "q005"]  # whose lists have d0005
    assert all(row["truncated_tokens"] >= 49_000 * row["truncated_passages"] for row in cut)
    assert value(odd, "select max(prompt_tokens + 1) from windows") <= 1024


@pytest.mark.fault(45)
def test_a_plan_shows_the_first_prompt_of_each_decode_mode_word_for_word(night, capsys):
    cascade = {"strategy__cascade__keep": 2, "strategy__cascade__decode_mode": "query_likelihood"}
    tables = [each for each in plan_night(night([3], **cascade), CacheAssumption(), with_prompt=True) if each.is_raw]
    print_tables(tables, Console(width=80))

    printed = re.split(r"Prompt of (\w+), q000\S+, \d+ tokens ─+\n", capsys.readouterr().out)
    modes, (pointwise, text) = printed[1::2], printed[2::2]
    assert modes == ["query_likelihood", "first_token"]
    assert "Title 0: " in pointwise
    assert text.startswith("<|im_start|>system\n")
    assert "\n[A] Title 0: " in text
    assert text.endswith("<|im_start|>assistant\n[\n")
    assert max(map(len, text.splitlines())) > 100  # a line of the prompt is a line here


def test_a_published_night_is_exported_and_a_failed_export_takes_nothing_back(night, tmp_path):
    prepared = night([2, 3], publish=True, store__export=str(tmp_path / "out"))
    run_night(prepared)
    (written,) = (tmp_path / "out").glob("nightly/night=2026-11-29/scores.parquet")
    assert pq.read_metadata(written).num_rows == 5

    (tmp_path / "taken").write_text("a file in the way")
    failed = night([2, 3], publish=True, folder="b", store__export=str(tmp_path / "taken"))
    for _ in range(2):  # the same command tries again
        with pytest.raises(FollowUpFailed, match="is published, but some follow-up steps failed"):
            run_night(failed)
    assert select(failed, "select status, error from runs") == [{"status": "published", "error": None}]
    assert value(failed, "select count(*) from latest_scores") == 5

    (tmp_path / "taken").unlink()
    run_night(failed)

    assert len(list((tmp_path / "taken").glob("nightly/night=2026-11-29/scores.parquet"))) == 1
    (tmp_path / "taken" / "nightly" / "night=2026-11-29" / "scores.parquet").unlink()
    run_night(failed)  # already done
    assert not list((tmp_path / "taken").glob("nightly/night=2026-11-29/scores.parquet"))


def test_a_published_night_ends_those_that_are_too_old(night):
    prepared = night([2], publish=True, store__keep_nights=1)
    run_night(replace(prepared, night=date(2026, 11, 28), base_run_id="older"))
    assert select(prepared, "select run_id from runs") == [{"run_id": "older"}]

    run_night(replace(prepared, night=date(2026, 11, 29), base_run_id="reuses-older"))
    assert value(prepared, "select count(*) from runs") == 2  # what the younger run points to stays
    run_id = run_night(replace(prepared, night=date(2026, 11, 30), reuse="nothing"))

    assert select(prepared, "select run_id from runs") == [{"run_id": run_id}]
    assert value(prepared, "select count(*) from scores") == 2


def test_the_same_command_again_is_already_done(night, fake_vllm, tmp_path):
    fake_vllm(log=str(tmp_path / "asked"))
    first = run_night(night(publish=True))
    before = len(asked(tmp_path / "asked"))

    second = run_night(night(publish=True))

    assert second == first
    assert len(asked(tmp_path / "asked")) == before


def test_a_complete_run_is_published_by_a_later_request_without_the_engine(night, fake_vllm, tmp_path):
    fake_vllm(log=str(tmp_path / "asked"))
    run_night(night())
    before = len(asked(tmp_path / "asked"))

    prepared = night(publish=True)
    run_night(prepared)

    assert value(prepared, "select status from runs") == "published"
    assert len(asked(tmp_path / "asked")) == before


@pytest.mark.fault(90, 95)
@pytest.mark.parametrize(
    ("judged", "limit_queries", "value_and_count"),
    [
        (["q000", "q900"], None, (0.5, 2)),  # a whole night lacks q900
        (["q000", "q001"], 1, (1.0, 1)),  # a trial is judged on what it ran
        (["q900"], None, None),  # a number out of nothing is no number
    ],
)
def test_a_night_is_measured_over_all_judged_queries_and_a_trial_over_its_own(
    night, tmp_path, judged, limit_queries, value_and_count
):
    documents = {"q000": "d0000", "q001": "d0001"}
    qrels = write_parquet(
        tmp_path / "qrels.parquet",
        query_id=judged,
        doc_id=[documents.get(query, "d0000") for query in judged],
        relevance=[1] * len(judged),
    )
    prepared = night([1, 1], inputs__qrels=str(qrels), limit_queries=limit_queries)  # one candidate: no engine

    run_night(prepared)

    means = select(prepared, "select distinct value, num_queries from metrics where query_id is null")
    assert [tuple(row.values()) for row in means] == ([] if value_and_count is None else [value_and_count])


def test_rerun_repeats_a_finished_night_under_a_new_id(night):
    first = run_night(night())

    assert run_night(night(rerun=True)) == f"{first}-r2"
    assert run_night(night(rerun=True)) == f"{first}-r3"
    assert run_night(night()) == f"{first}-r3"
    assert value(night(), "select count(*) from scores") == 3 * sum(LISTS)


def test_other_settings_or_input_make_another_run_and_capacity_does_not(night, tmp_path):
    base = night().base_run_id

    assert night(engine__max_num_seqs=3, packing__batch_loads=1, checks__max_fallback_share=0.5).base_run_id == base
    assert night(strategy__stride=1).base_run_id != base
    assert night(prompt__max_passage_tokens=63).base_run_id != base
    assert night(limit_queries=2).base_run_id != base
    write_parquet(tmp_path / "in" / "more.parquet", query_id=["q000"], text=["another"])
    assert night(inputs__queries=str(tmp_path / "in" / "more.parquet")).base_run_id != base
    assert base.startswith("2026-11-29-nightly-")


def test_limited_and_dry_runs_are_not_published(night, tmp_path):
    with pytest.raises(ConfigError, match="publish cannot be combined with limit_queries or dry_run"):
        night(publish=True, limit_queries=2)


def test_a_plan_writes_nothing_and_counts_what_the_night_asks(night, tmp_path):
    prepared = night()

    tables = plan_night(prepared, CacheAssumption(num_gpu_blocks=4_000))

    figures = dict(tables[0].texts)
    assert figures["prompts"] == str(NUM_WINDOWS)
    assert figures["candidates"] == str(sum(LISTS))
    assert "as if every layer had full attention" in tables[0].note
    assert not (tmp_path / "a" / "var").exists()
    run_night(prepared)
    assert figures["batches"] == str(value(prepared, "select count(*) from batches where num_prompts > 0"))
    assert int(figures["prompt tokens"].replace(",", "")) == pytest.approx(
        value(prepared, "select sum(prompt_tokens)::bigint from batches"), rel=0.02
    )


def test_nothing_to_ask_starts_no_engine(night, tmp_path):
    prepared = night([0, 1, 0], checks__max_without_candidates_share=1.0)

    run_night(prepared)

    assert value(prepared, "select device from runs") is None
    assert not list(tmp_path.rglob("*.engine.log"))
    assert value(prepared, "select count(*) from scores") == 1


@pytest.mark.fault(17)
def test_a_second_run_beside_the_first_is_refused(night, tmp_path):
    link = tmp_path / "b" / "link.duckdb"
    by_link, real = night(folder="b", store__database=str(link)), tmp_path / "a" / "var" / "test.duckdb"
    link.symlink_to(real)
    with run_lock(real, "other"), pytest.raises(AlreadyRunning, match="run other"):
        run_night(by_link)
    assert by_link.settings.spool_folder == real.parent / "spool" / "test"

    prepared = night()

    with run_lock(store_of(prepared).path, "other"), pytest.raises(AlreadyRunning, match="run other"):
        run_night(prepared)


# ---- an engine that fails


@pytest.mark.fault(10, 14, 88)
def test_an_engine_that_dies_is_started_again_and_nothing_is_asked_twice(night, fake_vllm, tmp_path):
    fake_vllm(log=str(tmp_path / "asked"), die_at=2)
    prepared = night()

    run_night(prepared)

    assert len(asked(tmp_path / "asked")) == NUM_WINDOWS  # the batch it died of was never answered
    assert value(prepared, "select status from runs") == "complete"


@pytest.mark.fault(87)
def test_an_engine_that_cannot_start_is_not_tried_for_ever(night, fake_vllm, tmp_path):
    fake_vllm(log=str(tmp_path / "asked"), start_error="aot_compile is not supported by the current configuration")
    prepared = night([3], packing__max_engine_starts=2)

    with pytest.raises(EngineError, match=r"RuntimeError: aot_compile.*started 2 times; giving up") as told:
        run_night(prepared)

    assert len((tmp_path / "asked.starts").read_text().splitlines()) == 2
    assert "\n" not in str(told.value)
    assert "cache" not in str(told.value)  # that start had none: they are not the cause
    assert "aot_compile" in value(prepared, "select error from runs")


@pytest.mark.fault(87)
def test_a_night_whose_caches_are_damaged_is_ranked_without_them_and_says_where_they_are(
    night, fake_vllm, tmp_path, caplog, monkeypatch
):
    monkeypatch.setenv("VLLM_CACHE_ROOT", str(tmp_path / "damaged"))
    fake_vllm(log=str(tmp_path / "asked"), damaged_caches=str(tmp_path / "damaged"))
    prepared = night([3])

    run_night(prepared)

    assert value(prepared, "select status from runs") == "complete"
    assert f"engine started without the caches in {tmp_path / 'damaged'}" in caplog.text


def test_another_series_of_vllm_is_refused_by_name(night, fake_vllm):
    fake_vllm(version="0.33.1")

    with pytest.raises(ConfigError, match=r"vLLM 0\.33\.1 is installed, but packrank supports only 0\.32"):
        run_night(night([3]))


@pytest.mark.fault(39)
def test_a_run_taken_up_with_another_engine_says_so_and_keeps_what_both_were(night, fake_vllm, tmp_path, caplog):
    fake_vllm(log=str(tmp_path / "asked"), die_at=2)
    with pytest.raises(EngineError):
        run_night(night(packing__max_engine_starts=1, packing__max_poison_prompts=0))
    fake_vllm()
    cold = night(engine__enable_prefix_caching=False)
    assert select(cold, "select dtype, enable_prefix_caching from runs") == [
        {"dtype": "float32", "enable_prefix_caching": True}
    ]

    run_night(cold)

    assert "resumes with enable_prefix_caching=False but began with True: its rows come from both" in caplog.text
    assert "resumes with dtype" not in caplog.text
    assert value(cold, "select enable_prefix_caching from runs") is False
    assert value(cold, "select (settings->>'$.engine.max_model_len')::integer from runs") == 1024


@pytest.mark.fault(8, 10, 87)
def test_an_engine_that_dies_too_often_fails_the_run_and_the_next_start_goes_on(night, fake_vllm, tmp_path):
    fake_vllm(log=str(tmp_path / "asked"), die_at=2)
    prepared = night(packing__max_engine_starts=1, packing__max_poison_prompts=0)
    with pytest.raises(EngineError, match=r"exit status 9.*It was asked 1 times, each time of a fresh engine"):
        run_night(prepared)
    done = len(asked(tmp_path / "asked"))
    assert value(prepared, "select status from runs") == "failed"
    assert "exit status 9" in value(prepared, "select error from runs")

    fake_vllm(log=str(tmp_path / "asked"))
    run_night(prepared)

    assert 0 < done < NUM_WINDOWS
    assert len(asked(tmp_path / "asked")) == NUM_WINDOWS
    whole = night(folder="whole")
    run_night(whole)
    assert score_rows(prepared) == score_rows(whole)


@pytest.mark.fault(47, 48)
def test_an_engine_that_hangs_is_killed_and_its_batch_asked_again(night, fake_vllm, tmp_path):
    fake_vllm(log=str(tmp_path / "asked"), hang_at=1)
    prepared = night(packing__batch_timeout_s=3)

    run_night(prepared)

    assert value(prepared, "select status from runs") == "complete"
    assert engines_of(os.getpid()) == []


@pytest.mark.fault(9)
@pytest.mark.parametrize(
    ("outputs", "words"), [("reversed", "another prompt"), ("short", "1 outputs for 2"), ("long", "3 outputs for 2")]
)
def test_outputs_that_do_not_match_their_prompts_fail_the_batch(night, fake_vllm, outputs, words):
    fake_vllm(outputs=outputs)
    prepared = night([3, 4], packing__driver="generate", packing__max_engine_starts=1, packing__max_poison_prompts=0)

    with pytest.raises(EngineError, match=words):
        run_night(prepared)

    assert value(prepared, "select count(*) from scores") == 0


@pytest.mark.fault(40)
@pytest.mark.parametrize("metrics", [False, "partial"])
def test_metrics_that_are_missing_are_null_and_lose_no_batch(night, fake_vllm, metrics):
    fake_vllm(metrics=metrics)
    prepared = night()

    run_night(prepared)

    assert value(prepared, "select count(*) from windows where ttft_s is not null") == 0
    assert value(prepared, "select bool_and(engine_s > 0) from batches where num_prompts > 0")
    assert value(prepared, "select count(*) from scores") == sum(LISTS)


def test_a_setting_that_vllm_does_not_know_is_refused_before_weights_load(night):
    with pytest.raises(ConfigError, match=r"\[engine\] max_num_seq: vLLM has no such setting. Is it max_num_seqs\?"):
        run_night(night(engine__max_num_seq=3))


@pytest.mark.fault(35)
def test_a_cache_too_small_for_the_largest_prompt_is_refused(night, fake_vllm):
    fake_vllm(num_gpu_blocks=30)

    with pytest.raises(ConfigError, match="needs 64 KV blocks, but 29 are usable"):
        run_night(night())


def test_a_cache_of_an_unknown_kind_is_refused_by_name_unless_the_promise_is_given_up(night, fake_vllm):
    fake_vllm(cache_manager="CircularBufferManager")

    with pytest.raises(ConfigError, match="a group that vLLM manages by CircularBufferManager"):
        run_night(night())
    run_night(night(packing__promise="none"))


@pytest.mark.fault(44, 85)
def test_a_model_that_is_not_there_is_known_before_the_engine(night, tmp_path):
    with pytest.raises(ConfigError, match="no such folder"):
        night(engine__model=str(tmp_path / "nowhere"))


# ---- a night that lost its queries


def test_a_night_whose_first_stage_died_is_not_published_until_somebody_says_so(night):
    whole = night([3] * 30, day=28, publish=True)
    run_night(whole)

    lost = night([3] * 2 + [0] * 28, publish=True)
    with pytest.raises(CheckFailed) as told:
        run_night(lost)

    assert "queries_without_candidates: 28 offending, share 0.9333, allowed 0.2500 (e.g. q002, q003, q004)" in str(
        told.value
    )
    assert "volume: 1 offending, share 0.5000, allowed 0.0000 (e.g. 6 candidates, usually 90)" in str(told.value)
    assert value(lost, "select count(*) from latest_scores") == 90
    trial = night([3] * 30, day=30, limit_queries=2)
    run_night(trial)
    assert not value(trial, f"select is_degraded from runs where run_id = '{trial.base_run_id}'")

    limits = {"checks__max_without_candidates_share": 1.0, "checks__max_volume_fall": 1.0}
    run_night(night([3] * 2 + [0] * 28, publish=True, **limits))

    assert value(lost, "select count(*) from latest_scores") == 6


# ---- answers that are no ranking


@pytest.mark.fault(7, 8)
def test_a_night_of_refusals_is_stored_and_not_published(night, fake_vllm):
    fake_vllm(answers=["I cannot help with that."])
    prepared = night(publish=True, strategy__decode_mode="permutation")

    with pytest.raises(CheckFailed, match=r"fallback_queries: 4 offending, share 0.6667, allowed 0.0500 \(e.g. q002"):
        run_night(prepared)

    assert value(prepared, "select status from runs") == "complete"
    assert value(prepared, "select is_degraded from runs")
    assert value(prepared, "select count(*) from latest_scores") == 0
    assert value(prepared, "select count(*) from fallbacks") == 2 * NUM_WINDOWS  # each asked again once
    rows = score_rows(prepared)
    assert all(row["rank"] == row["first_stage_rank"] for row in rows)
    assert {row["status"] for row in rows if row["query_id"] == "q005"} == {"fallback"}
    assert {row["score_kind"] for row in rows} == {"first_stage_order"}
    with pytest.raises(CheckFailed):  # again: still not published, and no engine
        run_night(prepared)
    with pytest.raises(CheckFailed):
        run_night(night(strategy__decode_mode="permutation"))


def test_raising_a_limit_publishes_what_is_there_without_asking_again(night, fake_vllm, tmp_path):
    fake_vllm(answers=["no"], log=str(tmp_path / "asked"))
    with pytest.raises(CheckFailed):
        run_night(night(publish=True, strategy__decode_mode="permutation"))
    before = len(asked(tmp_path / "asked"))

    prepared = night(publish=True, strategy__decode_mode="permutation", checks__max_fallback_share=1.0)
    run_night(prepared)

    assert value(prepared, "select status from runs") == "published"
    assert value(prepared, "select is_degraded from runs") is False
    assert len(asked(tmp_path / "asked")) == before


@pytest.mark.fault(7)
def test_some_refusals_are_counted_where_they_happened(night, fake_vllm):
    fake_vllm(answers=["[2] > [1] > [3] > [4]", "no", "[4]"])
    prepared = night(strategy__decode_mode="permutation", checks__max_partial_share=1.0, checks__max_fallback_share=1.0)

    run_night(prepared)

    statuses = {
        row["parse_status"]: row["n"]
        for row in select(prepared, "select parse_status, count(*) as n from windows group by all")
    }
    assert statuses.keys() >= {"ok", "refusal"}
    not_ok = sum(statuses.values()) - statuses["ok"]
    assert value(prepared, "select count(*) from outcomes where answer is not null") == not_ok
    assert value(prepared, "select count(*) from fallbacks") == value(
        prepared, "select count(*) from windows where 2 * num_listed < len(docs)"
    )
    assert value(prepared, "select count(*) from rankings where status in ('partial', 'fallback')") > 0


def test_input_errors_stop_before_the_engine(night, tmp_path):
    prepared = night()
    write_parquet(Path(prepared.settings.inputs.documents), doc_id=["other"], text=["x"])
    prepared = prepare_night(NightRequest(config=tmp_path / "a" / "nightly.toml", night=date(2026, 11, 29)))

    with pytest.raises(InputError, match="0 of 29 rows match documents"):
        run_night(prepared)

    assert value(prepared, "select status from runs") == "failed"
    assert not list(tmp_path.rglob("*.engine.log"))


def test_the_model_loads_while_passages_are_tokenised_and_ends_with_an_error_there(night, tmp_path):
    prepared = night()
    path = Path(prepared.settings.inputs.documents)
    documents = pq.read_table(path)
    plain = {"compression": "none", "use_dictionary": False, "write_statistics": False, "write_page_checksum": True}
    pq.write_table(documents.select(["doc_id", "text"]), path, **plain)
    damaged = bytearray(path.read_bytes())
    damaged[damaged.index(documents.column("text")[0].as_py().encode())] ^= 1
    path.write_bytes(damaged)
    prepared = prepare_night(NightRequest(config=tmp_path / "a" / "nightly.toml", night=date(2026, 11, 29)))

    with pytest.raises(InputError, match="damaged, one of its pages"):
        run_night(prepared)

    assert len(list(tmp_path.rglob("*.engine.log"))) == 1
    assert engines_of(os.getpid()) == []


# ---- the command, killed


def command(config, *arguments):
    return subprocess.Popen(
        [
            sys.executable,
            "-m",
            "flows.cli",
            "run",
            str(config),
            "--no-prefect",
            "--night",
            "2026-11-29",
            *arguments,
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


@pytest.mark.fault(15)
@pytest.mark.parametrize(("number", "exit_code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupted_command_leaves_no_process_and_a_run_that_says_so(night, fake_vllm, tmp_path, number, exit_code):
    log = tmp_path / "asked"
    fake_vllm(log=str(log), hang_at=2)  # a night that cannot end before the signal comes
    prepared = night()
    process = command(tmp_path / "a" / "nightly.toml")
    wait_for(lambda: (tmp_path / "asked.count").exists() and (tmp_path / "asked.count").read_text() == "3")

    process.send_signal(number)
    _, told = process.communicate(timeout=240)

    assert process.returncode == exit_code
    assert "Traceback" not in told
    wait_for(lambda: engines_of(process.pid) == [])
    assert value(prepared, "select status from runs") == "cancelled"
    run_night(prepared)
    assert value(prepared, "select count(*) from scores") == sum(LISTS)


def test_a_night_killed_before_its_first_load_has_noted_its_engine(night, fake_vllm, tmp_path):
    """Once every batch is committed no later start has an engine to ask: the run would never say what it ran on."""
    fake_vllm(log=str(tmp_path / "asked"), hang_at=2)
    prepared = night(store__load_every_s=3600)
    process = command(tmp_path / "a" / "nightly.toml")
    wait_for(lambda: (tmp_path / "asked.count").exists() and (tmp_path / "asked.count").read_text() == "3")

    process.kill()
    process.communicate()

    wait_for(lambda: engines_of(process.pid) == [])
    assert select(prepared, "select device, num_gpu_blocks from runs") == [{"device": "fake", "num_gpu_blocks": 4000}]
    assert value(prepared, "select count(*) from batches") == 0


def test_a_reader_that_was_forgotten_stops_no_night_which_ends_with_the_same_rows(
    night, fake_vllm, tmp_path, caplog, monkeypatch
):
    monkeypatch.setattr("tasks.system.lock_wait.FIRST_WARNING_S", 0.1)
    quiet = night(folder="quiet", publish=True)
    run_night(quiet)
    fake_vllm(log=str(tmp_path / "asked"))
    # chunks of one query: the database is read in mid-run
    prepared = night(publish=True, packing__cohort_queries=2, store__load_every_s=1)
    store = store_of(prepared)
    store.prepare()
    seen = []

    def end_reader():  # once all is asked and the end waits
        wait_for(lambda: len(asked(tmp_path / "asked")) == NUM_WINDOWS and "waiting for the lock" in caplog.text)
        with store.reader() as database:
            seen.append(database.query_text("select * from runs").num_rows)
        reader.kill()

    with held(store.path, "reader") as reader:
        ending = threading.Thread(target=end_reader)
        ending.start()
        run_night(prepared)
        ending.join()

    assert seen == [0]  # nothing was written while it was there
    assert f"process {reader.pid} (" in caplog.text
    assert score_rows(prepared) == score_rows(quiet)
    assert value(prepared, "select status from runs") == "published"
    assert value(prepared, "select num_queries from runs") == len(LISTS)
    assert value(prepared, "select device from runs") is not None


HOLDS_ONCE_IT_CAN = """
import sys, time, duckdb
print("ready", flush=True)
input()
while True:
    try:
        held = duckdb.connect(sys.argv[1])
        break
    except duckdb.IOException:
        time.sleep(0.01)
print("open", flush=True)
input()
"""


def test_a_night_waits_for_a_writer_in_mid_run(night, fake_vllm, tmp_path, caplog, monkeypatch):
    monkeypatch.setattr("tasks.system.lock_wait.FIRST_WARNING_S", 0.1)
    monkeypatch.setattr("tasks.nightly.ranking_stage.TAKE_WAIT_S", 0.1)
    monkeypatch.setattr("tasks.nightly.ranking_stage.TAKE_PAUSE_S", 0.1)
    fake_vllm(log=str(tmp_path / "asked"), batch_s=0.2)
    lists = [4, 12] * 4
    prepared = night(lists, publish=True, packing__cohort_queries=4, packing__driver="stream", packing__max_batch_s=1)
    path = store_of(prepared).path

    def waits():
        return "queries are read later" in caplog.text or "waiting for the lock of process" in caplog.text

    def hold():
        wait_for(lambda: asked(tmp_path / "asked"))
        writer.stdin.write(b"\n")
        writer.stdin.flush()
        writer.stdout.readline()
        wait_for(waits)
        writer.kill()

    words = [sys.executable, "-c", HOLDS_ONCE_IT_CAN, str(path)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as writer:
        assert writer.stdout.readline() == b"ready\n"
        holding = threading.Thread(target=hold)
        holding.start()
        run_night(prepared)
        holding.join()

    assert waits()
    assert value(prepared, "select count(*) from latest_scores") == sum(lists)


TWO_COMMITS = """
import duckdb, os, sys
connection = duckdb.connect(sys.argv[1], config={"checkpoint_threshold": "1TB"})
for number in range(2):
    connection.execute("update runs set error = 'x'")
os._exit(9)
"""


def test_a_log_that_power_failure_tore_is_set_aside_and_the_night_goes_on(night, tmp_path, caplog):
    prepared = night()
    run_night(prepared)
    path = store_of(prepared).path
    subprocess.run([sys.executable, "-c", TWO_COMMITS, path], check=False)
    log = path.with_name(f"{path.name}.wal")
    bad = bytearray(log.read_bytes())
    bad[-1] ^= 0xFF  # in an entry, which has a checksum; a length that points past the end reads as a log cut short
    log.write_bytes(bad)

    run_night(replace(prepared, publish=True))

    (aside,) = path.parent.glob("test.duckdb.wal*")
    assert aside.name.startswith("test.duckdb.wal.bad-")
    assert aside.read_bytes() == bad
    assert f"The log is now {aside.name}" in caplog.text
    assert value(prepared, "select status from runs") == "published"
    assert value(prepared, "select count(*) from latest_scores") == sum(LISTS)
