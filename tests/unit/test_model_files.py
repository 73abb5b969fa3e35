"""The small files of a model's folder: where a chat template may be, what is damaged, and which day it is."""

import json
from datetime import date

import pytest

from tasks.prompt.chat_template import ChatTemplate, load_chat_template
from tasks.prompt.tokens import load_model_tokens
from tasks.ranking.recipe import build_recipe
from tasks.settings import load_settings
from tasks.store.identity import model_identity
from tasks.system.errors import ConfigError
from tests.makers import CHATML, LLAMA3_CHAT, make_settings, make_tokenizer_folder

MESSAGES = [{"role": "user", "content": "tides"}]
NIGHT = date(2026, 11, 28)


@pytest.fixture
def folder(tmp_path):
    """A model's folder without a chat template."""
    made = make_tokenizer_folder(tmp_path / "model", "gpt2", CHATML)
    (made / "chat_template.jinja").unlink()
    return made


@pytest.fixture
def recipe_of(tmp_path):
    def make(folder, night=None, **settings):
        values = {name.replace("__", "."): value for name, value in settings.items()}
        config = make_settings(tmp_path, folder, {"inputs.nested": "-", **values})
        return build_recipe(load_settings(config), folder, night)

    return make


def write(folder, name, content):
    path = folder / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")


NAMED = [{"name": "tool_use", "template": "no"}, {"name": "default", "template": CHATML}]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("chat_template.jinja", CHATML),
        ("additional_chat_templates/default.jinja", CHATML),
        ("tokenizer_config.json", {"chat_template": CHATML}),
        ("tokenizer_config.json", {"chat_template": NAMED}),
        ("chat_template.json", {"chat_template": CHATML}),
        ("chat_template.json", {"chat_template": {"default": CHATML, "tool_use": "no"}}),
    ],
)
def test_a_chat_template_is_found_wherever_vllm_finds_it(folder, name, content):
    """Found nowhere, an instruct model was asked in plain text without a word."""
    assert load_chat_template(folder).source is None

    write(folder, name, content)

    assert load_chat_template(folder).source == CHATML


@pytest.mark.parametrize("name", ["chat_template.json", "additional_chat_templates/default.jinja"])
def test_a_chat_template_is_part_of_the_models_identity_wherever_it_is(folder, name):
    plain = model_identity(folder)
    write(folder, name, CHATML if name.endswith("jinja") else {"chat_template": CHATML})
    asked = model_identity(folder)
    write(folder, "chat_template.jinja", CHATML)

    assert len({plain, asked, model_identity(folder)}) == 3


def test_a_template_that_is_not_used_leaves_the_identity_as_it_was(folder):
    write(folder, "chat_template.jinja", CHATML)
    before = model_identity(folder)

    write(folder, "chat_template.json", {"chat_template": "other"})

    assert model_identity(folder) == before


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("tokenizer_config.json", {"chat_template": [{"name": "tool_use", "template": CHATML}]}),
        ("additional_chat_templates/tool_use.jinja", CHATML),
    ],
)
def test_named_templates_without_a_default_are_refused_as_transformers_does(folder, name, content):
    write(folder, name, content)

    with pytest.raises(ConfigError, match=r"the chat templates tool_use, but none is the default\. Write the one"):
        load_chat_template(folder)


def test_a_model_without_a_chat_template_is_warned_of(folder, recipe_of, caplog):
    recipe_of(folder)

    assert "no chat template, so the model is asked in plain text" in caplog.text


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("tokenizer_config.json", b'{"bos_tok', "not readable as JSON: Unterminated string"),
        ("tokenizer_config.json", b"", "not readable as JSON"),
        ("tokenizer_config.json", b"\xef\xbb\xbf{}", "Unexpected UTF-8 BOM"),
        ("tokenizer_config.json", b"[]", "holds a list, expected a JSON object"),
        ("tokenizer_config.json", b"version https://git-lfs.github.com/spec/v1\noid sha256:aa\n", "git lfs pull"),
        ("tokenizer_config.json", b'{"pad_token": {"no": 1}}', "pad_token has no text as its content"),
        ("tokenizer_config.json", b'{"chat_template": 5}', "neither a text nor a list of named texts"),
        ("tokenizer_config.json", b'{"chat_template": [5]}', "neither a text nor a list of named texts"),
        ("tokenizer_config.json", b'{"chat_template": [{"name": "default"}]}', "neither a text nor a list"),
        ("chat_template.json", b"{", "not readable as JSON"),
        ("chat_template.jinja", b"{# caf\xe9 #}", "not readable as UTF-8 text"),
        ("chat_template.jinja", b"version https://git-lfs.github.com/spec/v1\n", "git lfs pull"),
        ("tokenizer.json", b"version https://git-lfs.github.com/spec/v1\n", "git lfs pull"),
        ("tokenizer.json", b"\xff", "not readable as UTF-8 text"),
        ("tokenizer.json", b"{}", "not a tokenizer"),
    ],
)
def test_a_damaged_file_is_named_in_one_line(folder, recipe_of, name, content, words):
    (folder / name).write_bytes(content)

    with pytest.raises(ConfigError) as told:
        recipe_of(folder)

    assert str(folder / name) in str(told.value)
    assert words in str(told.value)
    assert "\n" not in str(told.value)


# ---- the date


def test_a_template_that_writes_the_date_is_told_the_night_and_not_the_hosts_clock(folder, recipe_of):
    """A run that was taken up after midnight had two dates in its prompts."""
    write(folder, "chat_template.jinja", LLAMA3_CHAT)
    recipe = recipe_of(folder, NIGHT)
    asking = recipe.main

    prompt = asking.builder.build_content_free("q", asking.mode.window(range(2)), asking.sizes)

    assert "Today Date: 28 Nov 2026" in load_model_tokens(folder).decode(prompt.prompt_token_ids)
    assert recipe.resolved["prompt_date"] == "2026-11-28"  # another night asks something else: no row of it is reused


@pytest.mark.parametrize("chat", [CHATML, LLAMA3_CHAT])
def test_a_template_that_writes_no_date_is_the_same_every_night(folder, recipe_of, chat):
    write(folder, "chat_template.jinja", chat)
    told = {"prompt__chat_template_kwargs.date_string": "26 Jul 2024"}

    recipes = [recipe_of(folder, night, **told) for night in (NIGHT, date(2026, 11, 29))]

    assert recipes[0].resolved == recipes[1].resolved
    assert "prompt_date" not in recipes[0].resolved


def test_a_template_that_asks_for_the_date_gets_none_without_a_night():
    chat = ChatTemplate("{{ strftime_now('%d') }}{{ messages[0]['content'] }}", {})

    with pytest.raises(ConfigError, match="it asks for the date, and none is given"):
        chat.render(MESSAGES)


@pytest.mark.parametrize(
    "architecture",
    [
        "Qwen3ForSequenceClassification",
        "BertForMaskedLM",
        "XLMRobertaModel",
        "JinaForRanking",
        "InternLM2ForRewardModel",
    ],
)
def test_a_pooling_model_is_refused_before_its_weights_load(folder, recipe_of, architecture):
    write(folder, "config.json", {"architectures": [architecture]})

    with pytest.raises(ConfigError, match=rf"config.json: {architecture} is a pooling model .*, which writes no text"):
        recipe_of(folder)


@pytest.mark.parametrize("architecture", ["GptOssForCausalLM", "GPT2LMHeadModel", "UltravoxModel"])
def test_a_model_that_writes_is_taken(folder, recipe_of, architecture):
    write(folder, "config.json", {"architectures": [architecture]})

    assert recipe_of(folder).askings
