"""What a study says of given figures: verdicts beyond the spread only, and sentences with the numbers in them."""

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.settings import StudySettings
from tasks.study.arms import LIKELIHOOD, ONE_WINDOW, POINT_WISE, arms_of
from tasks.study.claims.argument import (
    block_tables,
    paging,
    phases,
    queue_time,
    room_for_others,
    running_and_waiting,
    scheduler,
)
from tasks.study.claims.figures import ArmFigures, Figures
from tasks.study.claims.further import engine_time, prefix_caching, quality, total_blocks, true_tables
from tasks.study.claims.verdicts import Spread, fit_slope, is_below, verdict_of
from tasks.study.model_costs import model_costs

SAMPLE_CONFIG = {
    "hidden_size": 576,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "intermediate_size": 1536,
    "vocab_size": 49152,
    "head_dim": 64,
    "dtype": "bfloat16",
}
SETTINGS = StudySettings(max_num_batched_tokens=12288)
ROW = {
    "block_size": 128,
    "max_num_seqs": 64,
    "max_num_batched_tokens": 2048,
    "num_gpu_blocks": 91,
    "prompt_tokens": 10_000,
    "cached_tokens": 0,
    "output_tokens": 100,
    "num_preemptions": 0,
    "num_steps": 10,
    "steps_ms": 1_000.0,
    "scheduler_ms": 20.0,
    "block_table_ms": 5.0,
    "mean_queue_s": 4.0,
    "mean_e2el_s": 5.0,
    "engine_s": 1.0,
    "least_free_seqs": 44,
    "least_free_blocks": 20,
    "full_tokens_share": 0.9,
    "waiting_share": 0.9,
    "longest_prompt_tokens": 3000,
}
SERVING = {
    "duration_s": 10.0,
    "mean_output_tokens": 1.0,
    "mean_ttft_s": 5.0,
    "mean_tpot_s": None,
    "mean_e2el_s": 5.0,
    "p99_e2el_s": 9.0,
    "length_tpot_covariance_s": None,
}


def arm(asking, condition="base", repeats=3, steps=(), full_steps=(), judged=None, serving=None, **values):
    """An arm; a list among its values has one value a repeat."""
    found = next(each for each in arms_of(SETTINGS) if each.asking == asking and each.condition.name == condition)
    rows = tuple(
        ROW | {name: value[number] if isinstance(value, list) else value for name, value in values.items()}
        for number in range(repeats)
    )
    tables = (SERVING | (serving or {}),) * repeats
    return ArmFigures(found, ("r",) * repeats, rows, tables, tuple(full_steps), tuple(steps), judged or {})


def point(condition="base", **values):
    return arm(
        POINT_WISE,
        condition,
        **{"num_sequences": 100, "used_places": 9_000, "blocks_used": 100, "blocks_of_16": 600} | values,
    )


def whole(condition="base", **values):
    return arm(
        ONE_WINDOW,
        condition,
        **{"num_sequences": 1, "used_places": 3_000, "blocks_used": 24, "blocks_of_16": 188} | values,
    )


def figures(*arms, costs=None):
    study = SimpleNamespace(num_queries=1, num_passage_tokens=2_400, max_model_len=4096, model_costs=costs)
    return Figures(study, arms)


def step(running, waiting, new=None):
    new = running if new is None else new
    return {"scheduled_seqs": running, "waiting_seqs": waiting, "new_seqs": new, "num_tokens": 0, "blocks_used": 0}


# ---- verdicts


@given(st.lists(st.floats(0, 10), min_size=3, max_size=5), st.lists(st.floats(0, 10), min_size=3, max_size=5))
def test_a_difference_is_decided_only_beyond_the_spread(ours, theirs):
    verdict = is_below(Spread(tuple(ours)), Spread(tuple(theirs)))

    assert verdict == (True if max(ours) < min(theirs) else False if min(ours) > max(theirs) else None)
    reverse = is_below(Spread(tuple(theirs)), Spread(tuple(ours)))
    assert reverse == (None if verdict is None else not verdict)


def test_fewer_than_three_repeats_decide_nothing():
    assert is_below(Spread((1.0, 1.0)), Spread((9.0, 9.0, 9.0))) is None


@pytest.mark.parametrize(
    ("parts", "verdict"),
    [
        ([True, True], "holds"),
        ([False], "does not hold"),
        ([True, False, None], "holds in part"),
        ([True, None], "not decided"),
        ([None], "not decided"),
        ([], "not decided"),
    ],
)
def test_parts_make_a_verdict(parts, verdict):
    assert verdict_of(parts) == verdict


# ---- the article's steps


def test_sixty_four_run_and_thirty_six_wait():
    first = point("q1", steps=[step(64, 36), step(36, 0)], max_num_batched_tokens=12288)
    claim = running_and_waiting(figures(first, point(steps=[step(20, 80)])))

    assert claim.verdict == "holds"
    assert claim.sentence == "Of 100 requests 64 ran in the first step and 36 waited; the next step ran 36."
    assert (
        "With max_num_batched_tokens = 2,048, 20 ran and 80 waited in the first step: the tokens of a step bound"
        in claim.why
    )


