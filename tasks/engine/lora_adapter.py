"""A LoRA adapter in PEFT's format, read and held against its base model before weights load.

Only sizes are looked at: names of base models differ between the hub and a folder. Knows nothing of engines.
"""

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from tasks.prompt.model_files import read_model_object
from tasks.system.errors import ConfigError, first_line

CONFIG = "adapter_config.json"
WEIGHTS = ("adapter_model.safetensors", "adapter_model.bin", "adapter_model.pt")  # vllm/lora/lora_model.py
RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)  # vllm/config/lora.py, MaxLoRARanks
FROM_HIDDEN_STATES = re.compile(r"\.(?:q_proj|k_proj|v_proj|gate_proj|up_proj)\.lora_A\.(?:\w+\.)?weight$")
LAYER = re.compile(r"\.layers\.(\d+)\.")
OTHER_TOWERS = re.compile(r"vision|visual|audio")


@dataclass(frozen=True, slots=True)
class LoraAdapter:
    """An adapter that can be loaded."""

    folder: Path
    weights: Path
    rank: int  # the largest of its modules
    base_model: str  # as adapter_config.json names it

    @property
    def engine_keywords(self) -> dict[str, Any]:
        """What vLLM's `LLM` is told; memory is taken for the smallest rank that it offers and that holds this one."""
        return {"enable_lora": True, "max_loras": 1, "max_lora_rank": next(rank for rank in RANKS if rank >= self.rank)}

    def digest(self) -> str:
        """SHA-256 over configuration and weights: the same on every host that has a copy."""
        digest = hashlib.sha256((self.folder / CONFIG).read_bytes())
        with self.weights.open("rb") as stream:
            while part := stream.read(1 << 20):
                digest.update(part)
        return digest.hexdigest()


def read_lora_adapter(folder: Path) -> LoraAdapter:
    """The adapter of a folder.

    Raises:
        ConfigError: no such folder, one without an adapter, a configuration that cannot be read, or a rank too high.
    """
    where = f"[engine] lora = {str(folder)!r}"
    if not folder.is_dir():
        raise ConfigError(f"{where}: no such folder. Give one with {CONFIG} and {WEIGHTS[0]}, as PEFT saves it.")
    weights = next((folder / name for name in WEIGHTS if (folder / name).is_file()), None)
    if weights is None or not (folder / CONFIG).is_file():
        missing = CONFIG if weights is not None else WEIGHTS[0]
        raise ConfigError(f"{where}: no {missing} in it. Give a folder as PEFT saves it.")
    config = read_model_object(folder / CONFIG)
    if config.get("peft_type", "LORA") != "LORA":
        raise ConfigError(f"{where}: {CONFIG} has peft_type = {config['peft_type']!r}, expected 'LORA'.")
    ranks = [config.get("r"), *(config.get("rank_pattern") or {}).values()]
    if not all(type(rank) is int and 1 <= rank <= RANKS[-1] for rank in ranks):
        raise ConfigError(f"{where}: {CONFIG} has the ranks {ranks}, expected whole numbers from 1 to {RANKS[-1]}.")
    return LoraAdapter(folder, weights, max(ranks), str(config.get("base_model_name_or_path")))


def require_base_model(adapter: LoraAdapter, model_folder: Path) -> None:
    """Refuses an adapter whose layers are more than the model's, or wider or narrower.

    Raises:
        ConfigError: it was made for another model, or its weights cannot be read.
    """
    config = read_model_object(model_folder / "config.json")
    text = config.get("text_config", config)
    hidden_size, num_layers = text.get("hidden_size"), text.get("num_hidden_layers")
    if adapter.weights.suffix != ".safetensors" or hidden_size is None or num_layers is None:
        return  # vLLM alone can tell
    for name, shape in _shapes(adapter):
        layer = LAYER.search(name)
        is_deeper = layer is not None and int(layer[1]) >= num_layers
        if is_deeper or (FROM_HIDDEN_STATES.search(name) and shape[-1] != hidden_size):
            raise ConfigError(
                f"[engine] lora = {str(adapter.folder)!r}: made for another model ({adapter.base_model}): {name} has "
                f"the shape {shape}, but {model_folder} has {num_layers} layers of width {hidden_size}. Give the model "
                "that the adapter was trained on."
            )


def _shapes(adapter: LoraAdapter) -> Iterator[tuple[str, list[int]]]:
    """Name and shape of each tensor of the language model."""
    try:
        with safe_open(adapter.weights, framework="np") as tensors:
            for name in tensors.keys():  # noqa: SIM118, it is no mapping
                if not OTHER_TOWERS.search(name):
                    yield name, tensors.get_slice(name).get_shape()
    except (SafetensorError, OSError) as error:
        raise ConfigError(f"{adapter.weights}: not readable: {first_line(error)}. Fetch the adapter again.") from error
