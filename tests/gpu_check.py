"""What to run once a GPU is at hand: `make gpu-check`. Ten minutes at most, on a bare host with requirements/gpu.txt.

    python -m tests.gpu_check [--only STEP ...] [--budget-s 600] [--patience 1]

Each step is a command of its own with a time limit, prints one line of JSON when it has ended, and is a row of the table at
the end. All steps run, whatever became of those before; the exit code is 1 if any failed. A step that needs what is not
there is skipped, and says what. Without a GPU the same steps run on vLLM's CPU build: that is how this file is tested.
Needs no data but the checkout's: the tiny models get a tokenizer that is trained here.
"""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.makers import CHATML, ROOT, SAMPLE_MODEL, make_inputs, make_settings, make_tokenizer_folder

BUDGET_S = 600.0
FREED_WITHIN_S = 10.0
SLACK_MIB = 64  # of GPU memory: what the driver itself takes and gives back
PACKRANK = [sys.executable, "-m", "flows.cli"]


@dataclass(frozen=True)
class Host:
    """What there is to run on."""

    num_gpus: int
    compiles: bool  # a GPU, or a C++ compiler and Python's headers for torch on a CPU
    has_sample_model: bool


@dataclass(frozen=True)
class Step:
    """One thing to try."""

    name: str
    timeout_s: float
    run: Callable[[Path, float], str]  # in an empty folder, within the seconds given; what was seen, in a few words
    lacks: Callable[[Host], str] = lambda host: ""  # why it cannot run there; empty where it can


@dataclass(frozen=True)
class Result:
    """What became of a step."""

    step: str
    status: str  # ok, failed, skipped
    seconds: float
    seen: str


class Skipped(Exception):
    """The step found that something it needs is not there."""


def find_host() -> Host:
    """Asks nvidia-smi, not torch: this process must not hold a CUDA context when memory is measured."""
    num_gpus = len(gpu_memory_mib())
    has_compiler = bool(shutil.which("g++")) and Path(sysconfig.get_path("include"), "Python.h").is_file()
    return Host(num_gpus, num_gpus > 0 or has_compiler, (SAMPLE_MODEL / "config.json").is_file())


def gpu_memory_mib() -> list[int]:
    """The memory in use of each GPU; empty without any."""
    with suppress(OSError, subprocess.SubprocessError):
        query = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
        told = subprocess.run(query, capture_output=True, text=True, timeout=20, check=True).stdout
        return [int(line) for line in told.split()]
    return []


def run_steps(steps: Sequence[Step], host: Host, budget_s: float) -> list[Result]:
    """Every step once, in order, and a line of JSON each; one for which no time is left has failed."""
    ends = time.monotonic() + budget_s
    results = []
    for step in steps:
        left_s = min(step.timeout_s, ends - time.monotonic())
        results.append(_run_step(step, host, left_s))
        print(json.dumps(asdict(results[-1]), ensure_ascii=False), flush=True)
    return results


def _run_step(step: Step, host: Host, left_s: float) -> Result:
    started = time.monotonic()

    def result(status: str, seen: str) -> Result:
        return Result(step.name, status, round(time.monotonic() - started, 1), seen)

    if lack := step.lacks(host):
        return result("skipped", lack)
    if left_s <= 0:
        return result("failed", "no time left")
    with tempfile.TemporaryDirectory(prefix="gpu-check-") as folder:
        try:
            return result("ok", step.run(Path(folder), left_s))
        except Skipped as lack:
            return result("skipped", str(lack))
        except subprocess.TimeoutExpired:
            return result("failed", f"not done after {left_s:.0f} s")
        except Exception as error:  # whatever it is, the next step runs
            return result("failed", f"{type(error).__name__}: {' '.join(str(error).split())[:400]}")


def call(command: Sequence[str], timeout_s: float) -> str:
    """Its stdout. Its whole process group is killed when the time is over.

    Raises:
        subprocess.TimeoutExpired: it was not done in time.
        RuntimeError: it failed; the end of what it said.
    """
    process = subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        out, err = process.communicate(timeout=timeout_s)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    if process.returncode:
        raise RuntimeError(f"exit code {process.returncode}: {(err or out).strip()[-350:]}")
    return out


# ---- the steps


