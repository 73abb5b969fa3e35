"""Presets: each renders, fits and parses with a tokenizer and a chat template of its family's form, without weights."""

import re
import shutil
import tomllib
from datetime import date
from pathlib import Path

import numpy as np
import pytest

from tasks.prompt.thoughts import closes_thought, opened_thought
from tasks.schedule.windows import Window
from tasks.settings import load_settings
from tasks.system.errors import ConfigError
from tests.makers import ALWAYS_THINKING_CHAT, CHATML, ROOT
from tests.presets import FAMILIES, PRESETS, answer, build, make_recipe

RANKLLM_FORM = """
method: singleturn_listwise
system_message: "You sort texts."
prefix: |
  Here are {num} texts, each with IDENTIFIER in front. Sort them for: {query}.
body: |
  [{rank}] {candidate}
suffix: "Now sort them."
output_extraction_regex: r"PATTERN"
"""
RANKLLM_WORDS = {  # of RankLLM's form, in words of our own: the presets name its templates
    "rank_zephyr": ("a number", r"\[(\d+)\]"),
    "rank_zephyr_alpha": ("a letter", r"\[([A-Z])\]"),
}
LISTWISE = sorted(set(PRESETS) - {"qwen3_reranker", "sample"})  # tests/unit/test_recipes.py asks the first of those two


@pytest.fixture(autouse=True)
def rank_llm(tmp_path, monkeypatch):
    """A package with templates of the names that the presets ask for."""
    folder = tmp_path / "site" / "rank_llm" / "rerank" / "prompt_templates"
    folder.mkdir(parents=True)
    (tmp_path / "site" / "rank_llm" / "__init__.py").touch()
    for name, (identifier, pattern) in RANKLLM_WORDS.items():
        text = RANKLLM_FORM.replace("IDENTIFIER", identifier).replace("PATTERN", pattern)
        (folder / f"{name}_template.yaml").write_text(text, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path / "site")


def test_every_preset_has_a_family_here():
    assert set(PRESETS) == set(FAMILIES)


@pytest.mark.parametrize("preset", PRESETS)
def test_a_presets_own_templates_are_there(tmp_path, preset):
    config = tmp_path / "mine.toml"
    config.write_text(f'preset = "{preset}"\n[inputs]\nnested = "x"\n', encoding="utf-8")

    prompt = load_settings(config, {"engine.model": "org/model"}).prompt

    for template in (prompt.template, prompt.cascade_template):
        assert template is None or ":" in template or (ROOT / template).is_file()


@pytest.mark.parametrize("preset", LISTWISE)
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
    last = asking.builder.template.identifier(asking.sizes.window_size - 1)
    assert f"\n[{last}] " in text


@pytest.mark.parametrize("preset", LISTWISE)
def test_a_presets_answer_is_read(tmp_path, preset):
    recipe, _ = make_recipe(tmp_path, preset)
    asking = recipe.main
    prompt = build(asking, 3, num_words=5)

    if prompt.form.logprob_token_ids:
        told = answer(prompt, logprobs=(-3.0, -0.2, -2.0))
    elif asking.mode.name == "reasoning":
        told = answer(prompt, text="[1] looks good at first, [3] too.</think> <answer>[2] > [3] > [1]</answer>")
    else:
        told = answer(prompt, text="[2] > [3] > [1]")
    reading = asking.mode.read(prompt, told)

    assert reading.outcome.order == (1, 2, 0)
    assert reading.parse_status == "ok"


def test_qwen3_is_told_not_to_think(tmp_path):
    recipe, _ = make_recipe(tmp_path, "qwen3")

    text = recipe.main.builder.tokens.decode(build(recipe.main, 2).prompt_token_ids)

    assert text.endswith("assistant\n<think>\n\n</think>\n\n")


def test_llama3_is_not_told_todays_date(tmp_path):
    recipe, _ = make_recipe(tmp_path, "llama3")

    assert "Today Date: 26 Jul 2024" in recipe.main.builder.tokens.decode(build(recipe.main, 2).prompt_token_ids)


def test_gpt_oss_is_asked_in_its_final_channel_and_told_one_date(tmp_path):
    """Its turn begins with its analysis otherwise, and its template writes the date: no row of another night was reused."""
    recipe, _ = make_recipe(tmp_path / "ours", "gpt_oss")
    theirs, _ = make_recipe(tmp_path / "plain", "gpt_oss", overrides={"prompt.chat_template_date": date(2026, 2, 3)})

    text = recipe.main.builder.tokens.decode(build(recipe.main, 2).prompt_token_ids)

    assert text.endswith("<|start|>assistant<|channel|>final<|message|>")
    assert "Current date: 2026-01-01\n\nReasoning: low" in text
    assert recipe.resolved["turn_prefix"] == "<|channel|>final<|message|>"
    assert recipe.resolved["prompt_date"] == "2026-01-01"
    assert theirs.resolved["prompt_date"] == "2026-02-03"


def test_without_a_turn_prefix_the_identity_of_a_run_stays_as_it_was(tmp_path):
    recipe, _ = make_recipe(tmp_path, "qwen3")

    assert not {"turn_prefix", "prompt_date"} & recipe.resolved.keys()


def test_gpt_oss_without_its_turn_prefix_is_told_to_set_it(tmp_path):
    with pytest.raises(ConfigError, match=r"opens a <\|start\|>assistant block.*\[prompt\] turn_prefix"):
        make_recipe(tmp_path, "gpt_oss", overrides={"prompt.turn_prefix": ""})


