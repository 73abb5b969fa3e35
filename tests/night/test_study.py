"""The study on the fake engine: its arms are runs, its figures those of the rows, its verdicts those of the figures."""

import json
import math
import re
from datetime import date
from pathlib import Path

import numpy as np
import pytest

from flows.cli import main
from tasks.nightly.night import run_night
from tasks.nightly.prepare import NightRequest, prepare_night
from tasks.nightly.run_choice import store_of
from tasks.study.arm_runs import StudyRequest, run_study
from tasks.study.claims.findings import read_findings
from tasks.study.document import fill_document, named_figures
from tasks.study.study_page import render_study
from tasks.system.errors import ConfigError, EngineError
from tests.browser import OUTSIDE, OVERLAPPING
from tests.makers import FAKE_VLLM, ROOT, make_inputs, make_settings
from tests.studies import make_study

NUM_RUNS = 2 * (4 + 3) + 3  # twice: base, one query at a time; once: quality


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


def test_a_study_is_a_run_an_arm_and_repeat_and_asks_nothing_twice(study_run):
    study, path, log = study_run
    asked = log.read_text(encoding="utf-8")

    again = run_study(request(path))

    assert (again.runs, again.num_passage_tokens) == (study.runs, study.num_passage_tokens)
    assert log.read_text(encoding="utf-8") == asked
    assert len({run.run_id for run in study.runs}) == len(study.runs) == NUM_RUNS
    statuses = select(study, "select status, count(*) as n from runs group by all")
    assert statuses == [{"status": "complete", "n": NUM_RUNS}]
    modes = {row["decode_mode"] for row in select(study, "select distinct decode_mode from runs")}
    assert modes == {"yes_no", "query_likelihood", "first_token", "permutation"}
    assert study.num_queries == 4 - 1  # one has no candidates
    assert study.num_passage_tokens > 0


def test_the_arms_of_an_engine_take_turns(study_run):
    study, _, _ = study_run
    started = {row["run_id"]: row["started_at"] for row in select(study, "select run_id, started_at from runs")}
    base = [run for run in study.runs if run.arm.condition.name == "base"]

    order = [(run.repeat, run.arm.asking.name) for run in sorted(base, key=lambda run: started[run.run_id])]

    assert [repeat for repeat, _ in order] == [1] * 4 + [2] * 4
    assert [name for _, name in order[:4]] == [name for _, name in order[4:]]


@pytest.mark.soak
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
    assert len(study.runs) == NUM_RUNS


def test_where_tokens_allow_as_many_run_as_max_num_seqs_and_the_others_wait(study_run):
    study, _, _ = study_run
    findings = read_findings(study)
    arm = findings.figures.find("pointwise", "q1")

    first, second, *_ = arm.first_steps

    assert (first["scheduled_seqs"], first["waiting_seqs"]) == (8, 30 - 8)
    assert (second["scheduled_seqs"], second["waiting_seqs"]) == (8, 30 - 16)
    (claim,) = [each for each in findings.claims if each.claim.startswith("of a query's requests")]
    assert claim.verdict == "holds"
    assert "Of 30 requests 8 ran in the first step and 22 waited" in claim.sentence
    assert findings.figures.find("listwise-100", "q1").values["max_waiting_seqs"] == 0


def test_no_row_of_the_benchmark_is_missing_where_permutations_are_written(study_run):
    study, _, _ = study_run
    findings = read_findings(study)

    table = findings.serving_table("base")

    column = table.columns.index("list-wise 100")
    assert [row[0] for row in table.rows if row[column] == "n/a"] == []
    assert [row[0] for row in table.rows if row[1] == "n/a"] != []  # one token has no TPOT
    phases = findings.phases_table()
    assert phases is not None
    assert "n/a" not in str(phases.rows)


def test_the_timeline_adds_up_to_what_was_asked(study_run):
    study, _, _ = study_run

    for run in study.runs:
        (steps,) = select(
            study,
            "select sum(prefill_tokens)::bigint as tokens, sum(num_new_seqs)::bigint as seqs, "
            "bool_and(0 <= schedule_ms + update_ms and schedule_ms + update_ms <= elapsed_ms) as is_within, "
            "bool_and(block_table_ms <= elapsed_ms and stored_tokens >= prefill_tokens) as is_stored, "
            f"min(elapsed_ms) as shortest from engine_steps where run_id = '{run.run_id}'",
        )
        (windows,) = select(
            study,
            f"select sum(prompt_tokens)::bigint as tokens, count(*) as seqs from windows where run_id = '{run.run_id}'",
        )
        assert (steps["tokens"], steps["seqs"]) == (windows["tokens"], windows["seqs"])
        assert steps["shortest"] >= 0
        assert (steps["is_within"], steps["is_stored"]) == (True, True)