NIGHT = """select (select count(*) from scores) as scores, sum(num_preemptions)::bigint as preemptions,
    count(*) filter (output_tokens = 1 and parse_status = 'ok') as judged,
    coalesce(sum(output_tokens) filter (output_tokens > 1), 0)::bigint as written from windows"""


def tiny_config(folder: Path, family: str, lists: Sequence[int], engine: Mapping[str, object]) -> Path:
    """Settings for a night with a tiny model of the family, without a chat template of its own."""
    tokenizer = make_tokenizer_folder(folder / "tokenizer", "gpt2", CHATML)
    model = folder / "model"
    # In a process of its own: torch would stay in this one.
    build = "import sys; from pathlib import Path; from tests.tiny_models import build_tiny_model as build; "
    call([sys.executable, "-c", f"{build}build(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]))", family, str(tokenizer), str(model)], 120)  # fmt: skip
    values: dict[str, object] = {
        **make_inputs(folder / "in", lists),
        "strategy.decode_mode": "permutation",
        "strategy.cascade.keep": 4,
        "strategy.cascade.decode_mode": "query_likelihood",  # one number each, on any tokenizer
        "engine.dtype": "bfloat16",
        "engine.kv_cache_memory_bytes": 64 << 20,
        "engine.gpu_memory_utilization": 0.3,
        "checks.max_fallback_share": 1.0,
        "checks.max_partial_share": 1.0,
        **{f"engine.{name}": value for name, value in engine.items()},
    }
    return make_settings(folder, model, values)


def night(family: str, **engine: object) -> Callable[[Path, float], str]:
    """A step that ranks three lists with a tiny model: each candidate is judged, then the best are put in order."""

    def run(folder: Path, timeout_s: float) -> str:
        started = time.monotonic()
        config = tiny_config(folder, family, [6, 5, 3], engine)
        call([*PACKRANK, "run", str(config), "--no-prefect"], timeout_s - (time.monotonic() - started))
        database = ["--database", str(folder / "var" / "test.duckdb")]
        told = json.loads(call([*PACKRANK, "sql", NIGHT, *database, "--format", "json"], 60))[0]
        if (told["scores"], told["judged"], told["preemptions"]) != (14, 14, 0) or told["written"] < 20:
            raise RuntimeError(f"wanted 14 scores, 14 judged, longer answers and no preemption, got {told}")
        return f"14 candidates ranked, {told['written']} tokens written, 0 preemptions"

    return run


def sample_night(folder: Path, timeout_s: float) -> str:
    database = f"store.database={folder}/sample.duckdb"
    call([*PACKRANK, "run", "configs/sample.toml", "--no-prefect", "--publish", "--set", database], timeout_s)
    statement = (
        "select round(value, 4) as value from metrics "
        "where ranking = 'reranked' and measure = 'nDCG@10' and query_id is null"
    )
    told = call([*PACKRANK, "sql", statement, "--database", f"{folder}/sample.duckdb", "--format", "json"], 60)
    return f"published, nDCG@10 {json.loads(told)[0]['value']}"


def study(folder: Path, timeout_s: float) -> str:
    short = ["study.limit_queries=2", "study.window_sizes=[20]", "study.max_num_seqs=[64]", "study.without_prefix_caching=false"]  # fmt: skip
    sets = [part for each in (*short, f"store.database={folder}/study.duckdb") for part in ("--set", each)]
    call([*PACKRANK, "study", "configs/study.toml", "--no-prefect", *sets], timeout_s)
    return "its arms ran"


def peer(folder: Path, timeout_s: float) -> str:
    arguments = ["--repeats", "1", "--queries", "2", "--candidates", "20", "--variants", "first_token"]
    figures = json.loads(call([sys.executable, "-m", "tests.benchmarks.peer", *arguments], timeout_s).splitlines()[-1])
    if "skipped" in figures:
        raise Skipped(figures["skipped"])
    return f"RankLLM took {figures['rank_llm_s_over_first_token_s']} times as long"


