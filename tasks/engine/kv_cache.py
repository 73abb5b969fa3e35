"""The paged KV cache as arithmetic: what a prompt needs, what a batch may hold, what was used and wasted.

    | null | headroom |                   usable blocks                    |
    | 1    | share    |  prompt A: the blocks of all its groups  |  B ...  |

Layers that share a block table form a cache group, and all groups take their blocks from one pool. A sequence needs the
sum of what it holds at most in each group (docs/adr/0024). Knows nothing of prompts' contents or of engines.
"""

from dataclasses import dataclass
from math import inf

from tasks.system.errors import ConfigError

FULL, WINDOW, CHUNK, MAMBA = "full_attention", "sliding_window", "chunked_local_attention", "mamba"
COUNTED_KINDS = (FULL, WINDOW, CHUNK, MAMBA)


@dataclass(frozen=True, slots=True)
class KVCacheGroup:
    """Layers that share a block table, by which blocks of a sequence they hold.

    full_attention           all
    sliding_window           those of the last `span_tokens` tokens and of the tokens in flight
    chunked_local_attention  those since the last multiple of `span_tokens` and of the tokens in flight
    mamba                    the state before the steps under way, and what each step writes: one state, and
                             `num_checkpoints` more

    Source: vLLM's v1/core/single_type_kv_cache_manager.py.
    """

    kind: str  # one of COUNTED_KINDS, or vLLM's name for one whose blocks cannot be counted
    block_size: int  # tokens; not always the engine's
    span_tokens: int = 0  # the window or the chunk
    num_checkpoints: int = 0  # states that a prefill step writes beside the one at its end
    extra_blocks: int = 0  # held on top: states for speculation, the copy of a block that a prefix hit ends in

    @property
    def name(self) -> str:
        """Its kind, with the window or chunk in tokens."""
        return f"{self.kind} {self.span_tokens}" if self.span_tokens else self.kind

    def prefill_blocks(self, prompt_tokens: int, limits: "KVCacheLimits") -> int:
        """The most blocks while a prompt is prefilled, in whatever parts; vLLM reserves as many for windows and chunks.

        See `max_admission_blocks_per_request` in vLLM's v1/kv_cache_interface.py.
        """
        most = whole = self._num_blocks(prompt_tokens)
        if self.kind == MAMBA:
            most = 1 + limits.max_concurrent_batches * (1 + self.num_checkpoints)
        elif self.kind == WINDOW:
            most = self._num_blocks(self.span_tokens - 1 + limits.in_flight_tokens) + 1
        elif self.kind == CHUNK:
            most = self._num_blocks(self.span_tokens + limits.in_flight_tokens) + self._is_unaligned
        return min(whole, most) + self.extra_blocks

    def decode_blocks(self, prompt_tokens: int, stored_tokens: int, limits: "KVCacheLimits") -> int:
        """The most blocks while the answer grows to `stored_tokens` with its prompt, some tokens in flight."""
        most = whole = self._num_blocks(stored_tokens)
        reach = self.span_tokens - 1 + limits.max_concurrent_batches + limits.num_lookahead_tokens
        if self.kind == MAMBA:
            most = 2
        elif self.kind == WINDOW and stored_tokens > reach:
            # `reach` tokens touch the most blocks when the last of them begins a block.
            first = max(prompt_tokens + 1, reach)
            begins_block = first + (1 - first) % self.block_size
            ends = [end for end in (first, begins_block) if end <= stored_tokens]
            most = max((self._num_blocks(end) - (end - reach) // self.block_size for end in ends), default=0)
        elif self.kind == CHUNK:
            most = self._num_blocks(reach) + self._is_unaligned
        return min(whole, most) + self.extra_blocks

    def wasted_tokens(self, stored_tokens: int) -> int:
        """The empty places of a sequence's last block; a state fills its block."""
        return 0 if self.kind == MAMBA else -stored_tokens % self.block_size

    @property
    def _is_unaligned(self) -> bool:
        return self.span_tokens % self.block_size > 0

    def _num_blocks(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)


@dataclass(frozen=True, slots=True)
class KVCacheLimits:
    """What the engine reported after its start."""

    num_gpu_blocks: int  # of the KV cache, whatever the device
    block_size: int  # tokens a block: 16 on GPUs, 128 on CPUs
    max_num_seqs: int  # sequences running at once
    max_num_batched_tokens: int  # tokens of one engine step
    max_model_len: int
    groups: tuple[KVCacheGroup, ...]
    num_lookahead_tokens: int = 0
    max_concurrent_batches: int = 1  # engine steps under way at once; 2 with asynchronous scheduling

    @property
    def usable_blocks(self) -> int:
        """vLLM's block pool keeps one null block for itself (v1/core/block_pool.py)."""
        return self.num_gpu_blocks - 1

    @property
    def in_flight_tokens(self) -> int:
        """Tokens that have places and are not computed yet, at most."""
        return self.max_concurrent_batches * self.max_num_batched_tokens + self.num_lookahead_tokens

    @property
    def admits_whole_prompts(self) -> bool:
        """Whether no other prompt is admitted between two parts of one: vLLM cuts prefills at Mamba's block ends."""
        return all(group.kind != MAMBA or group.block_size >= self.max_model_len for group in self.groups)

    def needed_blocks(self, prompt_tokens: int, max_tokens: int, reread_tokens: int = 0) -> int:
        """An upper bound on the blocks of one sequence: sharing and shorter answers only lower it.

        Args:
            prompt_tokens: as sent.
            max_tokens: of the answer.
            reread_tokens: of the answer, what may be sent again behind the prompt and prefilled with it.

        >>> attention = KVCacheGroup("full_attention", block_size=16)
        >>> KVCacheLimits(101, 16, 8, 2048, 4096, (attention,)).needed_blocks(prompt_tokens=31, max_tokens=1)
        2
        """
        return self._most_blocks(prompt_tokens + reread_tokens, prompt_tokens + max_tokens + self.num_lookahead_tokens)

    def used_blocks(self, prompt_tokens: int, output_tokens: int) -> int:
        """The most blocks that a finished sequence had at once: its last token is sampled, never stored."""
        return self._most_blocks(prompt_tokens, prompt_tokens + output_tokens - 1)

    def wasted_tokens(self, prompt_tokens: int, output_tokens: int) -> int:
        """The empty places of its last block, of each group."""
        return sum(group.wasted_tokens(prompt_tokens + output_tokens - 1) for group in self.groups)

    def _most_blocks(self, prompt_tokens: int, stored_tokens: int) -> int:
        """The larger of what a prefill and the decode after it hold: windows shrink when the prefill has ended."""
        # The first steps of the decode may be under way before that.
        prefilled = min(stored_tokens, prompt_tokens + self.max_concurrent_batches - 1 + self.num_lookahead_tokens)
        return max(
            sum(group.prefill_blocks(prefilled, self) for group in self.groups),
            sum(group.decode_blocks(prompt_tokens, stored_tokens, self) for group in self.groups),
        )


@dataclass(frozen=True, slots=True)
class BatchBudget:
    """What prompts that share it may hold together."""

    max_blocks: int
    max_prompts: int
    one_token_answers: bool
    max_prompt_tokens: float = inf


def batch_budget(
    limits: KVCacheLimits, headroom_share: float, *, one_token_answers: bool, batch_loads: int
) -> BatchBudget:
    """The budget of a `generate` batch.

    With one output token vLLM admits a prompt only when all of it fits, and it never grows: several cache-loads may
    go into one call. Longer answers grow, and so do prompts that vLLM prefills in parts of its own choice, so their
    batch is one load, all of it in flight at once.
    """
    loads = batch_loads if one_token_answers and limits.admits_whole_prompts else 1
    usable = limits.usable_blocks - int(limits.usable_blocks * headroom_share)
    return BatchBudget(usable * loads, limits.max_num_seqs * loads, one_token_answers)


def check_promise(
    limits: KVCacheLimits, headroom_share: float, max_prompt_tokens: int, max_tokens: int, reread_tokens: int = 0
) -> None:
    """Whether this engine's cache keeps the promise of no preemption for a run's largest prompt.

    Raises:
        ConfigError: the cache has a group whose blocks cannot be counted, or the prompt is larger than the cache.
    """
    unknown = sorted({group.kind for group in limits.groups} - set(COUNTED_KINDS))
    if unknown:
        raise ConfigError(
            f"the model's KV cache has a group that vLLM manages by {', '.join(unknown)}, whose blocks cannot be "
            f"counted beforehand. Counted are {', '.join(COUNTED_KINDS)}. Set [packing] promise = 'none' to go without "
            "the promise of no preemption."
        )
    usable = batch_budget(limits, headroom_share, one_token_answers=False, batch_loads=1).max_blocks
    needed = limits.needed_blocks(max_prompt_tokens, max_tokens, reread_tokens)
    if needed <= usable:
        return
    shorter = range(max_prompt_tokens - 1, 0, -1)
    fitting = next((num for num in shorter if limits.needed_blocks(num, max_tokens, reread_tokens) <= usable), None)
    advice = "" if fitting is None else f"Lower [prompt] max_prompt_tokens to {fitting}, or give"
    raise ConfigError(
        f"a prompt of max_prompt_tokens = {max_prompt_tokens} needs {needed} KV blocks, but {usable} are usable "
        f"({limits.num_gpu_blocks} of {limits.block_size} tokens, less the null block and the headroom). "
        f"{advice or 'Give'} the cache more memory."
    )
