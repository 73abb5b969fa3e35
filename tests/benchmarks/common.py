"""What the benches share: a night on an engine that is given, children that measure themselves, how a result is told.

Every bench prints a table, then one line of JSON. What lacks its data says so in one line and is no failure.
"""

import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np

from tasks.engine.engine_options import EngineOptions, engine_options
from tasks.nightly.night import open_night
from tasks.nightly.prepare import NightRequest, PreparedNight, prepare_night
from tasks.prompt.answer_forms import AnswerForm
from tasks.prompt.prompts import Prompt
from tasks.settings import PackingSettings
from tasks.system.environment import engine_environment
from tests.makers import FAKE_VLLM, ROOT, SAMPLE_MODEL, make_settings, select

NIGHT = date(2026, 11, 29)
SAMPLE_ENGINE = {"engine.dtype": "bfloat16", "engine.enforce_eager": True}


class NotHere(Exception):
    """This machine lacks what the bench needs; the message says what."""


def run_bench(name: str, bench: Callable[[], tuple[Mapping[str, Any], Sequence[Mapping[str, Any]]]]) -> None:
    """Runs it, and prints its figures and its rows as tables, and all of it as one line of JSON."""
    before = {"cores": len(os.sched_getaffinity(0)), "load_before": round(os.getloadavg()[0], 2)}
    try:
        figures, rows = bench()
    except NotHere as reason:
        print(f"{name}: skipped: {reason}")
        print(json.dumps({"bench": name, "skipped": str(reason)}))
        return
    _print_table([{"figure": name, "value": value} for name, value in figures.items()])
    print()
    _print_table(rows)
    print(json.dumps({"bench": name, **before, **figures, "table": list(rows)}))


def _print_table(rows: Sequence[Mapping[str, Any]]) -> None:
    names = list(dict.fromkeys(name for row in rows for name in row))
    cells = [names, *([str(row.get(name, "")) for name in names] for row in rows)]
    widths = [max(len(line[place]) for line in cells) for place in range(len(names))]
    for line in cells:
        print("  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)))


def median(values: Iterable[float], digits: int = 3) -> float:
    """Rounded, as it is printed."""
    return round(statistics.median(values), digits)


def sample_model() -> Path:
    """The folder of the sample model.

    Raises:
        NotHere: it was not made.
    """
    if not (SAMPLE_MODEL / "config.json").exists():
        raise NotHere("models/sample is not there: run make setup")
    return SAMPLE_MODEL


def run_child(module: str, *arguments: object, environment: Mapping[str, str] | None = None) -> dict[str, Any]:
    """The last line of JSON that `python -m module arguments` prints; libraries print lines of their own around it."""
    command = [sys.executable, "-m", module, *map(str, arguments)]
    environment = {**os.environ, **(environment or {})}
    answer = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    lines = [line for line in answer.stdout.splitlines() if line.startswith("{")]
    print(*lines[-1:], file=sys.stderr)  # a bench that is stopped has told what it knew
    if answer.returncode or not lines:
        raise SystemExit(f"{answer.stderr[-4000:]}\n{' '.join(command)} ended with {answer.returncode}")
    found: dict[str, Any] = json.loads(lines[-1])
    return found


def peak_mb() -> int:
    """This process's largest resident memory; `ru_maxrss` would begin with that of the process it came from."""
    return int(re.search(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())[1]) >> 10


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """On the disk where the checkout's state lies, since commits wait for it."""
    (ROOT / "var").mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="bench-", dir=ROOT / "var") as folder:
        yield Path(folder)


def prepare(folder: Path, values: Mapping[str, object], *, publish: bool = False) -> PreparedNight:
    """A night of the sample model that keeps everything in `folder`; `values` by dotted path over the usual driver."""
    folder.mkdir(parents=True, exist_ok=True)
    config = make_settings(folder, sample_model(), {"packing.driver": PackingSettings().driver, **values})
    return prepare_night(NightRequest(config=config, night=NIGHT, publish=publish))


def options_of(prepared: PreparedNight, folder: Path) -> EngineOptions:
    """How its engine starts, with a log in `folder`."""
    return engine_options(prepared.settings, prepared.recipe.driver, folder / "tmp", folder / "engine.log")


def fake_engine(**behaviour: object) -> dict[str, str]:
    """The environment in which `import vllm` finds the fake, which behaves so."""
    path = os.pathsep.join(filter(None, [str(FAKE_VLLM), os.environ.get("PYTHONPATH")]))
    return {"PYTHONPATH": path, "FAKE_VLLM": json.dumps(behaviour)}


@dataclass(frozen=True, slots=True)
class RankedNight:
    """What ranking a night took, from an engine that is ready to the last commit."""

    makespan_s: float
    engine_s: float  # inside the engine's calls
    num_batches: int
    prompt_tokens: int
    output_tokens: int
    num_candidates: int

    @property
    def candidates_per_s(self) -> float:
        """Documents a second."""
        return self.num_candidates / self.makespan_s


