"""Measures in about a minute how fast the machine at hand reads and writes a night's own prompts.

    warm up -> prompts of one passage, half a window, a whole window, in turn -> long answers, where there are some

Every prompt of a batch is another one, and the prefix cache is emptied between batches: nothing is cheap because it was
seen before. Knows nothing of what the rates are used for.
"""

import shutil
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Protocol

import numpy as np

from tasks.decode.answer import Generation
from tasks.engine.batches import Batch, Packer
from tasks.engine.engine_options import engine_options
from tasks.engine.generations import Engine
from tasks.engine.kv_cache import batch_budget
from tasks.engine.process import engine_on_demand
from tasks.forecast.rates import SMALLEST_SPREAD, PrefillRate, Rates
from tasks.inputs.query_subsets import IsOwn, sample_of_queries
from tasks.inputs.staging import StagedInput
from tasks.nightly.prepare import PreparedNight
from tasks.prompt.answer_forms import AnswerForm
from tasks.prompt.prompts import Prompt
from tasks.ranking.query import StagedQuery
from tasks.ranking.recipe import Asking, Recipe
from tasks.report.summary_tables import SummaryTable, Worded, pairs
from tasks.system.atomic_files import whole_file
from tasks.system.errors import InputError
from tasks.system.run_lock import run_lock

STAGED_QUERIES = 200
PROMPTS_A_PROBE = 512
TURNS = 3  # of each probe, at least two: they show how far the rates spread
WIDEST_SPREAD = 0.5


@dataclass(slots=True)
class Probe:
    """Prompts of one kind and length, and how fast they were read."""

    prompts: Sequence[Prompt]
    is_scored: bool
    place: int = 0  # of the next prompt to ask
    batches: list[tuple[int, int, float]] = field(default_factory=list)  # prompts, prompt tokens, seconds

    @property
    def rate(self) -> PrefillRate:
        """Over all batches."""
        num_prompts, num_tokens, seconds = (sum(column) for column in zip(*self.batches, strict=True))
        return PrefillRate(prompt_tokens=num_tokens / num_prompts, tokens_per_s=num_tokens / seconds)

    @property
    def spread(self) -> float:
        """Twice the standard deviation of the batches' rates, as a share of their mean."""
        rates = np.array([tokens / seconds for _, tokens, seconds in self.batches])
        return float(2 * rates.std(ddof=1) / rates.mean()) if len(rates) > 1 else WIDEST_SPREAD


class Measurable(Engine, Protocol):
    """An engine that can forget what it saw."""

    def reset_prefix_cache(self) -> None:
        """Forgets every cached prefix."""
        ...


def calibrate(prepared: PreparedNight, seconds: float) -> Rates:
    """Starts the night's engine and measures for about so many seconds once it is ready.

    Raises:
        AlreadyRunning: a run is using the engine's device.
        InputError: no query of the input has a candidate.
        EngineError, ConfigError: see `EngineOnDemand`.
    """
    scratch = prepared.workspace.bench_scratch
    options = engine_options(
        prepared.settings, prepared.recipe.driver, scratch / "engine", prepared.workspace.engine_log("bench")
    )
    with run_lock(prepared.settings.database_path, "bench"):
        try:
            staged = prepared.stage(scratch / "staging", _sample(prepared), only_named=True)
            probes = find_probes(staged, prepared.recipe)
            with engine_on_demand(options, 1, lambda _: None) as engine:
                rates = measure(engine, prepared.recipe, probes, seconds)
                told = {"model_identity": prepared.model_identity, "device": engine.info.device}
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
    now = datetime.now(UTC).isoformat(timespec="seconds")
    return rates.model_copy(update=told | {"measured_at": now, "source": f"packrank bench, {now}"})


