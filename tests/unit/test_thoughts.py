"""A model's thoughts: closed in its own marks, drawn with its own settings, never read as an order."""

import re

import pytest

from tasks.decode.permutation import closing_of
from tasks.prompt.answer_forms import Sampling
from tasks.prompt.thoughts import CLOSING, OPENINGS
from tasks.system.errors import ConfigError
from tests.makers import CHATML, ROOT
from tests.presets import answer, build, make_recipe

REASONING = ROOT / "configs" / "prompts" / "reasoning.toml"
FAMILIES = {  # what the chat template leaves open -> what closes it
    "<think>": "</think>",
    "<thinking>": "</thinking>",
    "<thought>": "</thought>",
    "<seed:think>": "</seed:think>",
    "[THINK]": "[/THINK]",
    "\u25c1think\u25b7": "\u25c1/think\u25b7",
    "<|open|>think<|sep|>": "<|close|>think<|sep|>",
    "<|START_THINKING|>": "<|END_THINKING|>",
    "<|channel>thought": "<channel|>",
    "<|channel|>analysis": "<|end|><|start|>assistant<|channel|>final<|message|>",
    "<|start|>assistant": "<|end|><|start|>assistant<|channel|>final<|message|>",
    "Here is my thought process:": "Here is my response:",
}
HARMONY_CHAT = (  # gpt-oss, in short: its generation prompt leaves the channel to the model
    "{% for message in messages %}<|start|>{{ message.role }}<|message|>{{ message.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant{% endif %}"
)


def opens(mark):
    return CHATML.replace("assistant\n'", f"assistant\n{mark}'")


def test_every_family_that_is_recognised_can_be_closed():
    for pattern in OPENINGS:
        assert any(re.search(pattern, opening) for opening in (*FAMILIES, "analysisWe")), pattern
    for opening, closing in FAMILIES.items():
        assert closing_of(opening) == closing
        assert CLOSING.search(closing)


@pytest.mark.parametrize(("mark", "closing"), FAMILIES.items())
def test_a_thought_is_closed_by_force_in_the_marks_that_the_chat_template_opens(tmp_path, mark, closing):
    """`</think>` was written into every model: one that opened [THINK] went on thinking behind it."""
    recipe, _ = make_recipe(tmp_path, "reasoning", chat=opens(mark))
    builder = recipe.main.builder

    prompt = build(recipe.main, 3, num_words=5)
    closed = answer(prompt, text=f"[3] or [2]{prompt.form.close.text}[1] > [2] > [3]</answer>")

    assert prompt.form.close.text == f"\n{closing}\n<answer>"
    assert builder.tokens.decode(prompt.form.close.token_ids) == prompt.form.close.text
    assert builder.mode.read(prompt, closed).outcome.order == (0, 1, 2)


def test_a_chat_template_that_names_its_marks_for_earlier_turns_is_answered_in_them(tmp_path):
    chat = "{% if false %}[THINK]{{ thoughts }}[/THINK]{% endif %}" + CHATML

    recipe, _ = make_recipe(tmp_path, "reasoning", chat=chat)

    prompt = build(recipe.main, 2)
    text = recipe.main.builder.tokens.decode(prompt.prompt_token_ids)
    assert text.endswith("assistant\n[THINK]\n")
    assert "<think>" not in text
    assert prompt.form.close.text == "\n[/THINK]\n<answer>"


def test_a_family_that_nobody_knows_is_told_by_setting(tmp_path):
    told = {"prompt.thoughts": ["<|ponder|>", "<|spoken|>"]}
    recipe, _ = make_recipe(tmp_path / "told", "reasoning", chat=opens("<|ponder|>"), overrides=told)
    builder = recipe.main.builder

    prompt = build(recipe.main, 3, num_words=5)
    thought = answer(prompt, text="[3] or [2], hard to say")
    said = answer(prompt, text="[3] or [2]<|spoken|>[1] > [2] > [3]")

    assert builder.tokens.decode(prompt.prompt_token_ids).endswith("assistant\n<|ponder|>")
    assert prompt.form.close.text == "\n<|spoken|>\n<answer>"
    assert prompt.form.close.marks == ("<|ponder|>", "<|spoken|>")
    assert builder.mode.read(prompt, thought).outcome.num_listed == 0
    assert builder.mode.read(prompt, said).outcome.order == (0, 1, 2)
    overrides = {"strategy.decode_mode": "permutation"} | told
    with pytest.raises(ConfigError, match=r"opens a <think> block"):  # in the other modes it is seen as well
        make_recipe(tmp_path / "asked", "instruct", chat=opens("<|ponder|>"), overrides=overrides)


def test_thoughts_are_drawn_as_the_preset_says_and_with_a_seed_of_their_request(tmp_path):
    recipe, _ = make_recipe(tmp_path / "a", "reasoning")
    again, _ = make_recipe(tmp_path / "b", "reasoning")
    other, _ = make_recipe(tmp_path / "c", "reasoning", overrides={"strategy.seed": 1})

    sampling = build(recipe.main, 2).form.sampling

    assert sampling == Sampling(temperature=0.6, top_p=0.95, top_k=20)
    assert sampling.seed_of("q/0/0/0") == build(again.main, 2).form.sampling.seed_of("q/0/0/0")
    seeds = {
        each.seed_of(name) for each in (sampling, build(other.main, 2).form.sampling) for name in ("q", "q/closed")
    }
    assert len(seeds) == 4


def test_everything_else_is_greedy(tmp_path):
    recipe, _ = make_recipe(tmp_path / "a", "llama3")
    sampling = build(recipe.main, 2).form.sampling

    assert (sampling.temperature, sampling.seed_of("q/0/0/0")) == (0.0, None)
    with pytest.raises(ConfigError, match=r"\[prompt\]: sampling is for decode_mode = 'reasoning', not 'permutation'"):
        make_recipe(tmp_path / "b", "llama3", overrides={"prompt.sampling": {"temperature": 0.6}})
    with pytest.raises(ConfigError, match=r"\[prompt\] sampling.top_p = 1.5"):
        make_recipe(tmp_path / "c", "reasoning", overrides={"prompt.sampling": {"temperature": 0.6, "top_p": 1.5}})
