"""The paged KV cache as arithmetic: what a prompt needs, what a batch may hold, what was used and wasted.

    | null | headroom |                 usable blocks                  |
    | 1    | share    |  prompt A: ceil(tokens / block_size)  |  B ... |

Valid for one full-attention KV group, where a sequence of t tokens owns ceil(t / block_size) blocks. Knows nothing of
prompts' contents or of engines.
"""

from dataclasses import dataclass

from tasks.errors import ConfigError


@dataclass(frozen=True, slots=True)
class KVCacheLimits:
    """What the engine reported after its start."""

    num_gpu_blocks: int  # of the KV cache, whatever the device
    block_size: int  # tokens a block: 16 on GPUs, 128 on CPUs
    max_num_seqs: int  # sequences running at once
    max_num_batched_tokens: int  # tokens of one engine step
    max_model_len: int
    num_lookahead_tokens: int = 0
    max_concurrency: float | None = None  # vLLM's kv_cache_max_concurrency: sequences of max_model_len that fit

    @property
    def usable_blocks(self) -> int:
        """vLLM's block pool keeps one null block for itself (v1/core/block_pool.py)."""
        return self.num_gpu_blocks - 1

    def needed_blocks(self, prompt_tokens: int, max_tokens: int) -> int:
        """An upper bound on the blocks of one sequence: sharing and chunking only lower it.

        >>> KVCacheLimits(101, 16, 8, 2048, 4096).needed_blocks(prompt_tokens=31, max_tokens=1)
        2
        """
        return -(-(prompt_tokens + max_tokens + self.num_lookahead_tokens) // self.block_size)

    def used_blocks(self, prompt_tokens: int, output_tokens: int) -> int:
        """The blocks that a finished sequence had: its last token is sampled, never stored."""
        return -(-(prompt_tokens + output_tokens - 1) // self.block_size)

    def wasted_tokens(self, prompt_tokens: int, output_tokens: int) -> int:
        """The empty places of its last block."""
        return -(prompt_tokens + output_tokens - 1) % self.block_size


@dataclass(frozen=True, slots=True)
class BatchBudget:
    """What one batch may hold."""

    max_blocks: int
    max_prompts: int


def batch_budget(
    limits: KVCacheLimits, headroom_share: float, *, one_token_answers: bool, batch_loads: int
) -> BatchBudget:
    """The budget of a `generate` batch.

    With one output token vLLM admits a prompt only when all of it fits, and it never grows: several cache-loads may
    go into one call. Longer answers grow, so their batch is one load, all of it in flight at once.
    """
    loads = batch_loads if one_token_answers else 1
    usable = limits.usable_blocks - int(limits.usable_blocks * headroom_share)
    return BatchBudget(max_blocks=usable * loads, max_prompts=limits.max_num_seqs * loads)


def check_promise(limits: KVCacheLimits, headroom_share: float, max_prompt_tokens: int, max_tokens: int) -> None:
    """Whether this engine's cache keeps the promise of no preemption for the run's largest prompt.

    Raises:
        ConfigError: the cache is not one full-attention group, or the largest prompt is larger than the cache.
    """
    if limits.max_concurrency is not None:
        blocks_a_sequence = limits.num_gpu_blocks / limits.max_concurrency
        expected = -(-limits.max_model_len // limits.block_size)
        if abs(blocks_a_sequence - expected) > 0.01 * expected:
            raise ConfigError(
                f"the model's KV cache is not one full-attention group: a sequence of max_model_len = "
                f"{limits.max_model_len} owns {blocks_a_sequence:.1f} blocks where {expected} are expected, so blocks "
                "cannot be counted beforehand. Set [engine] disable_hybrid_kv_cache_manager = true, or [packing] "
                "promise = 'none' to go without the promise."
            )
    needed = limits.needed_blocks(max_prompt_tokens, max_tokens)
    usable = batch_budget(limits, headroom_share, one_token_answers=False, batch_loads=1).max_blocks
    if needed > usable:
        fitting = usable * limits.block_size - max_tokens - limits.num_lookahead_tokens
        raise ConfigError(
            f"a prompt of max_prompt_tokens = {max_prompt_tokens} needs {needed} KV blocks, but {usable} are usable "
            f"({limits.num_gpu_blocks} of {limits.block_size} tokens, less the null block and the headroom). Lower "
            f"[prompt] max_prompt_tokens to {fitting}, or give the cache more memory."
        )
