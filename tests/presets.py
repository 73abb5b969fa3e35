"""Presets with a tokenizer and a chat template of their family's form, without weights."""

from tasks.decode.answer import Generation
from tasks.ranking.recipe import build_recipe
from tasks.schedule.windows import Window
from tasks.settings import load_settings
from tests.makers import (
    CHATML,
    GPT_OSS_CHAT,
    LLAMA3_CHAT,
    QWEN3_CHAT,
    ROOT,
    ZEPHYR_CHAT,
    make_text,
    make_tokenizer_folder,
)

PRESETS = sorted(path.stem for path in (ROOT / "configs" / "models").glob("*.toml"))
FAMILIES = {
    "instruct": ("gpt2", CHATML),
    "qwen3": ("qwen", QWEN3_CHAT),
    "gemma3": ("gpt2", CHATML),
    "mistral": ("merged", CHATML),
    "deepseek": ("merged", CHATML),
    "gpt_oss": ("merged", GPT_OSS_CHAT),
    "llama3": ("qwen", LLAMA3_CHAT),
    "reasoning": ("qwen", QWEN3_CHAT),
    "sample": ("gpt2", CHATML),
    "qwen3_reranker": ("qwen", QWEN3_CHAT),
    "rank_zephyr": ("gpt2", ZEPHYR_CHAT),
    "first_mistral": ("gpt2", ZEPHYR_CHAT),
}


def make_recipe(folder, preset, *, style=None, chat=None, overrides=None):
    family_style, family_chat = FAMILIES[preset]
    model = make_tokenizer_folder(folder / "model", style or family_style, chat or family_chat)
    config = folder / "mine.toml"
    config.write_text(f'preset = "{preset}"\n[inputs]\nnested = "x"\n', encoding="utf-8")
    settings = load_settings(config, {"engine.model": str(model)} | (overrides or {}))
    return build_recipe(settings, model), settings


def build(asking, num_passages, num_words=400, query="why is the moon round?"):
    """A prompt of the given number of passages, all of them too long."""
    pieces = asking.builder.encode_passages([make_text(n, num_words) for n in range(num_passages)])
    cut = [piece[: asking.sizes.max_passage_tokens] for piece in pieces]
    window = Window(tuple(range(num_passages)), asking.mode.question)
    return asking.builder.build("q/0/0/0", window, query, cut, [len(piece) for piece in pieces], asking.sizes)


def answer(prompt, text="", logprobs=None):
    return Generation(prompt.request_id, text, "stop", 1, 0, logprobs, None, None, 0)