@pytest.mark.parametrize(("steps", "verdict"), [([step(22, 78)], "does not hold"), ([step(50, 0)], "not decided")])
def test_where_tokens_bind_or_few_are_asked_it_is_said(steps, verdict):
    assert running_and_waiting(figures(point("q1", steps=steps))).verdict == verdict


def test_contiguous_places_are_reserved_for_each_sequence_and_nearly_all_depends_on_the_block():
    claim = paging(figures(point(), whole()))

    assert claim.verdict == "holds in part"
    assert (
        "point-wise would fill 2.2% of them and list-wise 100 73.2%" in claim.sentence
    )  # 9,000 of 409,600; 3,000 of 4,096
    assert "blocks of 128 are 70.3% and 97.7% full, blocks of 16 are 93.8% and 99.7% full" in claim.sentence
    assert paging(figures(point(used_places=12_800, blocks_of_16=800), whole())).verdict == "holds"
    assert paging(figures(point(used_places=300_000), whole())).verdict == "does not hold"


def test_block_tables_cost_more_and_yet_may_not_be_noticed():
    small = block_tables(figures(point(block_table_ms=[5.0, 5.2, 5.4]), whole(block_table_ms=[1.0, 1.1, 1.2])))
    large = block_tables(figures(point(block_table_ms=[15.0, 15.2, 15.4]), whole(block_table_ms=[1.0, 1.1, 1.2])))
    unclear = block_tables(figures(point(block_table_ms=[5.0, 1.1, 5.4]), whole(block_table_ms=[1.0, 1.1, 1.2])))

    assert (small.verdict, large.verdict, unclear.verdict) == ("holds in part", "holds", "not decided")
    assert "100 block tables point-wise and 1 in list-wise 100: 400 against 96 bytes of block ids" in small.sentence
    assert "5.20 (5.00 to 5.40) against 1.10 (1.00 to 1.20) ms of host time" in small.sentence


@pytest.mark.parametrize(("slope_ms", "verdict"), [(0.05, "holds"), (0.0, "does not hold"), (-0.05, "does not hold")])
def test_the_scheduler_is_fitted_over_steps_of_equal_tokens(slope_ms, verdict):
    rng = np.random.default_rng(3)

    def full(num):
        return {"num_seqs": [num] * 8, "scheduler_ms": (0.3 + slope_ms * num + rng.normal(0, 0.05, 8)).tolist()}

    arms = (point(full_steps=[full(20), full(21), full(20)]), whole(full_steps=[full(1), full(1), full(2)]))
    claim = scheduler(figures(*arms))

    assert claim.verdict == verdict
    assert "95 % interval" in claim.sentence
    assert "48 steps of equal tokens" in claim.sentence


def test_waiting_makes_the_latency_of_point_wise():
    claim = queue_time(figures(point(mean_queue_s=[4.0, 4.1, 4.2]), whole(mean_queue_s=[0.1, 0.2, 0.3])))

    assert claim.verdict == "holds"
    assert "A point-wise request waited 4.10 (4.00 to 4.20) s, 82% (80% to 84%) of its latency" in claim.sentence


def test_room_is_slots_blocks_and_tokens():
    free = {"least_free_seqs": 63, "full_tokens_share": 0.1}
    one_at_a_time = (point("q1", least_free_seqs=0, full_tokens_share=0.0), whole("q1", **free))

    assert room_for_others(figures(*one_at_a_time)).verdict == "holds"
    both = figures(*one_at_a_time, point(), whole(least_free_seqs=60, full_tokens_share=0.95))
    claim = room_for_others(both)
    assert claim.verdict == "holds in part"
    assert "95% of that time was spent in steps whose tokens were used up" in claim.why


def test_each_phase_drives_what_binds_it():
    costs = model_costs(SAMPLE_CONFIG)
    values = {
        "prefill_s": [1.0, 1.1, 1.2],
        "prefill_only_tokens": 3_000,
        "prefill_steps": 2,
        "decode_s": [2.0, 2.1, 2.2],
        "decode_only_tokens": 60,
        "decode_steps": 60,
        "mean_decode_context_tokens": 3_030.0,
    }

    claim = phases(figures(whole("q1", **values), point(), costs=costs))

    assert claim.verdict == "holds"
    assert "Prefill ran 2,727 (2,500 to 3,000) tokens a second" in claim.sentence
    assert "decode ran 28.6 (27.3 to 30.0)" in claim.sentence
    assert "'Almost all prefill' is a definition" in claim.why


