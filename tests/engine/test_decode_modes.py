"""Every decode mode on the real engine, with the small model: what comes back is what the mode says it is."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from tasks.engine.batches import Batch
from tasks.engine.engine_options import EngineOptions
from tasks.engine.process import engine_on_demand
from tasks.prompt.answer_forms import AnswerForm
from tasks.prompt.prompts import Prompt
from tasks.ranking.canaries import ask_canaries, load_canaries, wrong_canaries
from tasks.ranking.recipe import build_recipe
from tasks.schedule.windows import Window
from tasks.settings import load_settings
from tasks.system.environment import STATE, engine_environment
from tasks.system.errors import ConfigError
from tests.makers import SAMPLE_MODEL, make_settings

QUERY = "what causes ocean tides"
PASSAGES = [
    "The moon's gravity pulls the water of the ocean into bulges, and the tides follow.",
    "Poach an egg in simmering water for three minutes.",
    "Bread rises because yeast makes gas.",
    "A bridge of cables carries the road from tall towers.",
]


def options_that_draw(folder, **keywords):
    if not SAMPLE_MODEL.is_dir():
        pytest.skip("models/sample is not there: run make setup")
    return EngineOptions(
        keywords={"model": str(SAMPLE_MODEL), "max_model_len": 2048, "enforce_eager": True, "dtype": "float32", "kv_cache_memory_bytes": 256 << 20, "max_num_batched_tokens": 2048, **keywords},
        environment=engine_environment(STATE, folder / "tmp", model_is_folder=True, enforce_eager=True),
        log_path=folder / "engine.log",
        start_timeout_s=300,
        batch_timeout_s=300,
        draws=True,
    )  # fmt: skip


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    options = options_that_draw(tmp_path_factory.mktemp("engine"))
    with engine_on_demand(options, max_starts=1, on_ready=lambda _: None) as started:
        yield started


@pytest.fixture
def recipe_of(tmp_path):
    def make(strategy, decode_mode, **settings):
        values = {"inputs.nested": "-", "strategy.name": strategy, "strategy.decode_mode": decode_mode, "strategy.stride": None, "strategy.window_size": 4}  # fmt: skip
        values |= {"engine.max_model_len": 2048} | {name.replace("__", "."): value for name, value in settings.items()}
        return build_recipe(load_settings(make_settings(tmp_path, SAMPLE_MODEL, values)), SAMPLE_MODEL)

    return make


def build(asking, window, query=QUERY):
    pieces = asking.builder.encode_passages(PASSAGES)
    shown = [pieces[doc] for doc in window.docs]
    return asking.builder.build("q/0/0/0", window, query, shown, [len(piece) for piece in shown], asking.sizes)


def ask(engine, *prompts):
    prompts = tuple(replace(prompt, request_id=f"q{number}") for number, prompt in enumerate(prompts))
    generations, _ = engine.generate(Batch(prompts, 0, 0))
    return generations


def test_a_querys_likelihood_is_the_sum_of_its_tokens_one_by_one(engine, recipe_of):
    """By the chain rule: each token's log-probability asked for as the next one after what stands before it."""
    asking = recipe_of("pointwise", "query_likelihood").main
    prompt = build(asking, Window((0,), "judge"))
    ids, num = prompt.prompt_token_ids, prompt.num_scored_tokens

    (whole,) = ask(engine, prompt)
    nexts = [
        Prompt("n", prompt.window, "first_token", ids[:place], AnswerForm(1, (int(ids[place]),)), 0, "", 0, 0)
        for place in range(len(ids) - num, len(ids))
    ]
    one_by_one = [generation.logprobs[0] for generation in ask(engine, *nexts)]

    assert num >= 4
    assert whole.output_tokens == 1
    assert whole.scored_logprob == pytest.approx(sum(one_by_one), abs=1e-3)


def test_the_passage_that_answers_makes_the_query_likelier(engine, recipe_of):
    asking = recipe_of("pointwise", "query_likelihood").main
    prompts = [build(asking, Window((doc,), "judge")) for doc in range(len(PASSAGES))]

    values = [asking.mode.read(*each).outcome.logprobs[0] for each in zip(prompts, ask(engine, *prompts), strict=True)]

    assert int(np.argmax(values)) == 0


