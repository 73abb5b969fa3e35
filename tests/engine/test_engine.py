"""The real engine on the CPU with the small model: no preemption, one token a window, and kill -9."""

import os
import shutil
import signal
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from tasks.engine.batches import Batch, pack
from tasks.engine.engine_options import EngineOptions
from tasks.engine.kv_cache import batch_budget
from tasks.engine.process import engine_on_demand
from tasks.nightly.night import run_night
from tasks.nightly.prepare import NightRequest, prepare_night
from tasks.schedule.windows import Window
from tasks.system.environment import STATE, cache_environment, engine_environment
from tests.makers import ROOT, SAMPLE_MODEL, make_inputs, make_settings, make_text, make_tiny_model, select
from tests.processes import engines_of, wait_for

ENGINE = {
    "engine.model": str(SAMPLE_MODEL),
    "engine.enforce_eager": True,
    "engine.kv_cache_memory_bytes": 256 << 20,
}


@pytest.fixture(autouse=True)
def _needs_the_sample_model():
    if not SAMPLE_MODEL.is_dir():
        pytest.skip("models/sample is not there: run make setup")


def test_prompts_handed_over_plainly_are_preempted_and_ours_are_not(tmp_path):
    """Cache of 128 MiB, 22 blocks of 128 tokens; permutations grow while they are written."""
    config = make_settings(
        tmp_path, SAMPLE_MODEL, {"inputs.nested": "-", "strategy.decode_mode": "permutation", "strategy.window_size": 20, "engine.max_model_len": 2048}
    )  # fmt: skip
    from tasks.ranking.recipe import build_recipe
    from tasks.settings import load_settings

    settings = load_settings(config)
    asking = build_recipe(settings, SAMPLE_MODEL).main
    builder, sizes = asking.builder, asking.sizes
    prompts = []
    for number in range(9):
        passages = builder.encode_passages([make_text(number * 20 + place, 3) for place in range(20)])
        window = Window(tuple(range(20)))
        prompts.append(
            builder.build(f"q{number}", window, make_text(number, 3), passages, [len(each) for each in passages], sizes)
        )
    options = EngineOptions(
        keywords={"model": str(SAMPLE_MODEL), "max_model_len": 2048, "dtype": "float32", "enforce_eager": True, "kv_cache_memory_bytes": 128 << 20, "enable_prefix_caching": False},
        environment=engine_environment(STATE, tmp_path / "tmp", model_is_folder=True, enforce_eager=True),
        log_path=tmp_path / "engine.log",
        start_timeout_s=300,
        batch_timeout_s=300,
    )  # fmt: skip

    with engine_on_demand(options, max_starts=1, on_ready=lambda _: None) as engine:
        limits = engine.info.limits
        everything = Batch(tuple(prompts), needed_blocks=0, block_budget=0)
        plain, _ = engine.generate(everything)
        budget = batch_budget(limits, 0.02, one_token_answers=False, batch_loads=4)
        ours = [each for batch in pack(prompts, limits, budget) for each in engine.generate(batch)[0]]

    assert (limits.num_gpu_blocks, limits.block_size) == (22, 128)
    assert sum(each.num_preemptions for each in plain) > 0
    assert sum(each.num_preemptions for each in ours) == 0
    assert [each.request_id for each in ours] == [prompt.request_id for prompt in prompts]
    assert max(each.output_tokens for each in ours) > 20


@pytest.mark.parametrize(("decode_mode", "driver"), [("first_token", "generate"), ("permutation", "stream")])
def test_a_night_on_the_real_engine(tmp_path, decode_mode, driver):
    inputs = make_inputs(tmp_path / "in", [1, 3, 6, 8])
    config = make_settings(tmp_path, SAMPLE_MODEL, inputs | ENGINE | {"strategy.decode_mode": decode_mode, "packing.driver": driver, "checks.max_fallback_share": 1.0, "checks.max_partial_share": 1.0})  # fmt: skip
    prepared = prepare_night(NightRequest(config=config, publish=True))

    run_night(prepared)

    assert select(prepared, "select count(*) as n from latest_scores") == [{"n": 18}]
    (latency,) = select(prepared, "select * from serving_benchmark")
    assert latency["successful_requests"] == 1 + 2 + 3
    assert 0 < latency["median_ttft_s"] <= latency["p99_ttft_s"] <= latency["duration_s"]
    assert 0 <= latency["mean_queue_s"] < latency["duration_s"]
    if decode_mode == "first_token":
        assert select(prepared, "select distinct output_tokens as n from windows") == [{"n": 1}]
        assert select(prepared, "select bool_and(id_mass > 0.2 and parse_status = 'ok') as well from windows") == [
            {"well": True}
        ]
        assert latency["mean_tpot_s"] is None
    else:
        assert latency["mean_tpot_s"] > 0
        assert latency["p99_itl_s"] >= latency["median_itl_s"] > 0
        (gaps,) = select(
            prepared, "select sum(itl_count)::bigint as n, sum(output_tokens - num_prompts)::bigint as m from batches"
        )
        assert gaps["n"] == gaps["m"]


