"""What a token costs a dense decoder, by its config: floating-point operations, and bytes that a step has to read.

    FLOPs   2 x weights of all layers, and attention over what stands before the token
    bytes   all weights once a step, whatever the number of its tokens; keys and values of each sequence that decodes

The output layer is left out of prefill, where one position a sequence needs it, and is part of decode. Norms and biases
are left out. Knows nothing of engines.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")
BYTES = {"float32": 4, "float": 4}  # others are stored in two


@dataclass(frozen=True, slots=True)
class ModelCosts:
    """Of one dense decoder."""

    layer_weights: int  # of all layers
    output_weights: int  # of the output layer
    attention_width: int  # layers x heads x their size: each pair of tokens costs 4 operations of it
    kv_bytes_a_token: int
    weight_bytes: int  # of one weight

    def prefill_flops(self, mean_context: float) -> float:
        """Of one prompt token that attends to so many."""
        return 2.0 * self.layer_weights + 4.0 * self.attention_width * mean_context

    def decode_flops(self, mean_context: float) -> float:
        """Of one generated token."""
        return self.prefill_flops(mean_context) + 2.0 * self.output_weights

    def prefill_bytes(self, tokens_a_step: float) -> float:
        """A prompt token's share of the weights that its step reads."""
        return self.layer_weights * self.weight_bytes / max(tokens_a_step, 1.0)

    def decode_bytes(self, seqs_a_step: float, mean_context: float) -> float:
        """A generated token's share of the weights, and the keys and values of its own sequence."""
        weights = (self.layer_weights + self.output_weights) * self.weight_bytes
        return weights / max(seqs_a_step, 1.0) + self.kv_bytes_a_token * mean_context


def model_costs(config: Mapping[str, Any]) -> ModelCosts | None:
    """From `config.json`; None for a mixture of experts, or where the config names its sizes otherwise."""
    config = config.get("text_config") or config
    names = ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "vocab_size")
    if any(config.get(name) for name in EXPERTS) or not all(isinstance(config.get(name), int) for name in names):
        return None
    hidden, layers, heads, inner, vocabulary = (config[name] for name in names)
    head_dim = config.get("head_dim") or hidden // heads
    kv_heads = config.get("num_key_value_heads") or heads
    attention = 2 * hidden * heads * head_dim + 2 * hidden * kv_heads * head_dim
    num_bytes = BYTES.get(str(config.get("dtype") or config.get("torch_dtype")), 2)
    return ModelCosts(
        layer_weights=layers * (attention + 3 * hidden * inner),
        output_weights=hidden * vocabulary,
        attention_width=layers * heads * head_dim,
        kv_bytes_a_token=2 * layers * kv_heads * head_dim * num_bytes,
        weight_bytes=num_bytes,
    )
