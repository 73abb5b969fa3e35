"""Every model family in every decode mode on the real engine: real architecture and tokenizer, random weights.

One engine a family. `make test` runs the core, `make zoo` all of it, which also writes docs/models.md.
"""

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from tasks.engine.batches import pack
from tasks.engine.engine_options import EngineOptions
from tasks.engine.kv_cache import BatchBudget
from tasks.engine.process import EngineOnDemand, engine_on_demand
from tasks.nightly.night import run_night
from tasks.nightly.prepare import NightRequest, prepare_night
from tasks.ranking.recipe import Asking, Recipe, build_recipe
from tasks.schedule.windows import Window
from tasks.settings import load_settings
from tasks.system.environment import STATE, engine_environment
from tasks.system.errors import ConfigError
from tests.makers import make_inputs, make_settings, make_text, value
from tests.models_page import GENERATIVE, STRATEGY_OF, Measured, print_table, save
from tests.tiny_models import FAMILIES

POOLING = [name for name, family in FAMILIES.items() if not family.is_generative]
CORE = ("gpt_oss",)  # a hybrid cache; test_identifiers.py has a tokenizer that joins letters with a bracket
NUM_PASSAGES = {"first_token": 16, "select": 16, "permutation": 8, "reasoning": 8}  # what is written takes longer
NIGHTS = ("gemma3", "deepseek")
# vLLM 0.32 prefills Qwen3-Next in parts, after each of which it winds back the seeded generator of a request that draws; torch's
# CPU generator cannot: "CPU Generator does not use offset", and the engine is lost.
GREEDY = {"prompt__sampling": None}
QUERY = "why do tides rise"
ENGINE: Mapping[str, Any] = {
    "max_model_len": 8192,
    "max_num_batched_tokens": 4096,
    "dtype": "bfloat16",
    "enforce_eager": True,
    "kv_cache_memory_bytes": 64 << 20,
}


def of_families(names):
    """The families as test parameters; what is not in the core is left to `make zoo`."""
    return [pytest.param(name, marks=[] if name in CORE else [pytest.mark.zoo]) for name in names]


@dataclass
class Zoo:
    """A family's engine, and what it was seen to do."""

    family: str
    model: Path
    folder: Path
    engine: EngineOnDemand
    measured: Measured = field(init=False)

    def __post_init__(self) -> None:
        groups = tuple(group.kind for group in self.engine.info.limits.groups)
        self.measured = Measured(self.family, groups)

    def recipe(self, preset: str, **settings: object) -> Recipe:
        """What the preset makes of the model, with settings laid over it."""
        config = self.folder / f"{preset}.toml"
        config.write_text(f'preset = "{preset}"\n[inputs]\nnested = "-"\n', encoding="utf-8")
        overrides = {name.replace("__", "."): value for name, value in settings.items()}
        settings = load_settings(config, {"engine.model": str(self.model), **overrides})
        return build_recipe(settings, self.model, date(2026, 11, 29))

    def ask(self, asking: Asking, num_passages: int):
        """Asks one prompt with nothing else in the engine; returns prompt, generation and what was read."""
        pieces = asking.builder.encode_passages([make_text(number, 60) for number in range(num_passages)])
        window, lengths = Window(tuple(range(num_passages)), asking.mode.question), [len(piece) for piece in pieces]
        shown = [piece[: asking.sizes.max_passage_tokens] for piece in pieces]
        prompt = asking.builder.build("q", window, QUERY, shown, lengths, asking.sizes)
        self.engine.reset_prefix_cache()
        (batch,) = pack(
            [prompt], self.engine.info.limits, BatchBudget(10_000, 1, one_token_answers=prompt.has_one_token_answer)
        )
        (generation,), stats = self.engine.generate(batch)
        self.measured.add(asking.mode.name, batch.needed_blocks, max(step.blocks_used for step in stats.steps))
        return prompt, generation, asking.mode.read(prompt, generation)


@pytest.fixture(scope="module")
def measurements(request) -> Iterator[list[Measured]]:
    """Of all families; a table of them is printed at the end, and docs/models.md renewed where that is asked for."""
    found: list[Measured] = []
    yield found
    with request.config.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled():
        print_table(found)
    if request.config.getoption("--models-page"):
        save(each for each in found if len(each.blocks) == len(STRATEGY_OF))


@contextmanager
def started_zoo(family: str, model: Path, folder: Path) -> Iterator[Zoo]:
    options = EngineOptions(
        keywords={"model": str(model), **ENGINE},
        environment=engine_environment(STATE, folder / "tmp", model_is_folder=True, enforce_eager=True),
        log_path=folder / "engine.log",
        start_timeout_s=600,
        batch_timeout_s=600,
        timeline=True,
    )
    with engine_on_demand(options, max_starts=1, on_ready=lambda _: None) as engine:
        yield Zoo(family, model, folder, engine)


