"""How long a night takes: counted before it, measured by a bench, held against `[night] finish_by` while it runs."""

import logging
import re
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta

import pytest

from flows.cli import main
from tasks.forecast.demand import count_demand
from tasks.forecast.rates import Forecast, PrefillRate, Rates
from tasks.nightly import night_progress
from tasks.nightly.night import run_night
from tasks.nightly.outlook import (
    VARIANTS,
    Option,
    Outlook,
    QuerySample,
    RunToForecast,
    advise,
    find_rates,
    note_forecast,
    rates_path,
    read_rates,
    simulated_ndcg,
    time_tables,
)
from tasks.nightly.prepare import NightRequest, prepare_night
from tasks.nightly.run_choice import store_of
from tasks.system.errors import AlreadyRunning, ConfigError, DeadlinePassed, PackrankError
from tasks.system.run_lock import run_lock
from tasks.tools import plan as plan_module
from tasks.tools.plan import CacheAssumption, plan_night
from tasks.tools.rates_bench import calibrate, write_rates
from tests.makers import asked, make_inputs, make_settings, select, value

LISTS = [2, 5, 9, 12]  # 1 + 2 + 4 + 5 windows of 4, stride 2
NUM_WINDOWS = 12
OWN_ROW = "sliding (this night's) or sliding, depth 30"  # of lists that are shorter
SMALL_BATCHES = {"packing__batch_loads": 1, "engine__max_num_seqs": 2}


@pytest.fixture
def night(tmp_path, model_folder, fake_vllm):
    """Prepares a night; keywords are settings with __ for the dot."""

    def make(lists=LISTS, **settings):
        values = {name.replace("__", "."): value for name, value in settings.items()}
        config = make_settings(tmp_path, model_folder, make_inputs(tmp_path / "in", lists) | values)
        return prepare_night(NightRequest(config=config, night=date(2026, 11, 29)))

    return make


def rates(**values):
    return Rates(prefill=(PrefillRate(prompt_tokens=100.0, tokens_per_s=1_000.0),), **values)


def table(tables, title):
    return next(each for each in tables if each.title.startswith(title))


def column(shown, name):
    place = shown.columns.index(name)
    return {row[0]: row[place] for row in shown.texts}


def number(text):
    return float(text.replace(",", ""))


def hours(text):
    whole, minutes = re.fullmatch(r"(\d+) h (\d+) min", text).groups()
    return int(whole) + int(minutes) / 60


# ---- before a night


@pytest.mark.parametrize(
    "strategy",
    [
        {"strategy__name": "sliding"},
        {"strategy__name": "tdpart", "strategy__top_k": 2},
        {"strategy__name": "setwise", "strategy__decode_mode": "select", "strategy__top_k": 3},
        {"strategy__name": "sliding", "strategy__decode_mode": "permutation"},
    ],
    ids=lambda each: "-".join(map(str, each.values())),
)
def test_what_is_counted_is_what_would_be_built(night, tmp_path, strategy):
    prepared = night(**strategy)

    staged = prepared.stage(tmp_path / "staging")
    counted = count_demand(staged, prepared.recipe, range(len(LISTS)), len(LISTS), agreement=1.0)

    figures = dict(table(plan_night(prepared, CacheAssumption()), "Plan").texts)
    assert number(figures["prompts"]) == len(counted.query)
    assert number(figures["prompt tokens"]) == counted.prompt_tokens.sum()
    assert number(figures["output tokens at most"]) == counted.output_tokens.sum()
    mode = prepared.settings.strategy.decode_mode
    named = None if mode == "permutation" else "52, opened: 'A' is one token"
    assert figures.get(f"identifiers of {mode}") == named