def test_reasoning_opens_one_think_block_whoever_opens_it(tmp_path):
    ours, _ = make_recipe(tmp_path / "ours", "reasoning")
    theirs, _ = make_recipe(tmp_path / "theirs", "reasoning", chat=ALWAYS_THINKING_CHAT)

    for recipe in (ours, theirs):
        prompt = build(recipe.main, 2)
        asked = recipe.main.builder.tokens.decode(prompt.prompt_token_ids).partition("assistant\n")[2]
        assert asked == "<think>\n"
        assert prompt.opened_answer == "<think>"
        unfinished = answer(prompt, text="[1] or [2], hard to say")
        assert recipe.main.mode.read(prompt, unfinished).outcome.num_listed == 0


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


@pytest.mark.fault(28)
@pytest.mark.parametrize(
    "opening",
    [
        "assistant\n[THINK]",
        "assistant\n<seed:think>",
        "assistant\n<thought>\n",
        "assistant\n\u25c1think\u25b7",
        "assistant\n<|START_THINKING|>",
        "assistant\n<|channel|>analysis<|message|>",
        "assistant\n<|start|>assistant",  # gpt-oss: its next token opens a channel
    ],
)
def test_a_thought_is_noticed_in_the_marks_of_every_family(tmp_path, opening):
    chat = CHATML.replace("assistant\n'", f"{opening}'")

    with pytest.raises(ConfigError, match=r"opens a .* block, so the first token would be a thought"):
        make_recipe(tmp_path / "first", "instruct", chat=chat, overrides={"strategy.decode_mode": "first_token"})

    recipe, _ = make_recipe(tmp_path / "reasoning", "reasoning", chat=chat)
    prompt = build(recipe.main, 2)
    assert recipe.main.builder.tokens.decode(prompt.prompt_token_ids).endswith(opening)  # no second block
    unfinished = answer(prompt, text="[1] or [2], hard to say")
    assert recipe.main.mode.read(prompt, unfinished).outcome.num_listed == 0


@pytest.mark.parametrize(
    ("text", "opened"),
    [
        ("<think>\n\n</think>\n\n[", None),
        ("Write between [THINK] and [/THINK].", None),
        ("<|start|>assistant<|channel|>final<|message|>[", None),
        ("<think></think> <thought>", "<thought>"),
        ("I think", None),
    ],
)
def test_a_think_block_is_open_where_none_closes_it(text, opened):
    assert opened_thought(text) == opened


@pytest.mark.parametrize("text", ["a</think>", "a[/THINK]", "a</seed:think>", "a<|END_THINKING|>", "a<|channel|>final"])
def test_a_thought_that_was_closed_is_not_closed_by_force(text):
    assert closes_thought(text)
    assert not closes_thought(text[:-4])


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

    form = asking.mode.form(Window(tuple(range(100)), ask=3))

    longest = asking.builder.tokens.encode_data(["[100] > [99] > [98]"])[0]
    assert len(longest) < form.max_tokens < 40


def test_an_answer_to_a_pivot_stops_behind_its_identifier(tmp_path):
    recipe, _ = make_recipe(tmp_path, "llama3")

    form = recipe.main.mode.form(Window((4, 9, 7), pivot=7))

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

    answers = recipe.main.mode
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


# ---- the settings to copy

OWN = ROOT / "configs" / "own.toml"


def test_the_settings_to_copy_are_what_the_documents_say(tmp_path):
    """Named after the copy, point-wise query likelihood, and the canary stop on."""
    copied = Path(shutil.copy(OWN, tmp_path / "mine.toml"))

    settings = load_settings(copied)

    assert "cp configs/own.toml configs/mine.toml" in (ROOT / "docs" / "howto" / "own-data.md").read_text(
        encoding="utf-8"
    )
    assert settings.night.name == "mine"
    assert (settings.strategy.name, settings.strategy.decode_mode) == ("pointwise", "query_likelihood")
    assert (settings.strategy.cascade, settings.strategy.consensus) == (None, None)
    assert (settings.checks.canary, settings.checks.max_missed_canary_share) == ("stop", 0.4)
    assert settings.inputs.model_dump(exclude_none=True).keys() >= {"queries", "documents", "candidates", "qrels"}


def test_with_a_gpu_the_settings_to_copy_take_a_preset_as_their_comments_say(tmp_path):
    """Deletes the line that they say is to be deleted, and takes the # off the preset's and the engine's."""
    text = OWN.read_text(encoding="utf-8")
    named = re.findall(r'^# (preset = "(\w+)")', text, re.MULTILINE)
    text = text.replace('preset = "sample"\n', "", 1)
    text = text.replace("# [engine]\n# model", "[engine]\nmodel")

    assert {name for _, name in named} == set(PRESETS) - {"sample"}
    for line, name in named:
        config = tmp_path / f"{name}.toml"
        config.write_text(text.replace(f"# {line}", line), encoding="utf-8")
        settings = load_settings(config)
        preset = tomllib.loads((ROOT / "configs" / "models" / f"{name}.toml").read_text(encoding="utf-8"))
        assert settings.strategy.name == preset["strategy"]["name"]
        assert settings.checks.canary == "stop"


def test_only_the_demo_publishes_a_night_that_missed_its_canaries():
    shipped = [*(ROOT / "configs").glob("*.toml"), *(ROOT / "configs" / "models").glob("*.toml")]

    lenient = {
        path.name
        for path in shipped
        if {"canary", "max_missed_canary_share"}
        & tomllib.loads(path.read_text(encoding="utf-8")).get("checks", {}).keys()
    }

    assert lenient == {"sample.toml", "own.toml"}
    assert "checks" not in tomllib.loads((ROOT / "configs" / "models" / "sample.toml").read_text(encoding="utf-8"))
    demo = load_settings(ROOT / "configs" / "sample.toml").checks
    assert (demo.canary, demo.max_missed_canary_share) == ("warn", 1.0)
