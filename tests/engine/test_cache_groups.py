"""KV blocks of models whose layers do not all hold everything: predicted against vLLM's own manager and real engines."""

import json
import os
import subprocess
import sys

import pytest

from tasks.engine.kv_cache import KVCacheGroup, KVCacheLimits
from tasks.nightly.night import run_night
from tasks.nightly.prepare import NightRequest, prepare_night
from tests.makers import ROOT, make_inputs, make_settings, select

WINDOW = KVCacheGroup("sliding_window", 128, span_tokens=256)
ATTENTION = KVCacheGroup("full_attention", 128)
GROUPS = {
    "qwen3": (ATTENTION,),
    "deepseek": (KVCacheGroup("full_attention", 16),),
    "mistral_window": (WINDOW,),
    "gemma3": (WINDOW, WINDOW, WINDOW, ATTENTION),
    "gpt_oss": (KVCacheGroup("sliding_window", 128, span_tokens=128), ATTENTION),
    "qwen3_next": (*[KVCacheGroup("mamba", 256)] * 3, KVCacheGroup("full_attention", 256)),
}
MAX_MODEL_LEN = 1536
BOUND = 1.05  # predicted / held
LAYOUTS = ["MLA", "gpt-oss", "Llama 4", "Qwen3-Next"]
MORE_LAYOUTS = [
    "full attention",
    "window",
    "window MLA",
    "Gemma 3",
    "odd window and chunk",
    "Qwen3-Next, no prefix cache",
]
LOOSE_LAYOUTS = ["Mamba 2 with checkpoints", "hits inside blocks"]  # see docs/adr/0024


@pytest.mark.parametrize("layouts", [LAYOUTS, pytest.param(MORE_LAYOUTS + LOOSE_LAYOUTS, marks=pytest.mark.soak)])
def test_vllms_own_manager_never_holds_more_than_predicted_and_no_sequence_is_preempted(tiny_model, layouts):
    """Layouts that no CPU can run too, each sequence alone and many in the smallest cache."""
    answer = subprocess.run(
        [sys.executable, "-m", "tests.engine.vllm_scheduler", str(tiny_model("qwen3")), *layouts],
        cwd=ROOT,
        env=os.environ | {"VLLM_LOGGING_LEVEL": "ERROR", "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )

    assert answer.returncode == 0, answer.stderr[-2_000:]
    told = [json.loads(line) for line in answer.stdout.splitlines() if line.startswith("{")]
    assert len(told) == 2 * len(layouts)
    for each in told:
        assert each["alone"]["least"] >= 1.0, each
        assert each["pressed"] == [{"num_preemptions": 0, "num_over": 0}] * 4, each
        may_hold_more = each["layout"] in LOOSE_LAYOUTS or (each["layout"] == "Qwen3-Next" and each["is_async"])
        assert may_hold_more or each["alone"]["ratio"] <= BOUND, each


@pytest.mark.parametrize(
    ("family", "driver", "decode_mode"),
    [
        ("gemma3", "stream", "permutation"),
        ("qwen3_next", "generate", "first_token"),
        *[
            pytest.param(family, driver, decode_mode, marks=pytest.mark.soak)
            for family in GROUPS
            for driver, decode_mode in (("generate", "permutation"), ("stream", "first_token"))
        ],
    ],
)
def test_a_night_in_the_smallest_cache_holds_what_was_predicted(tmp_path, tiny_model, family, driver, decode_mode):
    """One block more a window than its longest sequence has, and the null block: with fewer, vLLM does not start."""
    groups = GROUPS[family]
    smallest = 1 + sum(
        2 if group.kind == "mamba" else MAX_MODEL_LEN // group.block_size + (group.kind == "sliding_window")
        for group in groups
    )
    values = {
        "strategy.name": "single",
        "strategy.decode_mode": decode_mode,
        "strategy.window_size": 16,
        "strategy.stride": None,
        "packing.driver": driver,
        "packing.headroom_share": 0.0,
        "packing.batch_loads": 1,
        "packing.timeline": True,
        "engine.dtype": "bfloat16",
        "engine.enforce_eager": True,
        "engine.max_model_len": MAX_MODEL_LEN,
        "engine.max_num_batched_tokens": 2048,
        "engine.kv_cache_memory_bytes": 64 << 20,
        "engine.num_gpu_blocks_override": smallest,
        "checks.max_fallback_share": 1.0,
        "checks.max_partial_share": 1.0,
    }
    if family == "qwen3_next":  # the default on CPUs with AVX-512 BF16; with smaller states blocks have 128 tokens
        values["engine.mamba_ssm_cache_dtype"] = "float32"
    if family == "deepseek":  # the default on CPUs without AMX; with it blocks have 128 tokens
        values["engine.attention_backend"] = "CPU_MLA"
    if family == "gpt_oss":  # as its preset: a turn begins with its analysis otherwise
        values["prompt.turn_prefix"] = "<|channel|>final<|message|>"
    inputs = make_inputs(tmp_path / "in", [16] * 4, num_words=60)
    prepared = prepare_night(NightRequest(config=make_settings(tmp_path, tiny_model(family), inputs | values)))

    run_night(prepared)

    (run,) = select(prepared, "select num_gpu_blocks from runs")
    batches = select(
        prepared,
        "select num_prompts, num_preemptions, prompt_tokens, num_blocks, "
        "(select max(blocks_used) from engine_steps where batch_no = batches.batch_no) as held "
        "from batches where num_prompts > 0",
    )
    assert run["num_gpu_blocks"] == smallest
    limits = KVCacheLimits(smallest, 128, 8, 2048, MAX_MODEL_LEN, groups)
    assert max(limits.needed_blocks(*each.largest_need) for each in prepared.recipe.askings.values()) < smallest
    assert len(batches) >= 4  # an answer that names too few is asked for again
    assert sum(each["num_preemptions"] for each in batches) == 0
    assert all(each["num_prompts"] == 1 and each["prompt_tokens"] > 700 for each in batches), batches
    assert all(each["num_blocks"] >= each["held"] for each in batches), batches
    assert sum(each["num_blocks"] for each in batches) <= BOUND * sum(each["held"] for each in batches), batches
