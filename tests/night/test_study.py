"""The study on the fake engine: its arms are runs, its figures those of the rows, its verdicts those of the figures."""

import json
import math
import re
from datetime import date
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flows.command import main
from tasks.errors import ConfigError, EngineError
from tasks.night.night import run_night
from tasks.night.request import NightRequest, prepare_night
from tasks.night.runs import store_of
from tasks.settings import StudySettings
from tasks.study.arms import Arm, StudyRequest, arms_of, run_study
from tasks.study.claims import fit_slope, read_findings
from tests.makers import FAKE_VLLM, make_inputs, make_settings, write_parquet

LISTS = [30, 24, 0, 1]


def make_study(folder, model_folder, **settings):
    """A study of two lists, four engine settings and two windows."""
    inputs = make_inputs(folder / "in", LISTS)
    write_parquet(
        folder / "in" / "qrels.parquet",
        query_id=["q000", "q000", "q001", "q001"],
        doc_id=["d0003", "d0009", "d0001", "d0020"],
        relevance=[2, 1, 3, 1],
    )
    values = {
        "strategy.name": None,
        "strategy.decode_mode": None,
        "strategy.window_size": None,
        "strategy.stride": None,
        "strategy.retries": 0,
        "engine.max_num_batched_tokens": 4096,
        "inputs.qrels": str(folder / "in" / "qrels.parquet"),
        "study.limit_queries": 4,
        "study.window_sizes": [6, 10],
        "study.max_num_seqs": [4, 8, 16],
    }
    return make_settings(folder, model_folder, inputs | values | settings)


@pytest.fixture(scope="module")
def study_run(tmp_path_factory, model_folder):
    """A study that has run, with the file that asks for it and what its engines were asked."""
    folder = tmp_path_factory.mktemp("study")
    path = make_study(folder, model_folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(FAKE_VLLM))
        patch.setenv("FAKE_VLLM", json.dumps({"log": str(folder / "asked")}))
        yield run_study(request(path)), path, folder / "asked"


def select(study, statement):
    with study.store.unit_of_work() as database:
        return database.query_text(statement).to_pylist()


def request(path):
    return StudyRequest(path, date(2026, 11, 29))


def test_arms_differ_from_the_base_in_one_setting_at_a_time():
    arms = arms_of(StudySettings())

    assert len({arm.name for arm in arms}) == len(arms) == 15
    base = arms[0]
    assert base == Arm("point-wise", 1, 64, True, None)
    for arm in arms:
        differs = [
            arm.max_num_seqs != base.max_num_seqs,
            not arm.enable_prefix_caching,
            arm.queries_at_once is not None,
        ]
        assert sum(differs) <= 1


@pytest.mark.slow
def test_a_study_is_a_run_an_arm_and_asks_nothing_twice(study_run):
    study, path, log = study_run
    asked = log.read_text(encoding="utf-8")

    again = run_study(request(path))

    assert (again.runs, again.num_passage_tokens) == (study.runs, study.num_passage_tokens)
    assert log.read_text(encoding="utf-8") == asked
    assert len(study.runs) == 15
    statuses = select(study, "select status, count(*) as n from runs group by all")
    assert statuses == [{"status": "complete", "n": 15}]
    settings = {tuple(row.values()) for row in select(study, "select distinct max_num_seqs, strategy from runs")}
    assert settings == {(num, name) for num in (4, 8, 16) for name in ("pointwise", "sliding")}
    assert study.num_queries == 4 - 1  # one has no candidates
    assert study.num_passage_tokens > 0


@pytest.mark.soak
@pytest.mark.slow
def test_a_killed_study_goes_on_with_the_arm_that_is_not_complete(model_folder, fake_vllm, tmp_path):
    fake_vllm(log=str(tmp_path / "asked"), die_at=6)
    path = make_study(tmp_path, model_folder, **{"packing.max_engine_starts": 1, "packing.max_poison_prompts": 0})
    with pytest.raises(EngineError):
        run_study(request(path))
    before = len((tmp_path / "asked").read_text(encoding="utf-8").splitlines())

    study = run_study(request(path))

    windows = select(study, "select count(*) as n from windows")[0]["n"]
    assert before > 0
    assert len((tmp_path / "asked").read_text(encoding="utf-8").splitlines()) <= windows + 60
    assert len(study.runs) == 15


