"""Presets: each renders, fits and parses with a tokenizer and a chat template of its family's form, without weights."""

import numpy as np
import pytest

from tasks.answer.outcomes import read_generation
from tasks.errors import ConfigError
from tasks.generate.generations import Generation, Latency
from tasks.rank.recipe import build_recipe
from tasks.schedule.windows import Window
from tasks.settings import load_settings
from tests.makers import (
    ALWAYS_THINKING_CHAT,
    CHATML,
    LLAMA3_CHAT,
    QWEN3_CHAT,
    ROOT,
    make_text,
    make_tokenizer_folder,
)

PRESETS = sorted(path.stem for path in (ROOT / "configs" / "models").glob("*.toml"))
FAMILIES = {
    "instruct": ("gpt2", CHATML),
    "qwen3": ("qwen", QWEN3_CHAT),
    "llama3": ("qwen", LLAMA3_CHAT),
    "reasoning": ("qwen", QWEN3_CHAT),
    "sample": ("gpt2", CHATML),
}


def make_recipe(folder, preset, *, style=None, chat=None, overrides=None):
    family_style, family_chat = FAMILIES[preset]
    model = make_tokenizer_folder(folder / "model", style or family_style, chat or family_chat)
    config = folder / "mine.toml"
    config.write_text(f'preset = "configs/models/{preset}.toml"\n[inputs]\nnested = "x"\n', encoding="utf-8")
    settings = load_settings(config, {"engine.model": str(model)} | (overrides or {}))
    return build_recipe(settings, model), settings


def build(asking, num_passages, num_words=400, query="why is the moon round?"):
    """A prompt of the given number of passages, all of them too long."""
    pieces = asking.builder.encode_passages([make_text(n, num_words) for n in range(num_passages)])
    cut = [piece[: asking.sizes.max_passage_tokens] for piece in pieces]
    window = Window(tuple(range(num_passages)), asking.question)
    return asking.builder.build("q/0/0/0", window, query, cut, [len(piece) for piece in pieces], asking.sizes)


def answer(prompt, text="", logprobs=None):
    return Generation(prompt.request_id, text, "stop", 1, 0, logprobs, None, Latency(), 0)


def test_every_preset_has_a_family_here():
    assert set(PRESETS) == set(FAMILIES)


@pytest.mark.parametrize("preset", PRESETS)
def test_a_preset_renders_and_fits(tmp_path, preset):
    recipe, settings = make_recipe(tmp_path, preset)
    asking = recipe.main

    prompt = build(asking, asking.sizes.window_size)

    tokens = asking.builder.tokens
    text = tokens.decode(prompt.prompt_token_ids)
    assert prompt.prompt_tokens + prompt.max_tokens <= settings.engine.max_model_len
    assert prompt.truncated_passages == asking.sizes.window_size
    assert text.count("why is the moon round?") >= 1
    assert asking.sizes.window_size == settings.strategy.window_size
    last = asking.template.identifier(asking.sizes.window_size - 1)
    assert f"\n[{last}] " in text


@pytest.mark.parametrize("preset", PRESETS)
def test_a_presets_answer_is_read(tmp_path, preset):
    recipe, _ = make_recipe(tmp_path, preset)
    asking = recipe.main
    prompt = build(asking, 3, num_words=5)

    if prompt.form.logprob_token_ids:
        told = answer(prompt, logprobs=(-3.0, -0.2, -2.0))
    elif asking.builder.decode_mode == "reasoning":
        told = answer(prompt, text="[1] looks good at first, [3] too.</think> <answer>[2] > [3] > [1]</answer>")
    else:
        told = answer(prompt, text="[2] > [3] > [1]")
    reading = read_generation(asking.builder, prompt, told)

    assert reading.outcome.order == (1, 2, 0)
    assert reading.parse_status == "ok"


def test_qwen3_is_told_not_to_think(tmp_path):
    recipe, _ = make_recipe(tmp_path, "qwen3")

    text = recipe.main.builder.tokens.decode(build(recipe.main, 2).prompt_token_ids)

    assert text.endswith("assistant\n<think>\n\n</think>\n\n[")