def rank_night(prepared: PreparedNight, engine: Any) -> RankedNight:
    """Stages the night, then ranks it on the engine, which is ready, and commits to its database."""
    _ = engine.info  # starts it
    with open_night(prepared, None, engine) as night:
        night.stage()
        started = time.monotonic()
        night.rank()
        makespan_s = time.monotonic() - started
        (told,) = select(
            prepared,
            "select sum(engine_s) as engine_s, count(*) as num_batches, sum(prompt_tokens)::bigint as prompt_tokens, "
            "sum(output_tokens)::bigint as output_tokens, (select count(*) from scores) as num_candidates from batches "
            "where num_prompts > 0",
        )
    return RankedNight(makespan_s=makespan_s, **told)


class _Recorder:
    """A prompt builder that keeps what it builds, and may ask for another form of answer."""

    def __init__(self, builder: Any, prompts: list[Prompt], form: AnswerForm | None) -> None:
        self._builder, self._prompts, self._form = builder, prompts, form

    def __getattr__(self, name: str) -> Any:
        return getattr(self._builder, name)

    def build(self, *arguments: Any, **keywords: Any) -> Prompt:
        built = self._builder.build(*arguments, **keywords)
        built = built if self._form is None else replace(built, form=self._form)
        self._prompts.append(built)
        return built


def recording(prepared: PreparedNight, form: AnswerForm | None = None) -> tuple[PreparedNight, list[Prompt]]:
    """The same night, and a list in which each prompt will stand that its engine is asked; all with `form` if given."""
    prompts: list[Prompt] = []
    askings = {
        question: replace(asking, builder=_Recorder(asking.builder, prompts, form))
        for question, asking in prepared.recipe.askings.items()
    }
    return replace(prepared, recipe=replace(prepared.recipe, askings=askings)), prompts


@dataclass(frozen=True, slots=True)
class BareCalls:
    """Prompts for calls of `LLM.generate`, one call a group of their places."""

    name: str
    prompts: Sequence[Prompt]
    groups: Sequence[Sequence[int]]
    min_tokens: int = 0

    @property
    def spec(self) -> dict[str, Any]:
        """All but the token ids, as JSON."""
        forms = [
            {"max_tokens": each.form.max_tokens, "min_tokens": self.min_tokens, "stop": list(each.form.stop)}
            | {"logprob_token_ids": each.form.logprob_token_ids}
            for each in self.prompts
        ]
        return {"name": self.name, "forms": forms, "groups": [list(group) for group in self.groups]}


def rounds_of(prompts: Sequence[Prompt]) -> list[list[int]]:
    """The places of the prompts of each round: what can be asked in one call, if each waits for the one before."""
    rounds: dict[int, list[int]] = {}
    for place, prompt in enumerate(prompts):
        rounds.setdefault(int(prompt.request_id.rsplit("/", 3)[1]), []).append(place)
    return [rounds[number] for number in sorted(rounds)]


def write_calls(path: Path, calls: Sequence[BareCalls]) -> None:
    """For `tests.benchmarks.bare`: token ids and offsets of each set of calls, and what is asked as JSON."""
    arrays = {}
    for number, each in enumerate(calls):
        arrays[f"ids{number}"] = np.concatenate([prompt.prompt_token_ids for prompt in each.prompts])
        arrays[f"offsets{number}"] = np.cumsum([0, *(prompt.prompt_tokens for prompt in each.prompts)])
    np.savez(path, spec=json.dumps([each.spec for each in calls]), **arrays)


class BareEngine:
    """`vllm.LLM` as the night's child builds it, in a process of its own that only calls `generate`."""

    def __init__(self, options: EngineOptions, folder: Path) -> None:
        self._folder = folder
        keywords = folder / "keywords.json"
        keywords.write_text(json.dumps(dict(options.keywords)), encoding="utf-8")
        environment = {
            **options.environment,
            **engine_environment(ROOT / "var", folder / "tmp", model_is_folder=True, enforce_eager=True),
        }
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.benchmarks.bare", str(keywords)],
            cwd=ROOT,
            env={**os.environ, **environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def __enter__(self) -> "BareEngine":
        self._answer()
        return self

    def __exit__(self, *_: object) -> None:
        self._process.stdin.close()
        self._process.wait()

    def time(self, calls: Sequence[BareCalls]) -> dict[str, dict[str, float]]:
        """Seconds and output tokens of each set of calls."""
        write_calls(self._folder / "calls.npz", calls)
        self._process.stdin.write(f"{self._folder / 'calls.npz'}\n")
        self._process.stdin.flush()
        told = self._answer()
        print(json.dumps(told), file=sys.stderr)  # a bench that is stopped has told what it knew
        return told

    def _answer(self) -> dict[str, Any]:
        for line in self._process.stdout:
            if line.startswith("{"):  # vLLM writes lines of its own
                found: dict[str, Any] = json.loads(line)
                return found
        raise SystemExit(f"tests.benchmarks.bare ended with {self._process.wait()}: run it by hand to see why")