@pytest.mark.slow
def test_where_tokens_allow_point_wise_queues_at_max_num_seqs_and_list_wise_does_not(study_run):
    study, _, _ = study_run
    findings = read_findings(study)

    for each in findings.arms:
        arm = each.run.arm
        (direct,) = select(
            study,
            "select count(*) filter (num_prefill_seqs + num_decode_seqs = "
            f"{arm.max_num_seqs} and num_waiting_seqs > 0) as full_steps, max(num_waiting_seqs) as waiting, "
            f"count(*) as steps from engine_steps where run_id = '{each.run.run_id}'",
        )
        assert each.values["num_full_steps"] == direct["full_steps"]
        assert each.values["max_waiting_seqs"] == direct["waiting"]
        assert each.values["num_steps"] == direct["steps"] > 0
        longest = arm.max_num_seqs * each.values["longest_prompt_tokens"]
        if arm.side == "point-wise" and longest <= 4096 and arm.queries_at_once is None:
            assert each.values["num_full_steps"] > 0
        if arm.side == "list-wise":
            assert each.values["num_full_steps"] == 0


@pytest.mark.slow
def test_the_timeline_adds_up_to_what_was_asked(study_run):
    study, _, _ = study_run

    for run in study.runs:
        (steps,) = select(
            study,
            "select sum(prefill_tokens)::bigint as tokens, sum(num_prefill_seqs)::bigint as seqs, "
            f"min(elapsed_ms) as shortest from engine_steps where run_id = '{run.run_id}'",
        )
        (windows,) = select(
            study,
            f"select sum(prompt_tokens)::bigint as tokens, count(*) as seqs from windows where run_id = '{run.run_id}'",
        )
        assert (steps["tokens"], steps["seqs"]) == (windows["tokens"], windows["seqs"])
        assert steps["shortest"] >= 0


@pytest.mark.slow
def test_last_block_waste_is_that_of_every_sequence_to_the_token(study_run):
    study, _, _ = study_run

    for each in read_findings(study).arms:
        rows = select(study, f"select prompt_tokens, output_tokens from windows where run_id = '{each.run.run_id}'")
        size = each.values["block_size"]
        lengths = [row["prompt_tokens"] + row["output_tokens"] - 1 for row in rows]
        assert each.values["last_block_waste_tokens"] == sum(-length % size for length in lengths)
        assert each.values["last_block_waste_tokens"] == each.values["counted_waste_tokens"]
        assert each.values["blocks_used"] == sum(math.ceil(length / size) for length in lengths)
        assert each.values["predicted_blocks"] >= each.values["blocks_used"]


@pytest.mark.slow
def test_a_timeline_is_off_unless_it_is_asked_for(tmp_path, model_folder, fake_vllm):
    config = make_settings(tmp_path, model_folder, make_inputs(tmp_path / "in", [5]))
    prepared = prepare_night(NightRequest(config=config, night=date(2026, 11, 29)))

    run_night(prepared)

    with store_of(prepared).unit_of_work() as database:
        assert database.query_text("select count(*) as n from engine_steps").to_pylist() == [{"n": 0}]


@pytest.mark.slow
def test_claims_are_told_with_numbers_and_a_reason(study_run, capsys):
    _, path, _ = study_run

    main(["study", str(path), "--night", "2026-11-29", "--no-prefect"])

    told = " ".join(capsys.readouterr().out.split())
    findings = read_findings(run_study(request(path)))
    assert len(findings.claims) >= 10
    for claim in findings.claims:
        assert claim.numbers
        assert claim.why
    assert told.count("holds here") + told.count("does not hold here") >= len(findings.claims) - 2
    assert "Serving benchmark by arm" in told
    assert "Mean TTFT (ms)" in told
    page = Path(findings.study.store.path.parent / "reports" / "study-nightly.html").read_text(encoding="utf-8")
    assert page.count("<article") == len(findings.claims)
    assert "<script" not in page
    assert set(re.findall(r"https?://[^/\"]+", page)) <= {"http://www.w3.org"}  # names of SVG's vocabulary
    assert page.count("<figure") == 2 * 4  # point-wise with the fewest sequences, and three sides of the base