def write_rates(rates: Rates, path: Path) -> None:
    """Writes a rates file, which takes its name when it is whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with whole_file(path) as stream:
        stream.write(f"{rates.model_dump_json(indent=2, exclude_none=True)}\n".encode())


def rates_table(rates: Rates, path: Path) -> SummaryTable:
    """The rates, and the file that they were written to."""
    figures: list[tuple[str, object]] = [("device", rates.device)]
    for kind, points in (("read", rates.prefill), ("scored", rates.scored_prefill)):
        figures += [
            (f"prompts of {point.prompt_tokens:,.0f} tokens, {kind}", _speed(point.tokens_per_s)) for point in points
        ]
    if rates.decode_tokens_per_s is not None:
        figures.append(("answers, written", _speed(rates.decode_tokens_per_s)))
        figures.append(("tokens of answers, of the most", Worded(rates.answer_share, f"{rates.answer_share:.0%}")))
    return pairs("Rates", [*figures, ("spread", Worded(rates.spread, f"± {rates.spread:.0%}")), ("rates", str(path))])


def _speed(tokens_per_s: float) -> Worded:
    return Worded(tokens_per_s, f"{tokens_per_s:,.0f} tokens/s")


def find_probes(staged: StagedInput, recipe: Recipe) -> list[Probe]:
    """Prompts of every way of asking, at up to three lengths.

    Raises:
        InputError: no query has a candidate.
    """
    probes = []
    longest = max(map(staged.list_length, range(staged.num_queries)), default=0)
    queries = [StagedQuery(staged, recipe, number) for number in range(staged.num_queries)]
    for asking in recipe.askings.values():
        most = min(asking.sizes.window_size, longest)
        for size in sorted({1, (most + 1) // 2, most} - {0}):
            prompts = list(islice(_prompts(queries, asking, size), PROMPTS_A_PROBE))
            if prompts:
                probes.append(Probe(prompts, asking.mode.scores_query))
    if not probes:
        raise InputError("bench: no query of the input has a candidate, so there is no prompt to measure with.")
    return probes


def measure(engine: Measurable, recipe: Recipe, probes: Sequence[Probe], seconds: float) -> Rates:
    """The rates of an engine that runs, or starts with this.

    Raises:
        EngineError: see `Engine.generate`.
    """
    bench = _Bench(engine, recipe)
    writes = recipe.main.largest_need[1] > 1
    for_reading = seconds / 2 if writes else seconds
    share_s = for_reading / TURNS / len(probes)
    sizes = [bench.warm_up(probe, share_s) for probe in probes]
    begun = time.monotonic()
    while len(probes[0].batches) < 2 or time.monotonic() - begun < for_reading:
        for probe, num_tokens in zip(probes, sizes, strict=True):
            bench.read(probe, num_tokens)
    scored = tuple(probe.rate for probe in probes if probe.is_scored)
    plain = tuple(probe.rate for probe in probes if not probe.is_scored)
    spread = min(max(SMALLEST_SPREAD, *(probe.spread for probe in probes)), WIDEST_SPREAD)
    rates = Rates(prefill=plain or scored, scored_prefill=scored, spread=spread)
    return bench.write(rates, probes, seconds - for_reading) if writes else rates


class _Bench:
    """Asks an engine, with an empty prefix cache each time."""

    def __init__(self, engine: Measurable, recipe: Recipe) -> None:
        self._engine = engine
        self._recipe = recipe

    def warm_up(self, probe: Probe, share_s: float) -> int:
        """How many prompt tokens take so many seconds, once what the first ones need is compiled.

        A single prompt is read more slowly than many: its rate sizes a batch of half the time, whose rate is used.
        """
        num_tokens = 1
        for part_s in (0.0, share_s / 2, share_s):
            prompts = self._take(probe, num_tokens, one_token=True)
            seconds, _ = self._ask(prompts)
            num_tokens = max(1, int(sum(prompt.prompt_tokens for prompt in prompts) / seconds * part_s))
        return num_tokens

    def read(self, probe: Probe, num_tokens: int) -> None:
        """Measures one batch of about so many prompt tokens."""
        prompts = self._take(probe, num_tokens, one_token=True)
        seconds, _ = self._ask(prompts)
        probe.batches.append((len(prompts), sum(prompt.prompt_tokens for prompt in prompts), seconds))

    def write(self, rates: Rates, probes: Sequence[Probe], seconds: float) -> Rates:
        """Completes the rates with those of long answers: what a batch takes beyond its prompts."""
        probe = max((each for each in probes if not each.is_scored), key=lambda each: each.rate.prompt_tokens)
        num_prompt_tokens = int(probe.rate.tokens_per_s * seconds / 2)
        begun, writing_s, num_written, num_allowed, num_prompts = time.monotonic(), 0.0, 0, 0, 0
        while not num_prompts or time.monotonic() - begun < seconds / 2:
            prompts = self._take(probe, num_prompt_tokens, one_token=False)
            took_s, generations = self._ask(prompts)
            writing_s += took_s - sum(prompt.prompt_tokens for prompt in prompts) / probe.rate.tokens_per_s
            num_written += sum(generation.output_tokens for generation in generations)
            num_allowed += sum(prompt.max_tokens for prompt in prompts)
            num_prompts += len(prompts)
        decode = max(num_written - num_prompts, 1) / max(writing_s, 0.001)
        return rates.model_copy(
            update={"decode_tokens_per_s": decode, "answer_share": min(num_written / num_allowed, 1.0)}
        )

    def _take(self, probe: Probe, num_tokens: int, *, one_token: bool) -> list[Prompt]:
        """The probe's next prompts, as a night would pack them: at least one, none twice."""
        limits = self._engine.info.limits
        loads = self._recipe.packing.batch_loads
        budget = batch_budget(
            limits, self._recipe.packing.headroom_share, one_token_answers=one_token, batch_loads=loads
        )
        packer, taken, left = Packer(limits, budget), list[Prompt](), num_tokens
        while len(taken) < len(probe.prompts) and (not taken or left > 0):
            prompt = probe.prompts[probe.place % len(probe.prompts)]
            prompt = _one_token(prompt) if one_token else prompt
            if not packer.try_add(prompt):
                break
            taken.append(prompt)
            probe.place += 1
            left -= prompt.prompt_tokens
        return taken

    def _ask(self, prompts: Sequence[Prompt]) -> tuple[float, list[Generation]]:
        self._engine.reset_prefix_cache()
        generations, stats = self._engine.generate(Batch(tuple(prompts), 0, 0))
        return stats.engine_s, generations


def _prompts(queries: Sequence[StagedQuery], asking: Asking, size: int) -> Iterator[Prompt]:
    """Windows of `size` candidates of one query that follow each other, over all queries."""
    for query in queries:
        for first in range(0, query.num_candidates - size + 1, size):
            chosen, tokens = query.documents[first : first + size], query.staged.tokens
            yield asking.builder.build(
                f"bench/{query.index}/{first}",
                asking.mode.window(range(size)),
                query.text,
                tokens.passages(chosen),
                tokens.lengths[chosen],
                asking.sizes,
                query.fields_of(range(first, first + size)),
            )


def _one_token(prompt: Prompt) -> Prompt:
    """The prompt with an answer of one token."""
    return prompt if prompt.has_one_token_answer else replace(prompt, form=AnswerForm(1))


def _sample(prepared: PreparedNight) -> IsOwn:
    inputs = prepared.found.inputs
    num_queries = (inputs.get("queries") or inputs["nested"]).num_rows
    return sample_of_queries(min(1.0, STAGED_QUERIES / max(1, num_queries)), "bench")
