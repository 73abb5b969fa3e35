"""Identifiers: one token each behind the prompt, the same in the passages' heads, on every tokenizer."""

import json
from dataclasses import replace
from string import ascii_letters

import pytest
from tokenizers import AddedToken, Tokenizer, models

from tasks.decode.answer import Generation
from tasks.decode.letters import ENOUGH_IDENTIFIERS, fit_identifiers
from tasks.prompt.templates import LETTERS, load_prompt_template
from tasks.prompt.tokens import ModelTokens
from tasks.ranking.recipe import build_recipe
from tasks.settings import load_settings
from tasks.system.errors import ConfigError
from tests.makers import CHATML, fit_builder, make_settings, make_tokenizer, make_tokenizer_folder
from tests.prompts import CHAT, MODES, PROMPTS, build, heads, make_builder

BY_LETTERS = [("tdpart", "first_token"), ("setwise", "select"), ("tourrank", "select"), ("pairwise", "select")]


def merged_without(letters):
    """A tokenizer with a token "[A" and so on, but for these letters, which stand alone behind "[" as on Qwen."""
    trained = json.loads(make_tokenizer("merged").to_str())
    for letter in letters:
        trained["model"]["merges"].remove(["[", letter])
    return ModelTokens(Tokenizer.from_str(json.dumps(trained)))


@pytest.mark.parametrize("decode_mode", MODES)
def test_a_merged_token_is_an_identifier_with_the_words_of_the_opened_answer(decode_mode):
    tokens = merged_without("")

    builder = make_builder(tokens, decode_mode)

    asked = tokens.decode(build(builder, 3).prompt_token_ids)
    assert builder.mode.identifier_form.name == "merged"
    assert [tokens.decode([each]) for each in builder.mode.identifier_form.token_ids] == [
        f"[{each}" for each in LETTERS
    ]
    assert asked.endswith("in square brackets.<|im_end|>\n<|im_start|>assistant\n")


def test_a_letter_that_is_no_token_is_left_out_of_the_passages_heads_too():
    """Qwen and Llama 3 have no "[O" and no "[Q"."""
    tokens = merged_without("OQ")

    builder = make_builder(tokens)
    prompt = build(builder, 17)

    assert builder.mode.max_passages == ENOUGH_IDENTIFIERS
    assert heads(tokens.decode(prompt.prompt_token_ids)) == list("ABCDEFGHIJKLMNPRS")
    assert "".join(tokens.decode([each]) for each in prompt.form.logprob_token_ids).replace("[", "") == (
        "ABCDEFGHIJKLMNPRS"
    )


def test_a_bare_letter_is_asked_for_where_too_few_are_merged():
    """gpt-oss has 46 of them."""
    tokens = merged_without("HOQUWZ")

    builder = make_builder(tokens)

    assert builder.mode.identifier_form.name == "bare"
    assert tokens.decode(builder.mode.identifier_form.token_ids) == LETTERS
    assert builder.template.after == load_prompt_template(PROMPTS / "first_token.toml").after_bare
    assert tokens.decode(build(builder, 2).prompt_token_ids).endswith(
        "and nothing else.<|im_end|>\n<|im_start|>assistant\n"
    )


def test_a_template_without_a_bare_form_takes_the_form_that_gives_most():
    few, fewer = (make_builder(merged_without(letters), after_bare="") for letters in ("HOQUWZ", ascii_letters[:40]))

    assert (few.mode.identifier_form.name, few.mode.max_passages) == ("merged", 46)
    assert (fewer.mode.identifier_form.name, fewer.mode.max_passages) == ("opened", 40)


def test_what_a_template_writes_before_the_bracket_stays():
    """gpt-oss answers in a channel of its own, which the template opens."""
    builders = [
        make_builder(merged_without(letters), answer_prefix="<think>\n\n</think>\n\n[")
        for letters in ("", "HOQUWZ", LETTERS)
    ]

    assert [builder.mode.identifier_form.name for builder in builders] == ["merged", "bare", "opened"]
    assert [builder.template.answer_prefix[-6:] for builder in builders] == ["ink>\n\n", "ink>\n\n", "nk>\n\n["]