def test_the_costs_of_a_token_are_those_of_the_weights():
    costs = model_costs(SAMPLE_CONFIG)

    assert costs.layer_weights == 106_168_320  # 30 x (2 x 576 x 576 + 2 x 576 x 192 + 3 x 576 x 1536)
    assert costs.layer_weights + costs.output_weights == pytest.approx(134.5e6, rel=0.001)  # the model's name says 135M
    assert costs.kv_bytes_a_token == 23_040
    assert costs.decode_flops(0) == 2 * (costs.layer_weights + costs.output_weights)
    assert costs.decode_bytes(2, 100) == pytest.approx((costs.layer_weights + costs.output_weights) + 2_304_000)
    assert costs.prefill_bytes(2048) == pytest.approx(costs.layer_weights * 2 / 2048)


@pytest.mark.parametrize("config", [SAMPLE_CONFIG | {"num_local_experts": 8}, {"n_embd": 768, "n_layer": 12}])
def test_a_model_whose_costs_cannot_be_told_has_none(config):
    assert model_costs(config) is None
    assert phases(figures(whole("q1"), point())).verdict == "not decided"


# ---- further than the article


def test_engine_time_names_its_queries_and_is_decided_only_beyond_the_spread():
    less = engine_time(figures(point(engine_s=[9.0, 9.5, 9.9]), whole(engine_s=[5.0, 5.5, 8.9])), "base")
    overlap = engine_time(figures(point(engine_s=[9.0, 9.5, 9.9]), whole(engine_s=[5.0, 5.5, 9.1])), "base")
    more = engine_time(figures(point("q1", engine_s=[1.0, 1.1, 1.2]), whole("q1", engine_s=[2.0, 2.1, 2.2])), "q1")

    assert (less.verdict, overlap.verdict, more.verdict) == ("holds", "not decided", "does not hold")
    assert more.claim == "list-wise takes less engine time, with 1 query in flight"
    assert "With 1 query in flight a query took point-wise 1.10 (1.00 to 1.20) s" in more.sentence


def test_a_prefix_cache_that_found_nothing_saves_nothing():
    window = arms_of(SETTINGS)[2].asking
    values = {"num_sequences": 9, "used_places": 1, "blocks_used": 1, "blocks_of_16": 1}

    def judged(cached, seconds):
        arms = [point(name, cached_tokens=cached if name == "cache" else 0, engine_s=seconds[name]) for name in seconds]
        return prefix_caching(figures(*arms, *(arm(window, name, **values) for name in seconds)))[0]

    seconds = {"cache": [5.0, 5.1, 5.2], "nocache": [9.0, 9.1, 9.2]}
    assert judged(0, seconds).verdict == "not decided"
    assert judged(3_000, seconds).verdict == "holds"
    assert "point-wise 30.0% of the prompt tokens and +44.0% (+43.5% to +44.4%)" in judged(3_000, seconds).sentence


def test_quality_is_paired_by_query():
    queries = [f"q{number}" for number in range(8)]
    theirs = {query: 0.1 * number for number, query in enumerate(queries)}
    better = {query: value + 0.2 + 0.01 * (number % 2) for number, (query, value) in enumerate(theirs.items())}
    values = {"num_sequences": 1, "used_places": 1, "blocks_used": 1, "blocks_of_16": 1, "repeats": 1}

    (claim,) = quality(
        figures(
            arm(LIKELIHOOD, "quality", judged=theirs, **values), arm(ONE_WINDOW, "quality", judged=better, **values)
        )
    )
    (worse,) = quality(
        figures(
            arm(LIKELIHOOD, "quality", judged=better, **values), arm(ONE_WINDOW, "quality", judged=theirs, **values)
        )
    )

    assert (claim.verdict, worse.verdict) == ("holds", "does not hold")
    assert "8 queries, paired" in claim.sentence


def test_fewer_blocks_in_total_contradict_the_article():
    assert total_blocks(figures(point(), whole())).verdict == "does not hold"
    assert total_blocks(figures(point(), whole(blocks_used=98))).verdict == "holds"


def test_a_table_that_cannot_be_true_is_told():
    assert true_tables(figures(point(), whole())).verdict == "holds"
    claim = true_tables(figures(point(serving={"p99_e2el_s": 12.0}), whole()))
    assert claim.verdict == "does not hold"
    assert "P99 E2EL 12,000 ms" in claim.sentence


# ---- arms


def test_arms_ask_in_every_way_under_every_condition():
    arms = arms_of(StudySettings(max_num_seqs=[16, 64], max_num_batched_tokens=12288, prefix_block_size=32))

    assert len({each.name for each in arms}) == len(arms) == 16
    assert [each.name for each in arms[:4]] == [
        "pointwise-base",
        "likelihood-base",
        "listwise-20-base",
        "listwise-100-base",
    ]
    wide = next(each for each in arms if each.name == "pointwise-q1").overrides()
    assert (wide["engine.max_num_batched_tokens"], wide["packing.cohort_queries"]) == (12288, 1)
    assert "engine.max_num_batched_tokens" not in arms[0].overrides()
    assert {each.condition.name for each in arms if each.overrides().get("engine.block_size") == 32} == {
        "cache",
        "nocache",
    }
    assert [each.asking.name for each in arms if not each.condition.is_repeated] == [
        "likelihood",
        "listwise-20",
        "listwise-100",
    ]


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