def kill(folder: Path, timeout_s: float) -> str:
    """kill -9 of a night at work: engine and GPU memory are to be gone within ten seconds."""
    ends, before = time.monotonic() + timeout_s, gpu_memory_mib()
    config = tiny_config(folder, "qwen3", [12] * 200, {"enforce_eager": True})
    command = [*PACKRANK, "run", str(config), "--no-prefect"]
    log = (folder / "stderr").open("w", encoding="utf-8")
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=log, start_new_session=True)
    try:
        while " batch=" not in (folder / "stderr").read_text(encoding="utf-8"):
            if process.poll() is not None:
                raise RuntimeError(f"it ended before it was killed: {(folder / 'stderr').read_text()[-350:]}")
            if time.monotonic() > ends:
                raise subprocess.TimeoutExpired(command, timeout_s)
            time.sleep(0.2)
        engines, during = children_of(process.pid), gpu_memory_mib()
    finally:
        process.kill()
        process.wait()
    if not engines or (before and sum(during) <= sum(before) + SLACK_MIB):
        raise RuntimeError(f"nothing to free: engines {engines}, GPU memory {before} MiB before, {during} MiB at work")
    killed = time.monotonic()
    while any(map(is_running, engines)) or sum(gpu_memory_mib()) > sum(before) + SLACK_MIB:
        if time.monotonic() > killed + FREED_WITHIN_S:
            raise RuntimeError(f"after {FREED_WITHIN_S:.0f} s: {gpu_memory_mib()} MiB in use, {before} MiB before")
        time.sleep(0.1)
    freed = f", GPU memory back from {sum(during)} to {sum(gpu_memory_mib())} MiB" if before else ""
    return f"engine gone {time.monotonic() - killed:.1f} s after kill -9{freed}"


def children_of(pid: int) -> list[int]:
    """The direct children of a process (Linux)."""
    return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()]


def is_running(pid: int) -> bool:
    """Whether the process is there and no zombie."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] != "Z"
    return False


def needs_gpus(number: int) -> Callable[[Host], str]:
    """Says so where there are fewer."""
    return lambda host: "" if host.num_gpus >= number else f"needs {number} GPU(s), found {host.num_gpus}"


def needs_compiler(host: Host) -> str:
    return "" if host.compiles else "on a CPU torch compiles C++: g++ or Python's headers are not there"


def needs_sample(host: Host) -> str:
    return "" if host.has_sample_model else "models/sample is not there: run make setup"


STEPS = (
    Step("eager", 60, night("qwen3", enforce_eager=True)),
    Step("compiled, no CUDA graphs", 90, night("qwen3", compilation_config={"cudagraph_mode": "NONE"}), needs_compiler),
    Step("CUDA graphs", 90, night("qwen3"), needs_gpus(1)),
    Step("sliding window (gemma3)", 50, night("gemma3", enforce_eager=True)),
    Step("hybrid cache (gpt_oss)", 50, night("gpt_oss", enforce_eager=True)),
    Step("latent attention (deepseek)", 50, night("deepseek", enforce_eager=True)),
    Step("tensor parallel 2", 70, night("qwen3", tensor_parallel_size=2, enforce_eager=True), needs_gpus(2)),
    Step("kill -9", 60, kill),
    Step("the sample's night", 80, sample_night, needs_sample),
    Step("peer bench", 60, peer, needs_sample),
    Step("study", 60, study, needs_sample),
)


def main() -> int:
    """The exit code: 1 if a step failed."""
    parser = argparse.ArgumentParser(description="Tries everything that needs a GPU, in ten minutes.")
    parser.add_argument("--only", nargs="+", default=[step.name for step in STEPS], metavar="STEP")
    parser.add_argument("--budget-s", type=float, default=BUDGET_S)
    parser.add_argument("--patience", type=float, default=1.0, help="factor on each step's time, for a slow host")
    asked = parser.parse_args()
    if unknown := set(asked.only) - {step.name for step in STEPS}:
        parser.error(f"no such step: {', '.join(sorted(unknown))}. There are: {', '.join(step.name for step in STEPS)}")
    host = find_host()
    steps = [
        Step(step.name, step.timeout_s * asked.patience, step.run, step.lacks)
        for step in STEPS
        if step.name in asked.only
    ]
    results = run_steps(steps, host, asked.budget_s)
    width = max(len(each.step) for each in results)
    print(f"\n{'step':{width}}  status   seconds  seen   ({host.num_gpus} GPUs)")
    for each in results:
        print(f"{each.step:{width}}  {each.status:7}  {each.seconds:7.1f}  {each.seen}")
    return int(any(each.status == "failed" for each in results))


if __name__ == "__main__":
    sys.exit(main())