def test_a_verdict_is_a_share_of_the_probability_of_its_spellings(engine, recipe_of):
    asking = recipe_of("pointwise", "yes_no").main
    prompt = build(asking, Window((0,), "judge"))

    (generation,) = ask(engine, prompt)
    reading = asking.mode.read(prompt, generation)

    masses = [math.exp(logprob) for logprob in generation.logprobs]
    num_yes = len(asking.mode.yes_ids)
    assert generation.output_tokens == 1
    assert reading.outcome.logprobs[0] == pytest.approx(math.log(sum(masses[:num_yes]) / sum(masses)), abs=1e-5)
    assert 0.5 < reading.id_mass <= 1.0


def test_the_best_of_a_few_takes_one_token(engine, recipe_of):
    asking = recipe_of("setwise", "select").main
    prompt = build(asking, Window((2, 0, 1), "select", ask=1))

    (generation,) = ask(engine, prompt)
    reading = asking.mode.read(prompt, generation)

    assert generation.output_tokens == 1
    assert reading.outcome.num_listed == 3
    assert sorted(reading.outcome.order) == [0, 1, 2]


def test_a_stop_string_ends_an_answer_and_is_kept(engine, recipe_of):
    asking = recipe_of("tdpart", "permutation", strategy__top_k=2).main
    plain = build(asking, Window((0, 1, 2, 3)))
    (whole,) = ask(engine, plain)
    named = whole.text[whole.text.index("[") : whole.text.index("]") + 1]
    pivot = int(named.strip("[]")) - 1

    stopped = build(asking, Window((0, 1, 2, 3), pivot=pivot))
    (cut,) = ask(engine, stopped)

    assert stopped.form.stop == (named,)
    assert cut.text == whole.text[: whole.text.index(named) + len(named)]
    assert cut.finish_reason == "stop"


def test_a_think_block_over_its_budget_is_closed_and_answered_behind(engine, recipe_of):
    asking = recipe_of("sliding", "reasoning", prompt__thinking_budget_tokens=12, strategy__stride=2).main
    prompt = build(asking, Window((0, 1)), "Why does bread rise, and why do tides?")

    (generation,) = ask(engine, prompt)

    assert "</think>\n<answer>" in generation.text
    assert prompt.form.first_max_tokens < generation.output_tokens <= prompt.max_tokens
    assert generation.latency.e2el_s > generation.latency.ttft_s > 0
    reading = asking.mode.read(prompt, generation)
    assert sorted(reading.outcome.order) == [0, 1]


def test_thoughts_are_drawn_with_a_seed_in_prefills_that_are_whole(engine, recipe_of):
    """vLLM's CPU engine is lost where a prompt that draws is prefilled in parts, as every step's last prompt would be."""
    prompt = {"prompt__thinking_budget_tokens": 12, "prompt__sampling__temperature": 0.9}
    asking = recipe_of("sliding", "reasoning", strategy__stride=2, **prompt).main
    prompts = [build(asking, Window((0, 1, 2, 3)))] * 16

    drawn = [generation.text for generation in ask(engine, *prompts)]

    assert sum(len(prompt.prompt_token_ids) for prompt in prompts) > 2048
    assert len(set(drawn)) > 8  # one prompt under sixteen ids
    assert [generation.text for generation in ask(engine, *prompts[:2])] == drawn[:2]


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU draws in prefills that have parts")
def test_a_setting_that_prompts_which_draw_rule_out_is_refused(tmp_path):
    options = options_that_draw(tmp_path, enable_chunked_prefill=True)

    with (
        pytest.raises(ConfigError, match=r"\[engine\] enable_chunked_prefill: true, but .* Leave the key out"),
        engine_on_demand(options, max_starts=1, on_ready=lambda _: None) as started,
    ):
        _ = started.info


def test_content_free_prompts_show_what_letters_get_anyway(engine, recipe_of):
    asking = recipe_of("single", "first_token").main

    (generation,) = ask(
        engine, asking.builder.build_content_free("content-free/4", asking.mode.window(range(4)), asking.sizes)
    )

    assert len(generation.logprobs) == 4
    assert len(set(generation.logprobs)) == 4  # the small model favours places


def test_the_canaries_of_the_small_model_pass_where_it_can_judge(engine, recipe_of):
    recipe = recipe_of("pointwise", "query_likelihood")

    answered = ask_canaries(load_canaries(), recipe, engine)

    assert all(each.passed for each in answered)
    assert wrong_canaries(answered, max_missed_share=0.0) == ""