@pytest.mark.skipif(
    not (shutil.which("g++") and Path(sysconfig.get_path("include"), "Python.h").is_file()),
    reason="on a CPU torch compiles C++: g++ and Python's headers are not there",
)
def test_a_night_on_a_compiled_model(tmp_path):
    """No preset for a GPU sets enforce_eager: vLLM then compiles the model, which TORCHDYNAMO_DISABLE forbids.

    What is compiled lies in var/, and nothing under HOME: the next night, in another process, finds it there.
    """
    inputs = make_inputs(tmp_path / "in", [3])
    model = make_tiny_model(tmp_path / "model")
    config = make_settings(tmp_path, model, inputs | ENGINE | {"engine.model": str(model), "engine.enforce_eager": False, "packing.max_engine_starts": 1})  # fmt: skip
    command = [sys.executable, "-m", "flows.cli", "run", str(config), "--no-prefect"]
    (tmp_path / "home").mkdir()
    callers = {
        name: value for name, value in os.environ.items() if name not in (*cache_environment(STATE), "XDG_CACHE_HOME")
    }

    answer = subprocess.run(
        command, cwd=ROOT, env=callers | {"HOME": str(tmp_path / "home")}, capture_output=True, text=True, check=False
    )

    assert answer.returncode == 0, answer.stderr
    assert list((STATE / "vllm" / "torch_compile_cache").rglob("*.so"))
    assert list((tmp_path / "home").rglob("*")) == []
    prepared = prepare_night(NightRequest(config=config))
    assert select(prepared, "select status, num_ranked_queries as n from run_summary") == [
        {"status": "complete", "n": 1}
    ]


@pytest.mark.soak
@pytest.mark.fault(10, 14, 63)
def test_a_night_killed_on_the_real_engine_ends_with_the_rows_of_one_that_was_not(tmp_path):
    """Deterministic packing, so that rows can be compared; the command is killed once its first batches are durable."""
    inputs = make_inputs(tmp_path / "in", [8, 8, 6])
    values = (
        inputs
        | ENGINE
        | {"packing.deterministic": True, "packing.batch_loads": 1, "store.load_every_s": 1, "store.max_load_share": 1}
    )
    for folder in ("whole", "killed"):
        (tmp_path / folder).mkdir()
        make_settings(tmp_path / folder, SAMPLE_MODEL, values)
    whole = prepare_night(NightRequest(config=tmp_path / "whole" / "nightly.toml"))
    run_night(whole)
    killed = prepare_night(NightRequest(config=tmp_path / "killed" / "nightly.toml"))

    process = subprocess.Popen(
        [sys.executable, "-m", "flows.cli", "run", str(tmp_path / "killed" / "nightly.toml"), "--no-prefect"],
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    for line in process.stderr:
        if " batch=3 " in line:
            break
    assert engines_of(process.pid)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    wait_for(lambda: engines_of(process.pid) == [], 60)

    committed = "select query_id, round, window_no, outcome_order, outcome_logprobs from outcomes order by 1, 2, 3"
    run_night(killed)

    assert select(killed, committed) == select(whole, committed)
    scores = "select * exclude (run_id) from scores order by query_id, rank"
    assert select(killed, scores) == select(whole, scores)
    assert select(killed, "select count(*) as n from batches where num_prompts > 0")[0]["n"] >= 4


@pytest.mark.soak
@pytest.mark.fault(38)
def test_shards_on_the_real_engine_have_the_rows_of_a_night_without(tmp_path):
    """Deterministic packing: three starts of the engine."""
    inputs = make_inputs(tmp_path / "in", [8, 8, 6, 4])
    found = {}
    for shards in (1, 2):
        (tmp_path / str(shards)).mkdir()
        values = inputs | ENGINE | {"packing.deterministic": True, "packing.shards": shards}
        prepared = prepare_night(NightRequest(config=make_settings(tmp_path / str(shards), SAMPLE_MODEL, values)))
        run_night(prepared)
        found[shards] = [
            select(prepared, "select * exclude (run_id) from scores order by query_id, rank"),
            select(
                prepared, "select * exclude (run_id, answer) from outcomes order by query_id, round, window_no, attempt"
            ),
        ]

    assert len(found[1][0]) == 26
    assert found[2] == found[1]
    assert select(prepared, "select distinct shard from batches where num_prompts > 0 order by shard") == [
        {"shard": 0},
        {"shard": 1},
    ]


@pytest.mark.soak
def test_doctor_starts_the_engine(tmp_path):
    inputs = make_inputs(tmp_path / "in", [3])
    config = make_settings(tmp_path, SAMPLE_MODEL, inputs | ENGINE)

    answer = subprocess.run(
        [sys.executable, "-m", "flows.cli", "doctor", str(config)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )

    assert answer.returncode == 0, answer.stdout + answer.stderr
    assert "KV blocks of 128 tokens" in answer.stdout