@pytest.mark.parametrize("arguments", [["study"], ["study", "x.toml", "--simulate"]])
def test_a_study_needs_a_file_or_a_simulation(arguments, capsys):
    with pytest.raises(SystemExit) as ended:
        main(arguments)

    assert ended.value.code == 2
    assert "give a settings file" in capsys.readouterr().err


def test_settings_without_a_study_are_refused(tmp_path, model_folder):
    config = make_settings(tmp_path, model_folder, make_inputs(tmp_path / "in", [5]))

    with pytest.raises(ConfigError, match=r"no \[study\] section"):
        run_study(request(config))


# ---- the fit


@given(st.integers(10, 60), st.floats(-5, 5), st.floats(0, 100), st.integers(0, 10_000))
def test_a_slope_is_least_squares(num_points, slope, intercept, number):
    rng = np.random.default_rng(number)
    x = rng.integers(1, 60, num_points).astype(float)
    x[0], x[1] = 1.0, 60.0
    y = intercept + slope * x + rng.normal(0, 1, num_points)

    fit = fit_slope(x, y)

    expected = np.polyfit(x, y, 1)
    assert fit.slope == pytest.approx(expected[0], abs=1e-6)
    assert fit.intercept == pytest.approx(expected[1], abs=1e-5)
    assert fit.low < fit.slope < fit.high


def test_the_interval_of_a_slope_holds_the_true_one_about_as_often_as_it_says():
    rng = np.random.default_rng(7)
    x = np.linspace(1, 40, 30)
    fits = [fit_slope(x, 5 + 0.3 * x + rng.normal(0, 2, 30)) for _ in range(400)]

    assert 0.92 < np.mean([fit.low <= 0.3 <= fit.high for fit in fits]) < 0.98


@pytest.mark.parametrize(("x", "y"), [([], []), ([1, 2, 3], [1, 2, 3]), ([4] * 20, list(range(20)))])
def test_few_points_or_one_x_give_no_slope(x, y):
    assert fit_slope(x, y) is None


# ---- latencies against raw metrics


@pytest.mark.slow
def test_the_serving_benchmark_is_that_of_the_raw_metrics(tmp_path, model_folder, fake_vllm):
    """TTFT, TPOT, E2EL and queue time from vLLM's fields by DESIGN section 2; ITL from every logged gap."""
    fake_vllm(metrics_log=str(tmp_path / "metrics"))
    values = make_inputs(tmp_path / "in", [9, 7, 12, 3]) | {"strategy.decode_mode": "permutation"}
    prepared = prepare_night(
        NightRequest(config=make_settings(tmp_path, model_folder, values), night=date(2026, 11, 29))
    )

    run_night(prepared)

    raw = [json.loads(line) for line in Path(tmp_path / "metrics").read_text(encoding="utf-8").splitlines()]
    with store_of(prepared).unit_of_work() as database:
        (view,) = database.query_text("select * from serving_benchmark").to_pylist()
    decode = [each["last_token_ts"] - each["first_token_ts"] for each in raw]
    expected = {
        "ttft": [each["first_token_latency"] for each in raw],
        "tpot": [span / (each["num_tokens"] - 1) for span, each in zip(decode, raw, strict=True)],
        "e2el": [each["first_token_latency"] + span for span, each in zip(decode, raw, strict=True)],
        "queue": [each["scheduled_ts"] - each["queued_ts"] for each in raw],
    }
    for name, values in expected.items():
        assert view[f"mean_{name}_s"] == pytest.approx(np.mean(values), rel=1e-9)
        assert view[f"median_{name}_s"] == pytest.approx(np.quantile(values, 0.5), rel=1e-9)
        assert view[f"p99_{name}_s"] == pytest.approx(np.quantile(values, 0.99), rel=1e-9)
    gaps = [gap for each in raw for gap in each["gaps"]]
    assert view["mean_itl_s"] == pytest.approx(np.mean(gaps), rel=1e-9)
    for name, share in (("median", 0.5), ("p99", 0.99)):  # merged histogram: within 0.5 % of a gap
        low, high = (np.quantile(gaps, share, method=method) for method in ("lower", "higher"))
        assert low * 0.995 <= view[f"{name}_itl_s"] <= high * 1.005
    assert view["successful_requests"] == len(raw)
