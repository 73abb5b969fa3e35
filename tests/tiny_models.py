"""Tiny models of real architectures with random weights: all of a model family but its weights, on a CPU, in seconds.

Configuration classes and weights are transformers'; tokenizers and chat templates come from the test collections.

    python -m tests.tiny_models FOLDER            # builds every family below FOLDER
    python -m tests.tiny_models FOLDER gemma3     # builds one
"""

import json
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from tests.conftest import find_test_data
from tests.makers import GPT_OSS_CHAT

# vLLM's CPU attention takes no head dimension under 32.
SHAPE: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 8192,
}
WIDE: dict[str, Any] = SHAPE | {"hidden_size": 128}  # for classes that derive the head dimension from it
EXPERTS: dict[str, Any] = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64}
ENCODER: dict[str, Any] = {
    "hidden_size": 128,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "pad_token_id": 1,  # XLM-R's position table needs a small one
}
LINEAR_ATTENTION: dict[str, Any] = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 64,
    "linear_value_head_dim": 64,
}
# DeepSeek's own head sizes: MLA kernels take few others. transformers does not know topk_method; without it vLLM expects no
# e_score_correction_bias and refuses the file that holds one.
LATENT_ATTENTION: dict[str, Any] = {
    "q_lora_rank": 64,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
}
DEEPSEEK_EXPERTS: dict[str, Any] = {
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 64,
    "n_group": 1,
    "topk_group": 1,
    "topk_method": "noaux_tc",
    "first_k_dense_replace": 1,
    "num_mtp_layers": 0,
}


@dataclass(frozen=True, slots=True)
class Family:
    """What makes a model one of its family."""

    config_class: str  # of transformers
    tokenizer: str  # its folder in the test collections
    parameters: Mapping[str, Any]
    preset: str = ""  # of configs/models; none for a pooling model, which answers with one score
    chat_template: str = ""  # where the collections have none

    @property
    def is_generative(self) -> bool:
        """Whether it writes text."""
        return bool(self.preset)


FAMILIES: Mapping[str, Family] = {
    "qwen3": Family("Qwen3Config", "qwen3", SHAPE, "qwen3"),
    "qwen2": Family("Qwen2Config", "qwen2_5", WIDE, "instruct"),
    "qwen3_moe": Family("Qwen3MoeConfig", "qwen3", SHAPE | EXPERTS, "qwen3"),
    "llama3": Family("LlamaConfig", "llama3_2", WIDE, "llama3"),
    "mistral": Family("MistralConfig", "mistral_nemo", WIDE | {"sliding_window": None}, "mistral"),
    "mistral_window": Family("MistralConfig", "mistral_nemo", WIDE | {"sliding_window": 256}, "mistral"),
    "gemma3": Family(
        "Gemma3TextConfig",
        "gemma3",
        SHAPE | {"sliding_window": 256, "layer_types": ["sliding_attention"] * 3 + ["full_attention"]},
        "gemma3",
    ),
    "gpt_oss": Family(
        "GptOssConfig",
        "gptoss",
        SHAPE | {"intermediate_size": 64, "num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 128},
        "gpt_oss",
        GPT_OSS_CHAT,
    ),
    "qwen3_next": Family(
        "Qwen3NextConfig",
        "qwen3",
        WIDE | EXPERTS | LINEAR_ATTENTION | {"head_dim": 64, "shared_expert_intermediate_size": 64},
        "qwen3",
    ),
    "deepseek": Family("DeepseekV3Config", "deepseek_v3", WIDE | LATENT_ATTENTION | DEEPSEEK_EXPERTS, "deepseek"),
    # XLM-R and BERT have a foreign vocabulary here: their own is not in the collections.
    "qwen3_score": Family("Qwen3Config", "qwen3", SHAPE),
    "xlmr_score": Family("XLMRobertaConfig", "qwen3", ENCODER | {"max_position_embeddings": 514}),
    "bert_score": Family("BertConfig", "qwen3", ENCODER | {"max_position_embeddings": 512}),
}


def build_tiny_model(family: str, tokenizer_folder: Path, folder: Path) -> Path:
    """Writes a model of the family, with the tokenizer of `tokenizer_folder`, into the new `folder`; returns it.

    The same family and tokenizer give the same weights.
    """
    import torch
    import transformers

    made = FAMILIES[family]
    folder.mkdir(parents=True)
    for path in tokenizer_folder.glob("*"):
        if path.name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
            shutil.copyfile(path, folder / path.name)
    if made.chat_template:
        (folder / "chat_template.jinja").write_text(made.chat_template, encoding="utf-8")
    parameters = {**_vocabulary(folder), **made.parameters}
    if not made.is_generative:
        parameters["num_labels"] = 1
    config = getattr(transformers, made.config_class)(**parameters)
    auto = transformers.AutoModelForCausalLM if made.is_generative else transformers.AutoModelForSequenceClassification
    torch.manual_seed(0)
    auto.from_config(config).to(torch.bfloat16).save_pretrained(folder)
    return folder


def _vocabulary(folder: Path) -> dict[str, int]:
    """The vocabulary's size, rounded up to a multiple of 64 as models have it, and the ids of the special tokens."""
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    ids = {"vocab_size": (max(tokenizer.get_vocab().values()) // 64 + 1) * 64}
    names = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
    for role in ("bos_token", "eos_token", "pad_token"):
        token = names.get(role)
        if token is not None:
            ids[f"{role}_id"] = tokenizer.token_to_id(token["content"] if isinstance(token, dict) else token)
    return ids


def main(folder: str, *families: str) -> None:
    """Builds the families, all if none is named."""
    data = find_test_data()
    if data is None:
        sys.exit("no test collections: set PACKRANK_TEST_DATA to their folder")
    for family in families or FAMILIES:
        print(build_tiny_model(family, data / "tokenizers" / FAMILIES[family].tokenizer, Path(folder) / family))


if __name__ == "__main__":
    main(*sys.argv[1:])