def test_a_sampled_plan_holds_the_whole_one_in_its_intervals(night, monkeypatch):
    prepared = night([2 + number % 13 for number in range(400)], prompt__max_passage_tokens=12)
    whole = dict(table(plan_night(prepared, CacheAssumption()), "Plan").texts)
    monkeypatch.setattr(plan_module, "EXACT_CANDIDATES", 1_000)
    monkeypatch.setattr(plan_module, "SAMPLED_QUERIES", 100)

    shown = table(plan_night(prepared, CacheAssumption()), "Plan")
    again = table(plan_night(prepared, CacheAssumption()), "Plan")

    assert "From a sample of" in shown.note
    assert shown == again
    sampled = dict(shown.texts)
    assert number(sampled["queries"]) == 400
    for name in ("prompts", "passages shown", "prompt tokens", "output tokens at most", "passage tokens left out"):
        middle, half = map(number, sampled[name].split(" ± "))
        assert 0 < half < 0.3 * middle, name
        assert abs(middle - number(whole[name])) <= 1.5 * half, name  # one draw in three hundred is further off


def test_a_sample_reads_past_the_other_queries_documents(night, monkeypatch):
    """Also past what is wrong with them: only the drawn lists are staged."""
    monkeypatch.setattr(plan_module, "EXACT_CANDIDATES", 10)
    monkeypatch.setattr(plan_module, "SAMPLED_QUERIES", 2)

    figures = dict(table(plan_night(night([3] * 40), CacheAssumption()), "Plan").texts)

    assert number(figures["documents named, of the sample"]) < 43
    assert number(figures["candidates"]) in (0, 120)


def test_strategies_that_go_with_the_decode_mode_are_set_against_the_deadline(night, tmp_path):
    prepared = night([12] * 4)
    waiting = QuerySample(prepared.stage(tmp_path / "staging"), range(4), 40)  # each stands for ten

    time, strategies = time_tables(prepared, waiting, Outlook(rates(spread=0.1), deadline_s=36.0))

    took = {label: number(tokens) / 1_000 for label, tokens in column(strategies, "prompt tokens").items()}
    assert set(took) >= {OWN_ROW, "tdpart", "blitz", "single", "jointrank, 4 repeats"}
    assert not {"setwise", "pointwise", "pairwise heapsort"} & set(took)  # of other decode modes
    for label, in_time in column(strategies, "in time").items():
        if label not in ("tdpart", "blitz"):  # whose windows depend on the answers
            assert in_time == ("yes" if took[label] * 1.1 <= 36 else "perhaps" if took[label] <= 36 else "no"), label
    assert dict(time.texts)["rates"] == "given"
    assert re.match(r"\d+\.\d s to \d+\.\d s", dict(time.texts)["engine time"])


def test_only_the_nights_own_strategy_reuses_and_rows_have_their_sizes(night, tmp_path):
    """After a publication nothing was left to ask, and every strategy took 0 s and was in time."""
    prepared = night([12] * 4)
    staged = prepared.stage(tmp_path / "staging")
    everything = QuerySample(staged, range(4), 4)

    _, strategies = time_tables(prepared, QuerySample(staged, [], 0), Outlook(rates(), deadline_s=36.0), everything)

    windows = {label: number(found) for label, found in column(strategies, "windows").items()}
    assert windows.pop("sliding (this night's, 4 queries reused)") == 0
    assert windows["sliding, depth 30"] > 0  # the same windows, but settings of which nothing was published
    assert min(windows.values()) > 0
    assert set(column(strategies, "window").values()) == {"4"}
    assert column(strategies, "depth")["single"] == "4"
    assert column(strategies, "depth")["tdpart"] == "all"
    assert set(column(strategies, "simulated nDCG@10").values()) == {"-"}  # windows of 4
    assert "not known" in strategies.note


def test_strategies_that_ask_the_same_are_one_row(night, tmp_path):
    """With a depth of one window they are all that window."""
    prepared = night([12] * 4, strategy__depth=4)
    waiting = QuerySample(prepared.stage(tmp_path / "staging"), range(4), 4)

    _, strategies = time_tables(prepared, waiting, Outlook(rates()))

    labels = list(column(strategies, "strategy"))
    (own,) = [label for label in labels if "this night's" in label]
    assert {"single", "blitz", "tdpart"} <= {part.removesuffix(" (this night's)") for part in own.split(" or ")}, labels
    assert len(labels) < 6


