"""Identifiers on the real engine, with real vocabularies: what is read is the model's own probability of each.

The weights are random, but for those of the identifiers' tokens, which are made likely. The reference is transformers.
"""

import math
from dataclasses import replace
from datetime import date

import numpy as np
import pytest

from tasks.engine.batches import Batch
from tasks.engine.engine_options import EngineOptions
from tasks.engine.process import engine_on_demand
from tasks.prompt.chat_template import load_chat_template
from tasks.prompt.sizes import SizeLimits, resolve_sizes
from tasks.prompt.templates import load_prompt_template
from tasks.prompt.tokens import load_model_tokens
from tasks.schedule.windows import Window
from tasks.system.environment import STATE, engine_environment
from tests.makers import ROOT, fit_builder, make_text
from tests.tiny_models import FAMILIES, build_tiny_model

LIKELY = 60.0  # times: the identifiers' logits then spread over some ten units, the others' over a fifth of one
FORMS = {  # family -> its form, and what its prompts write at the start of the model's turn
    "qwen3": ("merged", "["),
    "gpt_oss": ("bare", "<|channel|>final<|message|>["),
}


def make_prompt(folder, decode_mode, prefix, num_passages):
    template = load_prompt_template(ROOT / "configs" / "prompts" / f"{decode_mode}.toml")
    chat = load_chat_template(folder, {"enable_thinking": False}, date(2026, 12, 1))
    builder = fit_builder(load_model_tokens(folder), replace(template, answer_prefix=prefix), chat, decode_mode)
    sizes = resolve_sizes(builder, num_passages, SizeLimits(2048, None, 40, 60, 8))
    pieces = builder.encode_passages([make_text(number) for number in range(num_passages)])
    window = Window(tuple(range(num_passages)), "select" if decode_mode == "select" else "order")
    return builder, builder.build(decode_mode, window, "why is the sea salt?", pieces, [*map(len, pieces)], sizes)


def make_likely(folder, ids):
    """The model with likely identifiers, and a copy of it for reference."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.no_grad():
        model.get_output_embeddings().weight[list(ids)] *= LIKELY
    model.save_pretrained(folder)
    return model


def logprobs_of(model, prompt):
    import torch

    with torch.no_grad():
        logits = model(torch.tensor(np.asarray(prompt.prompt_token_ids, np.int64)[None])).logits[0, -1].float()
    return torch.log_softmax(logits, 0)[list(prompt.form.logprob_token_ids)].tolist()


@pytest.mark.parametrize("family", ["qwen3", pytest.param("gpt_oss", marks=pytest.mark.soak)])
def test_the_probability_of_each_identifier_is_the_models(collections, tmp_path, family):
    form, prefix = FORMS[family]
    tokenizer = collections / "tokenizers" / FAMILIES[family].tokenizer
    if not tokenizer.is_dir():
        pytest.skip(f"{tokenizer} is not there")
    folder = build_tiny_model(family, tokenizer, tmp_path / family)
    asked = [make_prompt(folder, decode_mode, prefix, 50) for decode_mode in ("first_token", "select")]
    model = make_likely(folder, asked[0][0].mode.identifier_form.token_ids)
    options = EngineOptions(
        keywords={"model": str(folder), "max_model_len": 2048, "enforce_eager": True, "dtype": "float32", "kv_cache_memory_bytes": 64 << 20},
        environment=engine_environment(STATE, tmp_path / "tmp", model_is_folder=True, enforce_eager=True),
        log_path=tmp_path / "engine.log",
        start_timeout_s=600,
        batch_timeout_s=600,
    )  # fmt: skip

    with engine_on_demand(options, max_starts=1, on_ready=lambda _: None) as engine:
        generations, _ = engine.generate(Batch(tuple(prompt for _, prompt in asked), 0, 0))

    for (builder, prompt), generation in zip(asked, generations, strict=True):
        reading = builder.mode.read(prompt, generation)
        expected = logprobs_of(model, prompt)
        assert builder.mode.identifier_form.name == form
        assert generation.logprobs == pytest.approx(expected, abs=0.01)
        assert np.corrcoef(generation.logprobs, expected)[0, 1] > 0.999
        assert reading.parse_status == "ok"
        assert reading.id_mass == pytest.approx(sum(map(math.exp, expected)), abs=0.005)
        assert reading.outcome.order[0] == int(np.argmax(expected))
