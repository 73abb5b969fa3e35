"""The settings that the fake engine knows, by vLLM's names."""

from dataclasses import dataclass


@dataclass
class EngineArgs:
    model: str
    revision: str | None = None
    max_model_len: int = 4096
    trust_remote_code: bool = False
    dtype: str = "auto"
    enforce_eager: bool = False
    kv_cache_memory_bytes: int | None = None
    gpu_memory_utilization: float = 0.9
    tensor_parallel_size: int = 1
    block_size: int | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    enable_prefix_caching: bool | None = None
    disable_log_stats: bool = False
    use_tqdm_on_load: bool = True
    enable_logging_iteration_details: bool = False
    enable_lora: bool = False
    max_loras: int = 1
    max_lora_rank: int = 16