def test_last_block_waste_is_that_of_every_sequence_to_the_token(study_run):
    study, _, _ = study_run

    for each in read_findings(study).figures.arms:
        rows = select(study, f"select prompt_tokens, output_tokens from windows where run_id = '{each.run_ids[0]}'")
        size = each.values["block_size"]
        lengths = [row["prompt_tokens"] + row["output_tokens"] - 1 for row in rows]
        assert each.values["last_block_waste_tokens"] == sum(-length % size for length in lengths)
        assert each.values["blocks_used"] == sum(math.ceil(length / size) for length in lengths)
        assert each.values["blocks_of_16"] == sum(math.ceil(length / 16) for length in lengths)
        assert each.reserved_share(2048) == pytest.approx(sum(lengths) / (len(lengths) * 2048))
        assert each.values["predicted_blocks"] >= each.values["blocks_used"]


def test_a_timeline_is_off_unless_it_is_asked_for(tmp_path, model_folder, fake_vllm):
    config = make_settings(tmp_path, model_folder, make_inputs(tmp_path / "in", [5]))
    prepared = prepare_night(NightRequest(config=config, night=date(2026, 11, 29)))

    run_night(prepared)

    with store_of(prepared).unit_of_work() as database:
        assert database.query_text("select count(*) as n from engine_steps").to_pylist() == [{"n": 0}]


def test_claims_are_told_with_numbers_and_a_reason(study_run, capsys):
    study, path, _ = study_run

    main(["study", str(path), "--night", "2026-11-29", "--no-prefect"])

    told = " ".join(capsys.readouterr().out.split())
    findings = read_findings(study)
    assert [claim.step for claim in findings.claims if claim.step] == [1, 2, 3, 3, 4, 5, 6, 7]
    assert len(findings.claims) >= 14
    for claim in findings.claims:
        assert claim.why
        assert re.search(r"\d", claim.sentence) or claim.verdict == "not decided", claim
    for timed in (claim for claim in findings.claims if "engine time" in claim.claim):
        assert timed.verdict == "not decided"  # two repeats are too few
    assert "Serving benchmark: all queries at once" in told
    assert "Mean TTFT (ms)" in told
    assert "Places in the KV cache" in told


def test_a_page_opens_with_the_argument_and_asks_nothing_of_the_network(study_run):
    study, _, _ = study_run
    findings = read_findings(study)

    page = render_study(findings)

    assert page.index('id="argument"') < page.index('id="claims"') < page.index('id="evidence"')
    assert page.count("<article") == len(findings.claims)
    glance = page[page.index("At a glance") : page.index("<article")]
    assert glance.count('data-label="verdict"') == len(findings.claims)
    assert "<script" not in page
    assert set(re.findall(r"https?://[^/\"]+", page)) <= {"http://www.w3.org"}  # names of SVG's vocabulary
    assert page.count("<figure") == 2 + 3  # point-wise and one window; all at once, windows of 6 too
    assert str(study.num_queries) in page


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
def test_a_page_is_whole_on_a_phone_and_on_a_desk(study_run, browser, tmp_path, width, scheme):
    study, _, _ = study_run
    page = tmp_path / "study.html"
    page.write_text(render_study(read_findings(study)), encoding="utf-8")

    browser.open(page.as_uri(), width, scheme)
    browser.value("document.querySelectorAll('details').forEach(each => each.open = true)")

    assert browser.value("document.documentElement.scrollWidth") <= width
    wider = "[...document.querySelectorAll('.table')].filter(each => each.scrollWidth > each.clientWidth + 1)"
    assert browser.value(f"{wider}.map(each => each.innerText.slice(0, 40))") == []
    assert browser.value(OUTSIDE) == []
    assert browser.value(OVERLAPPING) == []


def test_the_documents_get_the_studys_figures_in_both_languages(study_run, tmp_path):
    study, _, _ = study_run
    figures = named_figures(read_findings(study))

    for name in ("study.md", "study.ko.md"):
        copy = tmp_path / name
        copy.write_bytes((ROOT / "docs" / name).read_bytes())
        fill_document(copy, figures)
        text = copy.read_text(encoding="utf-8")
        assert "<!--one_running-->8<!--/-->" in text
        assert "<!--one_waiting-->22<!--/-->" in text


@pytest.mark.parametrize(
    "arguments", [["study"], ["study", "x.toml", "--simulate"], ["study", "--simulate", "--check-table", "x.json"]]
)
def test_a_study_needs_a_file_or_a_simulation(arguments, capsys):
    with pytest.raises(SystemExit) as ended:
        main(arguments)

    assert ended.value.code == 2
    assert "give a settings file" in capsys.readouterr().err


def test_settings_without_a_study_are_refused(tmp_path, model_folder):
    config = make_settings(tmp_path, model_folder, make_inputs(tmp_path / "in", [5]))

    with pytest.raises(ConfigError, match=r"no \[study\] section"):
        run_study(request(config))


# ---- latencies against raw metrics


def test_the_serving_benchmark_is_that_of_the_raw_metrics(tmp_path, model_folder, fake_vllm):
    """TTFT, TPOT, E2EL and queue time from vLLM's fields by DESIGN section 2; ITL from every logged gap."""
    fake_vllm(metrics_log=str(tmp_path / "metrics"))
    values = make_inputs(tmp_path / "in", [9, 7, 12, 3])
    values |= {"strategy.decode_mode": "permutation", "packing.driver": "generate"}  # the fake draws a call's times
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