@pytest.fixture(scope="module", params=of_families(GENERATIVE))
def zoo(request, tiny_model, tmp_path_factory, measurements) -> Iterator[Zoo]:
    with started_zoo(request.param, tiny_model(request.param), tmp_path_factory.mktemp(request.param)) as started:
        measurements.append(started.measured)
        yield started


@pytest.mark.parametrize("decode_mode", STRATEGY_OF)
def test_a_family_is_asked_in_every_decode_mode(zoo, decode_mode):
    preset = "reasoning" if decode_mode == "reasoning" else FAMILIES[zoo.family].preset
    asking = zoo.recipe(
        preset,
        strategy__name=STRATEGY_OF[decode_mode],
        strategy__decode_mode=decode_mode,
        strategy__window_size=16,
        prompt__thinking_budget_tokens=24,
        **(GREEDY if zoo.family == "qwen3_next" else {}),
    ).main
    num_passages = NUM_PASSAGES.get(decode_mode, 1)

    prompt, generation, reading = zoo.ask(asking, num_passages)

    identifiers = asking.mode.identifier_form
    assert sorted(reading.outcome.order) == list(range(num_passages))
    assert generation.num_preemptions == 0
    assert 1 <= generation.output_tokens <= prompt.max_tokens
    if identifiers is not None:
        zoo.measured.identifiers(asking)
        assert len(identifiers.token_ids) >= 50
        assert reading.parse_status == "ok"
        assert len(set(generation.logprobs)) > 1
        assert 0.0 < reading.id_mass < 1.0
    elif decode_mode in ("yes_no", "query_likelihood"):
        assert reading.parse_status == "ok"
        assert -math.inf < reading.outcome.logprobs[0] < 0.0
    else:
        assert generation.output_tokens > 1
        assert prompt.form.close is None or asking.builder.template.close in generation.text


def test_a_family_is_asked_as_its_preset_says(zoo):
    preset = FAMILIES[zoo.family].preset
    asking = zoo.recipe(preset).main

    prompt, generation, reading = zoo.ask(asking, asking.sizes.window_size)

    assert prompt.decode_mode == "permutation"
    assert sorted(reading.outcome.order) == list(range(asking.sizes.window_size))
    assert generation.num_preemptions == 0


def test_blocks_predicted_are_those_used(zoo):
    """Never fewer, and at most a twentieth more: an answer that ends early leaves some of its blocks unused."""
    if not zoo.measured.blocks:
        pytest.skip("no decode mode was asked")
    predicted, used = map(sum, zip(*zoo.measured.blocks.values(), strict=True))

    assert all(predicted >= used for predicted, used in zoo.measured.blocks.values())
    assert predicted <= 1.05 * used


@pytest.mark.parametrize("family", of_families(NIGHTS))
def test_a_night_with_a_familys_preset(family, tiny_model, tmp_path):
    """Lists of 24 and 3, by windows of 20, as the preset says; a model of random weights ranks them anyhow."""
    inputs = make_inputs(tmp_path / "in", [24, 3])
    config = tmp_path / "zoo.toml"
    config.write_text(f'preset = "{FAMILIES[family].preset}"\n', encoding="utf-8")
    engine = {f"engine.{name}": value for name, value in ENGINE.items() if name != "max_model_len"}
    checks = {"checks.canary": "off", "checks.max_fallback_share": 1.0, "checks.max_partial_share": 1.0}
    overrides = {
        **inputs, **engine, **checks,
        "engine.model": str(tiny_model(family)),
        "engine.gpu_memory_utilization": 0.5,
        "store.database": str(tmp_path / "var" / "zoo.duckdb"),
    }  # fmt: skip
    prepared = prepare_night(NightRequest(config=config, overrides=overrides))

    run_night(prepared)

    assert value(prepared, "select count(*) from scores") == 27
    assert value(prepared, "select sum(num_preemptions) from windows") == 0
    assert value(prepared, "select count(*) from windows") >= 4


@pytest.mark.zoo
@pytest.mark.parametrize("family", POOLING)
def test_a_pooling_family_is_refused_in_one_line(family, tiny_model, tmp_path):
    config = make_settings(tmp_path, tiny_model(family), make_inputs(tmp_path / "in", [3]))

    with pytest.raises(ConfigError, match="ForSequenceClassification is a pooling model") as refusal:
        prepare_night(NightRequest(config=config))

    assert "\n" not in str(refusal.value)