@pytest.mark.parametrize(
    ("settings", "length", "ndcg"),
    [
        ({}, 100, 0.870),
        ({}, 30, None),
        ({"window_size": 10}, 100, None),
        ({"depth": 50}, 100, None),
        ({"score_gap": 0.5}, 100, None),
        ({"top_k": 5}, 100, None),
    ],
)
def test_a_simulated_figure_is_shown_only_for_the_sizes_that_were_simulated(night, settings, length, ndcg):
    asked_for = {"stride": None, "window_size": 20, "name": "tdpart"} | settings
    prepared = night([2], **{f"strategy__{name}": value for name, value in asked_for.items()})
    (variant,) = [each for _, each in VARIANTS if each.label == "tdpart"]

    assert simulated_ndcg(variant, prepared.settings.strategy, prepared.recipe, length) == ndcg


def test_shards_shorten_the_night_and_leave_its_gpu_hours(night, tmp_path):
    told = {}
    for num_shards in (1, 4):
        prepared = night([12] * 4, packing__shards=num_shards, engine__tensor_parallel_size=2)
        waiting = QuerySample(prepared.stage(tmp_path / f"staging{num_shards}"), range(4), 4_000_000)
        time, strategies = time_tables(prepared, waiting, Outlook(rates(spread=0.0), deadline_s=3_600.0))
        told[num_shards] = dict(time.texts), column(strategies, "engine time")[OWN_ROW]

    (alone, own), (shared, own_shared) = told[1], told[4]
    assert alone["GPU-hours, 2 GPUs"] == shared["GPU-hours, 8 GPUs"]
    assert alone["engine time"] == own
    assert shared["engine time, the slowest of 4 shards"] == own_shared
    assert hours(shared["expected"]) == pytest.approx(hours(alone["expected"]) / 4, rel=0.02)


def test_the_strategy_to_take_is_the_best_of_those_that_end_in_time():
    options = [
        Option("cheap", 20, None, 0.8, None, Forecast(1, 2, 3)),
        Option("unknown", 20, None, None, None, Forecast(1, 2, 3)),
        Option("good", 20, None, 0.9, None, Forecast(10, 20, 30)),
        Option("as good, but slower", 20, None, 0.9, None, Forecast(10, 20, 31)),
        Option("best", 20, None, 0.95, None, Forecast(20, 30, 40)),
    ]

    assert advise(options, 40).startswith("Take best.")
    assert advise(options, 39).startswith("Take good.")
    assert advise(options, 3).startswith("Take cheap.")
    assert advise(options, 2).startswith("None is sure to end in time; cheap is the fastest.")
    assert advise(options[1:2], 40).startswith(
        "1 of 1 end in time; which of them ranks best at these sizes is not known"
    )


def test_without_rates_a_plan_says_how_to_get_them_and_estimates_for_gpus_where_asked_to(night):
    prepared = night()

    (*_, alone) = plan_night(prepared, CacheAssumption())
    time, estimate = plan_night(prepared, CacheAssumption(), outlook=Outlook(num_parameters=8e9))[-2:]

    assert alone == time
    assert (time.title, dict(time.texts)["engine time"]) == ("Time", "not known")
    assert "packrank bench measures" in time.note
    assert estimate.title == "GPUs, a model of 8B parameters"
    assert [row[0] for row in estimate.rows] == ["H100 SXM", "H200 SXM"]
    assert estimate.note.startswith("Estimate, not measured")
    with pytest.raises(ConfigError, match="--deadline needs --rates"):
        plan_night(prepared, CacheAssumption(), outlook=Outlook(deadline_s=60.0))


def test_rates_come_from_words_a_file_or_a_run(night, tmp_path):
    prepared = night()
    write_rates(rates(source="file"), tmp_path / "mine.json")

    assert find_rates(prepared, "prefill=5", tmp_path).source == "given"
    assert find_rates(prepared, "mine.json", tmp_path).source == "file"
    with pytest.raises(ConfigError, match="no such file, and no such run"):
        find_rates(prepared, "nothing", tmp_path)
    (tmp_path / "mine.json").write_text('{"prefill": [], "speed": 3}')
    with pytest.raises(ConfigError, match=r"mine\.json: not a rates file"):
        find_rates(prepared, "mine.json", tmp_path)