def test_llama3_is_not_told_todays_date(tmp_path):
    recipe, _ = make_recipe(tmp_path, "llama3")

    assert "Today Date: 26 Jul 2024" in recipe.main.builder.tokens.decode(build(recipe.main, 2).prompt_token_ids)


def test_reasoning_opens_one_think_block_whoever_opens_it(tmp_path):
    ours, _ = make_recipe(tmp_path / "ours", "reasoning")
    theirs, _ = make_recipe(tmp_path / "theirs", "reasoning", chat=ALWAYS_THINKING_CHAT)

    for recipe in (ours, theirs):
        prompt = build(recipe.main, 2)
        asked = recipe.main.builder.tokens.decode(prompt.prompt_token_ids).partition("assistant\n")[2]
        assert asked == "<think>\n"
        assert prompt.opened_answer == "<think>"
        unfinished = answer(prompt, text="[1] or [2], hard to say")
        assert read_generation(recipe.main.builder, prompt, unfinished).outcome.num_listed == 0


@pytest.mark.fault(28)
@pytest.mark.parametrize("decode_mode", ["first_token", "permutation", "select", "yes_no", "query_likelihood"])
def test_a_chat_template_that_opens_a_think_block_is_noticed_before_anything_is_scored(tmp_path, decode_mode):
    """lilbee#503: the scored token was a thought's, every score 0.0, and the order silently the first stage's."""
    strategy = {"select": "setwise", "yes_no": "pointwise", "query_likelihood": "pointwise"}.get(decode_mode, "tdpart")

    with pytest.raises(ConfigError, match=r"opens a <think> block.*enable_thinking = false"):
        make_recipe(
            tmp_path,
            "instruct",
            chat=ALWAYS_THINKING_CHAT,
            overrides={"strategy.decode_mode": decode_mode, "strategy.name": strategy},
        )


def test_what_a_settings_file_says_wins_over_its_preset(tmp_path):
    _, settings = make_recipe(tmp_path, "qwen3", overrides={"strategy.window_size": 8, "strategy.top_k": 3})

    assert settings.strategy.window_size == 8
    assert settings.strategy.name == "tdpart"
    assert settings.prompt.chat_template_kwargs == {"enable_thinking": False}


def test_a_preset_may_be_given_on_the_command_line(tmp_path):
    from tasks.settings import overrides_from

    config = tmp_path / "mine.toml"
    config.write_text('[inputs]\nnested = "x"\n[engine]\nmodel = "m"\n', encoding="utf-8")

    settings = load_settings(config, overrides_from(["preset=configs/models/llama3.toml"], ROOT))

    assert settings.strategy.decode_mode == "permutation"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('[inputs]\nnested = "x"', "a preset has the sections"),
        ('[strategy]\nname = "bubble"', "setwise"),
        ("[strategy", "not readable as TOML"),
    ],
)
def test_a_preset_that_cannot_be_one_is_refused(tmp_path, text, words):
    (tmp_path / "bad.toml").write_text(text, encoding="utf-8")
    config = tmp_path / "mine.toml"
    config.write_text(
        f'preset = "{tmp_path}/bad.toml"\n[inputs]\nnested = "x"\n[engine]\nmodel = "m"\n', encoding="utf-8"
    )

    with pytest.raises(ConfigError, match=words):
        load_settings(config)


# ---- the forms of answers


@pytest.mark.parametrize("style", ["gpt2", "qwen"])
def test_an_answer_of_few_has_room_for_the_longest_identifiers(tmp_path, style):
    recipe, _ = make_recipe(
        tmp_path, "llama3", style=style, overrides={"strategy.name": "single", "strategy.window_size": 100, "strategy.top_k": 3, "prompt.min_passage_tokens": 8, "engine.max_model_len": 8192}
    )  # fmt: skip
    asking = recipe.main

    form = asking.builder.answers.form(Window(tuple(range(100)), ask=3))

    longest = asking.builder.tokens.encode_data(["[100] > [99] > [98]"])[0]
    assert len(longest) < form.max_tokens < 40


