"""Every preset with its family's own tokenizer and chat template; tests/engine/test_zoo.py asks a tiny model with it."""

import shutil
from datetime import date

import numpy as np
import pytest

from tasks.ranking.recipe import build_recipe
from tasks.schedule.windows import Window
from tasks.settings import load_settings
from tests.makers import GPT_OSS_CHAT, ROOT, make_text

# Preset -> the folder of its family's tokenizer in the test collections. None: its own is not there.
TOKENIZERS = {
    "deepseek": "deepseek_v3",
    "first_mistral": None,
    "gemma3": "gemma3",
    "gpt_oss": "gptoss",
    "instruct": "qwen2_5",
    "llama3": "llama3_2",
    "mistral": "mistral_nemo",
    "qwen3": "qwen3",
    "qwen3_reranker": "qwen3",
    "rank_zephyr": None,
    "reasoning": "qwen3",
    "sample": None,
}
PRESETS = sorted(path.stem for path in (ROOT / "configs" / "models").glob("*.toml"))
NIGHT = date(2026, 11, 29)
QUERY = "why do tides rise?"
TURNS = {
    "deepseek": "<｜Assistant｜>",
    "gemma3": "<start_of_turn>model\n",
    "gpt_oss": "<|start|>assistant<|channel|>final<|message|>",
    "instruct": "<|im_start|>assistant\n",
    "llama3": "<|start_header_id|>assistant<|end_header_id|>\n\n",
    "mistral": "[/INST]",
    "qwen3": "<|im_start|>assistant\n<think>\n\n</think>\n\n",
    "qwen3_reranker": "<|im_start|>assistant\n<think>\n\n</think>\n\n",
    "reasoning": "<|im_start|>assistant\n<think>\n",
}
ASKED = sorted(preset for preset, folder in TOKENIZERS.items() if folder)


@pytest.fixture(scope="module", params=ASKED)
def asked(request, collections, tmp_path_factory):
    """A preset, its recipe, and its prompt for one or three short passages. Loading a tokenizer takes up to a second."""
    preset, folder = request.param, tmp_path_factory.mktemp("preset")
    tokenizer = collections / "tokenizers" / TOKENIZERS[preset]
    if not tokenizer.is_dir():
        pytest.skip(f"{tokenizer} is not there")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copyfile(tokenizer / name, folder / name)
    if preset == "gpt_oss":
        (folder / "chat_template.jinja").write_text(GPT_OSS_CHAT, encoding="utf-8")
    config = folder / "mine.toml"
    config.write_text(f'preset = "{preset}"\n[inputs]\nnested = "x"\n', encoding="utf-8")
    recipe = build_recipe(load_settings(config, {"engine.model": str(folder)}), folder, NIGHT)
    asking = recipe.main
    num_passages = 1 if asking.mode.question == "judge" else 3
    pieces = asking.builder.encode_passages([make_text(number) for number in range(num_passages)])
    window, lengths = Window(tuple(range(num_passages)), asking.mode.question), [len(piece) for piece in pieces]
    return preset, recipe, asking.builder.build("q", window, QUERY, pieces, lengths, asking.sizes)


def test_every_preset_is_tried_here():
    assert set(TOKENIZERS) == set(PRESETS)


@pytest.mark.parametrize("preset", PRESETS)
def test_a_preset_says_how_to_use_it_and_what_it_was_tried_with(preset):
    lines = (ROOT / "configs" / "models" / f"{preset}.toml").read_text(encoding="utf-8").splitlines()
    head = " ".join(line.removeprefix("#").strip() for line in lines[: lines.index("")])

    assert len(lines[: lines.index("")]) == 3
    assert f'preset = "{preset}"' in head
    assert "Tried: " in head
    assert "Not tried: " in head


def test_a_preset_opens_the_models_turn_as_its_family_does(asked):
    preset, recipe, prompt = asked
    tokens = recipe.main.builder.tokens

    text = tokens.decode(prompt.prompt_token_ids)
    assert QUERY in text
    assert text.endswith(TURNS[preset])
    assert np.array_equal(prompt.prompt_token_ids[-3:], tokens.encode_words(text)[-3:])  # marks are special tokens


def test_a_prompt_begins_with_one_beginning(asked):
    """Template and tokenizer both write <bos> in some families; twice, a model ranks worse, and nothing is said."""
    _, recipe, prompt = asked
    beginnings = recipe.main.builder.tokens.bos_ids()

    assert np.isin(prompt.prompt_token_ids, beginnings).nonzero()[0].tolist() == [0] * len(beginnings)


def test_no_preset_asks_something_else_every_night(asked):
    _, recipe, prompt = asked

    assert recipe.prompt_date != NIGHT
    assert "29 Nov 2026" not in recipe.main.builder.tokens.decode(prompt.prompt_token_ids)
