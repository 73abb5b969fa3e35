"""A LoRA adapter on the real engine: answers are those of the model with the adapter merged into its weights."""

import json

import numpy as np
import pytest

from tasks.engine.batches import Batch
from tasks.engine.engine_options import EngineOptions
from tasks.engine.lora_adapter import read_lora_adapter, require_base_model
from tasks.engine.process import engine_on_demand
from tasks.prompt.answer_forms import AnswerForm
from tasks.prompt.prompts import Prompt
from tasks.schedule.windows import Window
from tasks.system.environment import STATE, engine_environment
from tests.makers import make_tiny_model

MODULE = "model.layers.0.mlp.down_proj"
LETTERS = (40, 50, 60, 70)
PROMPTS = [[5, 17, 33, 80, 21], [9, 90, 41, 7], [12, 13, 14, 15, 16, 17]]
RANK, ALPHA = 4, 8


def make_adapter(folder, model):
    """Adds to what the last layer writes, whatever it reads, a step towards the last letter or away from it."""
    import torch
    from safetensors.torch import save_file

    folder.mkdir()
    torch.manual_seed(1)
    width, inner = model.config.hidden_size, model.config.intermediate_size
    head = model.get_output_embeddings().weight.detach()
    towards = head[LETTERS[-1]] / head[LETTERS[-1]].norm()
    reads = torch.randn(RANK, inner)
    writes = towards[:, None].repeat(1, RANK) * 20.0
    name = f"base_model.model.{MODULE}"
    tensors = {f"{name}.lora_A.weight": reads, f"{name}.lora_B.weight": writes.contiguous()}
    save_file(tensors, folder / "adapter_model.safetensors")
    config = {"peft_type": "LORA", "r": RANK, "lora_alpha": ALPHA, "target_modules": ["down_proj"], "bias": "none"}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    assert writes.shape == (width, RANK)
    return (ALPHA / RANK) * writes @ reads


def logprobs_of(model):
    import torch

    with torch.no_grad():
        found = [model(torch.tensor([ids])).logits[0, -1].float().log_softmax(-1) for ids in PROMPTS]
    return np.array([[float(each[letter]) for letter in LETTERS] for each in found])


@pytest.mark.parametrize("driver", ["stream", pytest.param("generate", marks=pytest.mark.soak)])
def test_an_adapter_changes_the_answers_as_merged_weights_do(tmp_path, driver):
    import torch
    from transformers import AutoModelForCausalLM

    folder = make_tiny_model(tmp_path / "model")
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    step = make_adapter(tmp_path / "adapter", model)
    plain = logprobs_of(model)
    model.get_submodule(MODULE).weight.data += step
    merged = logprobs_of(model)
    adapter = read_lora_adapter(tmp_path / "adapter")
    require_base_model(adapter, folder)
    options = EngineOptions(
        keywords={"model": str(folder), "max_model_len": 512, "enforce_eager": True, "dtype": "float32", "kv_cache_memory_bytes": 64 << 20} | adapter.engine_keywords,
        environment=engine_environment(STATE, tmp_path / "tmp", model_is_folder=True, enforce_eager=True),
        log_path=tmp_path / "engine.log",
        start_timeout_s=300,
        batch_timeout_s=300,
        driver=driver,
        lora=str(adapter.folder),
    )  # fmt: skip

    with engine_on_demand(options, max_starts=1, on_ready=lambda _: None) as engine:
        prompts = tuple(
            Prompt(
                f"q{number}", Window((0,)), "first_token", np.array(ids, np.int32), AnswerForm(1, LETTERS), 0, "", 0, 0
            )
            for number, ids in enumerate(PROMPTS)
        )
        answers, _ = engine.generate(Batch(prompts, 0, 0))
    found = np.array([each.logprobs for each in answers])

    assert np.abs(merged - plain).max() > 1.0
    assert found == pytest.approx(merged, abs=1e-3)