# ---- a bench, and a night that knows its rates


def test_a_bench_asks_distinct_prompts_of_three_lengths_and_leaves_the_rates_for_the_night(night, fake_vllm, tmp_path):
    prepared = night([12] * 30, strategy__decode_mode="permutation")
    fake_vllm(batch_s=0.02, log=str(tmp_path / "asked"))

    measured = calibrate(prepared, seconds=0.3)

    assert [point.prompt_tokens for point in measured.prefill] == sorted(
        point.prompt_tokens for point in measured.prefill
    )
    assert len(measured.prefill) == 3
    assert measured.decode_tokens_per_s > 0
    assert 0 < measured.answer_share <= 1
    assert (measured.model_identity, measured.device) == (prepared.model_identity, "fake")
    prompts = [(each["batch"], tuple(each["ids"])) for each in asked(tmp_path / "asked")]
    assert len(set(prompts)) == len(prompts)
    write_rates(measured, rates_path(prepared))
    assert read_rates(rates_path(prepared)) == measured
    assert not prepared.workspace.bench_scratch.exists()
    run_night(prepared)
    run_id = value(prepared, "select run_id from forecasts where rates like 'packrank bench, %'")
    with pytest.raises(PackrankError, match="answers were longer than one token"):
        find_rates(prepared, run_id, tmp_path)


def test_a_bench_does_not_run_beside_a_night(night):
    prepared = night()

    with run_lock(prepared.settings.database_path, "other"), pytest.raises(AlreadyRunning, match="run other"):
        calibrate(prepared, seconds=1)


def test_a_night_with_rates_has_its_forecast_beside_what_it_took(night, fake_vllm, tmp_path):
    fake_vllm(batch_s=0.05)
    prepared = night(**SMALL_BATCHES)
    write_rates(rates(device="fake", spread=0.1), rates_path(prepared))

    run_id = run_night(prepared)

    (row,) = select(
        prepared, "select forecast_low_s, forecast_high_s, actual_s, engine_s, prompt_tokens from run_summary"
    )
    assert row["forecast_low_s"] == pytest.approx(row["prompt_tokens"] / 1_000 * 0.9, rel=0.05)
    assert row["forecast_high_s"] == pytest.approx(row["prompt_tokens"] / 1_000 * 1.1, rel=0.05)
    assert row["engine_s"] <= row["actual_s"] <= row["engine_s"] + 60.0
    told = find_rates(prepared, run_id, tmp_path)
    assert told.source == f"run {run_id}"
    assert len(told.prefill) == 3
    demand = count_demand(prepared.stage(tmp_path / "s"), prepared.recipe, range(4), 4, 1.0)
    assert 0.05 < told.seconds(demand).sum() / row["engine_s"] < 20.0  # batches differ on a busy machine, units do not


@pytest.mark.parametrize(
    ("left", "told"),
    [("device", "the rates are of H100, not of fake"), ("file", "not a rates file"), ("decode", "no decode rate")],
)
def test_without_rates_that_fit_there_is_no_forecast_and_no_failure(night, tmp_path, caplog, left, told):
    prepared = night([3], strategy__decode_mode="permutation" if left == "decode" else "first_token")
    write_rates(rates(device="H100" if left == "device" else "fake"), rates_path(prepared))
    if left == "file":
        rates_path(prepared).write_text("{")
    store = store_of(prepared)
    store.prepare()

    with caplog.at_level(logging.WARNING, "tasks"):
        made = note_forecast(prepared, RunToForecast("r", store, prepared.stage(tmp_path / "s"), None), "fake")

    assert made is None
    assert value(prepared, "select count(*) from forecasts") == 0
    assert re.search(f"run_id=r no forecast: .*{told}", caplog.text)


# ---- finish_by


