"""A night's makespan on ragged lists, against one bare `LLM.generate` of the same prompts without dependencies.

    python -m tests.benchmarks.makespan [--engine fake|real] [--modes first_token permutation] [--drivers generate stream]
        [--repeats 3] [--queries 200] [--shortest 20] [--longest 200] [--passage-tokens 64] [--set section.key=value ...]

Makespan: from an engine that is ready to the last commit, rounds waited for, answers parsed, rows loaded. Bare: the same
prompts, with the same sampling parameters, in one call of an engine of its own. Nights and bare calls take turns, and a
night is held against the mean of the calls before and after it: a machine's speed moves within minutes. The fake engine
sleeps a + b * tokens + c * sequences in each step (--step-cost, seconds), so its figures say what the order of prompts
and the host cost; the real one is asked a tenth: --engine real --queries 20 --passage-tokens 24.
"""

import argparse
import os
import statistics
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from tasks.engine.process import engine_on_demand
from tasks.settings import overrides_from
from tests.benchmarks.common import (
    SAMPLE_ENGINE,
    BareCalls,
    BareEngine,
    fake_engine,
    median,
    options_of,
    prepare,
    rank_night,
    recording,
    run_bench,
    scratch_folder,
)
from tests.benchmarks.generated import write_inputs

REAL_CACHE_BYTES = 268_435_456  # 91 blocks of 128 tokens, the sample's
SEED = 7


def bench(asked: argparse.Namespace):
    if asked.engine == "fake":
        cost = {"step_cost_s": asked.step_cost, "num_gpu_blocks": asked.num_gpu_blocks}
        os.environ.update(fake_engine(**cost))  # the engine children of this process
    rows = []
    with scratch_folder() as folder:
        lengths = np.random.default_rng(SEED).integers(asked.shortest, asked.longest + 1, asked.queries)
        values = _values(asked) | write_inputs(folder / "inputs", lengths, SEED)
        for mode in asked.modes:
            for driver in asked.drivers or [None]:
                driven = {} if driver is None else {"packing.driver": driver}
                chosen = values | driven | {"strategy.decode_mode": mode} | overrides_from(asked.set, Path.cwd())
                seen = list(_in_turn(chosen, folder / f"{mode}-{driver}", asked.repeats))
                rows.append({"mode": mode, "driver": driver or "default"} | _medians(seen))
    shown = {name: getattr(asked, name) for name in ("engine", "repeats", "queries", "step_cost", "num_gpu_blocks")}
    if asked.engine == "real":
        shown = {name: shown[name] for name in ("engine", "repeats", "queries")}
    return shown | {"set": asked.set, "largest_ratio": max(row["ratio"] for row in rows)}, rows


def _values(asked: argparse.Namespace) -> dict[str, Any]:
    engine = SAMPLE_ENGINE | {"engine.kv_cache_memory_bytes": REAL_CACHE_BYTES} if asked.engine == "real" else {}
    sizes = {"prompt.max_passage_tokens": asked.passage_tokens, "engine.max_model_len": 4096}
    return engine | sizes | {"strategy.window_size": 20, "strategy.stride": 10}


def _in_turn(values: dict[str, Any], folder: Path, repeats: int) -> Iterator[dict[str, Any]]:
    """Nights and bare calls, on two engines that are there at once and have answered one query each before."""
    nights = [recording(prepare(folder / f"night{number}", values)) for number in range(repeats)]
    warm = prepare(folder / "warm", values | _one_query(folder / "warm" / "inputs"))
    options = options_of(warm, folder)
    around: list[float] = []
    with engine_on_demand(options, 1, lambda _: None) as engine, BareEngine(options, folder) as bare:
        rank_night(warm, engine)
        for prepared, prompts in nights:
            engine.reset_prefix_cache()
            ranked = rank_night(prepared, engine)
            (called,) = bare.time([BareCalls("bare", prompts, [range(len(prompts))])]).values()
            around = [*around[-1:], called["s"]]
            ratio = ranked.makespan_s / statistics.fmean(around)
            yield asdict(ranked) | {"prompts": len(prompts), "bare_s": called["s"], "ratio": ratio}


def _one_query(folder: Path) -> dict[str, str]:
    return write_inputs(folder, [20], SEED + 1)


def _medians(seen: list[dict[str, Any]]) -> dict[str, Any]:
    counts = ("num_candidates", "prompts", "num_batches", "prompt_tokens", "output_tokens")
    return (
        {name: seen[-1][name] for name in counts}
        | {name: median([each[name] for each in seen]) for name in ("makespan_s", "engine_s", "bare_s", "ratio")}
        | {"ratios": [round(each["ratio"], 3) for each in seen]}
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", choices=("fake", "real"), default="fake")
    parser.add_argument("--modes", nargs="+", default=["first_token", "permutation"])
    parser.add_argument("--drivers", nargs="*", default=[], help="of [packing] driver; the default if none is named")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--queries", type=int, default=200)
    parser.add_argument("--shortest", type=int, default=20)
    parser.add_argument("--longest", type=int, default=200)
    parser.add_argument("--passage-tokens", type=int, default=64)
    parser.add_argument("--step-cost", type=float, nargs=3, default=[0.004, 0.00002, 0.00002])
    parser.add_argument("--num-gpu-blocks", type=int, default=8_000, help="of 16 tokens, of the fake engine")
    parser.add_argument("--set", action="append", default=[])
    asked = parser.parse_args()
    run_bench("makespan", lambda: bench(asked))


if __name__ == "__main__":
    main()