def test_an_answer_to_a_pivot_stops_behind_its_identifier(tmp_path):
    recipe, _ = make_recipe(tmp_path, "llama3")

    form = recipe.main.builder.answers.form(Window((4, 9, 7), pivot=7))

    assert form.stop == ("[3]",)


@pytest.mark.parametrize("style", ["gpt2", "qwen"])
def test_spellings_of_the_verdict_that_are_one_token_are_summed(tmp_path, style):
    overrides = {"strategy.name": "pointwise", "strategy.decode_mode": "yes_no"}
    template = ROOT / "configs" / "prompts" / "yes_no.toml"
    words = template.read_text(encoding="utf-8")
    ours = tmp_path / "yes_no.toml"
    ours.write_text(
        words.replace('"Yes", "yes"', '"t", "m", "tides and moons"').replace('"No", "no"', '"b", "y"'), "utf-8"
    )
    recipe, _ = make_recipe(tmp_path, "instruct", style=style, overrides=overrides | {"prompt.template": str(ours)})

    answers = recipe.main.builder.answers
    assert [recipe.main.builder.tokens.decode([each]) for each in answers.yes_ids[:2]] == ["t", "m"]
    assert not set(answers.yes_ids) & set(answers.no_ids)


def test_a_verdict_without_a_spelling_of_one_token_is_refused(tmp_path):
    ours = tmp_path / "yes_no.toml"
    words = (ROOT / "configs" / "prompts" / "yes_no.toml").read_text(encoding="utf-8")
    ours.write_text(words.replace("yes = [", 'yes = ["certainly it does"]\nyes_not = ['), encoding="utf-8")
    overrides = {"strategy.name": "pointwise", "strategy.decode_mode": "yes_no", "prompt.template": str(ours)}

    with pytest.raises(ConfigError, match="not known: yes_not"):
        make_recipe(tmp_path, "instruct", overrides=overrides)
    ours.write_text(words.replace('"Yes", "yes", "YES", " Yes", " yes"', '"certainly it does"'), encoding="utf-8")
    with pytest.raises(ConfigError, match="none of .* is one token"):
        make_recipe(tmp_path, "instruct", overrides=overrides)


@pytest.mark.parametrize(
    ("mode", "strategy", "template", "words"),
    [
        ("first_token", "sliding", "permutation", "identifiers = 'letters'"),
        ("permutation", "sliding", "yes_no", "identifiers = 'letters' or 'numbers'"),
        ("yes_no", "pointwise", "first_token", "identifiers = 'none'"),
        ("yes_no", "pointwise", "query_likelihood", "for decode_mode query_likelihood alone"),
        ("reasoning", "sliding", "permutation", "needs `close`"),
    ],
)
def test_a_template_of_another_decode_mode_is_refused(tmp_path, mode, strategy, template, words):
    overrides = {
        "strategy.name": strategy,
        "strategy.decode_mode": mode,
        "prompt.template": f"configs/prompts/{template}.toml",
    }

    with pytest.raises(ConfigError, match=words):
        make_recipe(tmp_path, "instruct", overrides=overrides)


def test_the_tokens_of_the_query_are_the_last_of_the_prompt_and_not_cut(tmp_path):
    overrides = {"strategy.name": "pointwise", "strategy.decode_mode": "query_likelihood"}
    recipe, _ = make_recipe(tmp_path, "instruct", overrides=overrides)
    asking = recipe.main

    prompt = build(asking, 1, query="tides  and\nmoons?")

    scored = prompt.prompt_token_ids[-prompt.num_scored_tokens :]
    assert np.array_equal(scored, asking.builder.tokens.encode_data(["tides and moons?"])[0])
    assert asking.builder.tokens.decode(prompt.prompt_token_ids).endswith("assistant\ntides and moons?")