class Clock(datetime):
    """Real time, and as many hours more as the test says."""

    hours = 0.0

    @classmethod
    def now(cls, tz=None):
        return datetime.now(tz) + timedelta(hours=cls.hours)


@pytest.fixture
def clock(monkeypatch):
    monkeypatch.setattr(night_progress, "datetime", Clock)
    monkeypatch.setattr(Clock, "hours", 0.0)
    return Clock


def in_hours(hours):
    """A finish_by that is between so many hours and one minute less away."""
    return (datetime.now(UTC) + timedelta(hours=hours)).strftime("%H:%M")


@pytest.mark.fault(48)
def test_a_night_that_is_late_warns_stops_and_goes_on_from_there(night, fake_vllm, tmp_path, clock, caplog, capsys):
    fake_vllm(log=str(tmp_path / "asked"))
    settings = {"night__timezone": "UTC", **SMALL_BATCHES}
    prepared = night(**settings, night__finish_by=in_hours(2.5))

    def a_batch_takes_half_an_hour(progress):
        clock.hours += 0.5 * (progress.num_asked > 0 and progress.done < progress.total)

    with caplog.at_level(logging.WARNING, "tasks"), pytest.raises(DeadlinePassed) as stopped:
        run_night(prepared, a_batch_takes_half_an_hour)

    assert re.search(r"finish_by = \d\d:\d\d has passed \(.*UTC\) with \d+ of 12 windows done", str(stopped.value))
    assert caplog.text.count("at risk") == 1
    (run,) = select(prepared, "select status, error, published_at from runs")
    assert run["status"] == "failed"
    assert run["error"].startswith("DeadlinePassed: run ")
    committed = value(prepared, "select count(*) from windows")  # loaded, not left in the spool
    assert 0 < committed < NUM_WINDOWS
    assert len(asked(tmp_path / "asked")) == committed

    with pytest.raises(SystemExit) as ended:  # the same command asks nothing
        main(["run", str(tmp_path / "nightly.toml"), "--night", "2026-11-29", "--no-prefect"])
    assert ended.value.code == DeadlinePassed.exit_code == 1
    assert "finish_by" in capsys.readouterr().err
    assert len(asked(tmp_path / "asked")) == committed

    later = night(**settings)
    assert later.base_run_id == prepared.base_run_id
    told = []
    with caplog.at_level(logging.INFO, "tasks"):
        run_night(later, told.append)

    assert value(later, "select status from runs") == "complete"
    phases = list(dict.fromkeys(progress.phase for progress in told))
    assert phases == ["reading the input", "loading the model", "ranking", "checking"]
    assert all(f"run_id={later.base_run_id} {phase}" in caplog.text for phase in phases)
    ranked = [progress for progress in told if progress.phase == "ranking"][-1]
    assert (ranked.done, ranked.total, ranked.num_asked) == (NUM_WINDOWS, NUM_WINDOWS, NUM_WINDOWS - committed)
    assert value(later, "select count(*) from windows") == NUM_WINDOWS
    assert len(asked(tmp_path / "asked")) == NUM_WINDOWS


def test_rates_that_say_it_will_be_late_warn_at_once_and_what_is_ranked_in_time_is_not_lost(night, clock, caplog):
    prepared = replace(night([3, 3], night__timezone="UTC", night__finish_by=in_hours(2)), publish=True)
    slow = Rates(prefill=(PrefillRate(prompt_tokens=100.0, tokens_per_s=0.001),))
    write_rates(slow, rates_path(prepared))

    def last_batch_comes_too_late(progress):
        clock.hours = 3.0 * (progress.done == progress.total)

    with caplog.at_level(logging.WARNING, "tasks"):
        run_night(prepared, last_batch_comes_too_late)

    assert caplog.text.count("at risk") == 1
    assert value(prepared, "select status from runs") == "published"
    clock.hours = 30.0
    run_night(replace(prepared, night=date(2026, 11, 30), base_run_id="reuses-all"))  # needs no engine, so no time
    assert value(prepared, "select status from runs where run_id = 'reuses-all'") == "published"