def test_a_tokenizer_without_letters_is_told_of_it():
    tokens = ModelTokens(Tokenizer(models.WordLevel({"?": 0}, unk_token="?")))

    with pytest.raises(ConfigError, match=r"no single token for a letter after '\['\. Give .*`after_bare`"):
        fit_identifiers(tokens, load_prompt_template(PROMPTS / "first_token.toml"), CHAT)


def test_letters_in_a_written_order_are_all_read_whatever_the_tokenizer_joins():
    """RankLLM's letters in decode_mode permutation: text is read, so that no letter is left out."""
    template = load_prompt_template(PROMPTS / "permutation.toml")
    builder = fit_builder(merged_without("OQ"), replace(template, identifiers="letters"), CHAT, "permutation")
    prompt = build(builder, 17)

    written = Generation(prompt.request_id, "[Q] > [O] > [A]", "stop", 9, 0, None, None, None, 0)
    reading = builder.mode.read(prompt, written)

    assert builder.mode.identifier_form is None
    assert heads(builder.tokens.decode(prompt.prompt_token_ids)) == list("ABCDEFGHIJKLMNOPQ")
    assert reading.outcome.order[:3] == (16, 14, 0)


@pytest.mark.parametrize("letters", ["", "A", "BCD", "ABCA"])
def test_a_template_may_name_only_the_first_letters(tmp_path, letters):
    words = (PROMPTS / "first_token.toml").read_text(encoding="utf-8")
    (tmp_path / "mine.toml").write_text(f'letters = "{letters}"\n{words}', encoding="utf-8")

    with pytest.raises(ConfigError, match=r"letters = .* must be the first of"):
        load_prompt_template(tmp_path / "mine.toml")


@pytest.mark.parametrize(("strategy", "decode_mode"), BY_LETTERS)
def test_the_form_is_part_of_a_runs_identity_unless_the_answer_is_opened(tmp_path, strategy, decode_mode):
    """Nights of models that worked before find their runs, and reuse their rows."""
    recipes = {}
    for style in ("qwen", "merged"):
        model = make_tokenizer_folder(tmp_path / style, style, CHATML)
        given = {"strategy.name": strategy, "strategy.decode_mode": decode_mode, "strategy.stride": None}
        given |= {"inputs.nested": "x", "strategy.window_size": None if strategy == "pairwise" else 4}
        recipes[style] = build_recipe(load_settings(make_settings(tmp_path, model, given)), model)

    opened, merged = recipes["qwen"], recipes["merged"]
    template = load_prompt_template(PROMPTS / f"{decode_mode}.toml")
    assert "identifier_form" not in opened.resolved
    assert merged.resolved["identifier_form"] == "merged"
    assert opened.main.builder.template.words == template.words
    assert template.words["num_letters"] == 52
    assert not {"letters", "after_bare"} & template.words.keys()
    assert merged.main.builder.template.words == template.words | {"answer_prefix": ""}


def test_letters_that_are_left_out_are_part_of_a_prompts_identity():
    assert make_builder(merged_without("OQ")).template.words["letters"] == LETTERS.replace("O", "").replace("Q", "")


def test_line_breaks_that_are_added_tokens_stay_between_passages():
    """Gemma 3 has runs of line breaks and tabs among its added tokens: its passages used to stand on one line."""
    tokenizer = make_tokenizer("gpt2")
    tokenizer.add_tokens([AddedToken(text, special=False, normalized=False) for text in ("\n", "\n\n", "\n\n\n", "\t")])
    whole = Tokenizer.from_str(tokenizer.to_str())
    tokens = ModelTokens(tokenizer)

    text = tokens.decode(build(make_builder(tokens), 3).prompt_token_ids)

    assert heads(text) == list("ABC")
    assert tokens.encode_words("a\n\nb\n").tolist() == whole.encode("a\n\nb\n", add_special_tokens=False).ids
