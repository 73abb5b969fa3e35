"""The host's part of a night: everything but the engine, which answers at once.

    python -m tests.benchmarks.host [--queries 10000] [--candidates 100] [--repeats 1] [--inputs FOLDER] [--profile FILE]

Every passage is another text, as long as DL19's. The night is measured in a process of its own, from settings to
published: wall and CPU seconds by stage, and the largest resident memory, memory-mapped pages included. The bare tokeniser
encodes the same texts, up to a million of them, in calls of 5,000 with `encode_batch_fast` on all cores, and reads their
ids. The figure is the ratio of the two rates: the night's candidates a second over the tokeniser's passages a second.
"""

import argparse
import cProfile
import json
import pstats
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from tokenizers import Tokenizer

from tasks.nightly.night import open_night
from tasks.system.environment import STATE
from tasks.system.errors import CheckFailed
from tasks.tools.plan import CacheAssumption, FirstStageEngine, assumed_limits
from tests.benchmarks.common import median, peak_mb, prepare, run_bench, run_child, sample_model, scratch_folder
from tests.benchmarks.generated import kept_inputs
from tests.makers import select

CACHE = CacheAssumption(num_gpu_blocks=27_500, block_size=16)  # a 7B model on a GPU with 80 GB
KEPT = STATE / "bench"
STAGES = ("prepare", "open", "stage", "rank", "check", "publish", "night", "tokeniser")
TEXTS_A_CALL, MOST_TEXTS = 5_000, 1_000_000
RANKING = {
    "strategy.window_size": 20,
    "strategy.stride": 10,
    "prompt.max_passage_tokens": 160,
    "engine.max_model_len": 4096,
}


def bench(num_queries: int, num_candidates: int, repeats: int, kept: Path, profile: Path | None):
    seen = [measure(num_queries, num_candidates, kept, profile) for _ in range(repeats)]
    medians = {name: median([each[name] for each in seen]) for name in seen[0]}
    stages = [
        {"stage": name, "wall_s": medians.pop(f"{name}_s"), "cpu_s": medians.pop(f"{name}_cpu_s")} for name in STAGES
    ]
    return {"queries": num_queries, "candidates": num_candidates, "repeats": repeats, **medians}, stages


def measure(num_queries: int, num_candidates: int, kept: Path, profile: Path | None = None) -> dict[str, Any]:
    """A night and the tokeniser on the same texts, one after the other, each in its own process."""
    sample_model()
    inputs = kept_inputs(kept, num_queries, num_candidates)
    night = run_child("tests.benchmarks.host", "--night", inputs, *([profile] if profile else []))
    bare = run_child("tests.benchmarks.host", "--tokeniser", inputs)
    return {**night, **bare, "ratio": night["candidates_per_s"] / bare["passages_per_s"]}


class _Stopwatch:
    """Wall and CPU seconds of all threads, by stage."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        wall, cpu = time.monotonic(), time.process_time()
        try:
            yield
        finally:
            self.seconds |= {f"{name}_s": time.monotonic() - wall, f"{name}_cpu_s": time.process_time() - cpu}


def run_night(inputs: Path, profile: Path | None) -> None:
    """Child: prints what it took."""
    profiler = cProfile.Profile()
    watch = _Stopwatch()
    values = {f"inputs.{name}": str(inputs / f"{name}.parquet") for name in ("queries", "documents", "candidates")}
    with scratch_folder() as folder:
        if profile:
            profiler.enable()
        with watch("night"):
            with watch("prepare"):
                prepared = prepare(folder, values | RANKING, publish=True)
            with watch("open"):
                engine = FirstStageEngine(assumed_limits(prepared, CACHE), prepared.recipe)
                opened = open_night(prepared, None, engine)
                night = opened.__enter__()
            with watch("stage"):
                night.stage()
            with watch("rank"):
                night.rank()
            with watch("check"):
                night.check()
            with watch("publish"):
                night.publish()
            opened.__exit__(None, None, None)
        if profile:
            profiler.disable()
            with profile.open("w", encoding="utf-8") as stream:
                pstats.Stats(profiler, stream=stream).sort_stats("tottime").print_stats(40)
        try:
            night.conclude()
        except CheckFailed as error:
            raise SystemExit(f"host: {error}") from error
        (rows,) = select(
            prepared,
            "select (select count(*) from scores) as num_scores, (select count(*) from windows) as num_windows, "
            "(select count(*) from batches where num_prompts > 0) as num_batches",
        )
        database_mb = prepared.settings.database_path.stat().st_size >> 20
    rate = {"candidates_per_s": rows["num_scores"] / watch.seconds["night_s"]}
    print(json.dumps({**watch.seconds, **rows, **rate, "peak_mb": peak_mb(), "database_mb": database_mb}))


def run_tokeniser(inputs: Path) -> None:
    """Child: prints the rate of the tokenizer alone; reading the texts is not counted."""
    tokenizer = Tokenizer.from_file(str(sample_model() / "tokenizer.json"))
    wall = cpu = 0.0
    num_texts = num_tokens = 0
    for batch in pq.ParquetFile(inputs / "documents.parquet").iter_batches(TEXTS_A_CALL, columns=["text"]):
        texts = batch.column("text").to_pylist()
        started, cpu_started = time.monotonic(), time.process_time()
        num_tokens += sum(len(each.ids) for each in tokenizer.encode_batch_fast(texts, add_special_tokens=False))
        wall, cpu = wall + time.monotonic() - started, cpu + time.process_time() - cpu_started
        num_texts += len(texts)
        if num_texts >= MOST_TEXTS:
            break
    told = {"tokeniser_s": wall, "tokeniser_cpu_s": cpu, "passages_per_s": num_texts / wall}
    print(json.dumps(told | {"tokens_mean": num_tokens / num_texts}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--queries", type=int, default=10_000)
    parser.add_argument("--candidates", type=int, default=100)
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--inputs", type=Path, default=KEPT, help="folder in which the generated inputs are kept")
    parser.add_argument("--profile", type=Path, help="file for cProfile's table; the night takes longer with it")
    asked = parser.parse_args()
    run_bench("host", lambda: bench(asked.queries, asked.candidates, asked.repeats, asked.inputs, asked.profile))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--night"]:
        run_night(Path(sys.argv[2]), Path(sys.argv[3]) if len(sys.argv) > 3 else None)
    elif sys.argv[1:2] == ["--tokeniser"]:
        run_tokeniser(Path(sys.argv[2]))
    else:
        main()
