"""Fills a batch with prompts as long as its budget allows.

Knows nothing of rounds, queries or engines; a prompt that does not fit waits for the next batch.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from tasks.engine.kv_cache import BatchBudget, KVCacheLimits
from tasks.prompt.prompts import Prompt


@dataclass(frozen=True, slots=True)
class Batch:
    """Prompts that go to the engine together: the unit of commit and of statistics."""

    prompts: tuple[Prompt, ...]
    needed_blocks: int  # upper bound, as packed
    block_budget: int
    part_of: int | None = None  # prompts of the batch that an engine was lost with, where this is a part of it


def needed_blocks(prompt: Prompt, limits: KVCacheLimits) -> int:
    """The most blocks that a prompt and its answer hold at once."""
    return limits.needed_blocks(prompt.prompt_tokens, prompt.max_tokens, prompt.form.reread_tokens)


class BatchPacker:
    """Admits prompts into one batch while blocks and sequences last."""

    def __init__(self, limits: KVCacheLimits, budget: BatchBudget) -> None:
        self._limits = limits
        self._budget = budget
        self._prompts: list[Prompt] = []
        self._num_blocks = 0

    def try_add(self, prompt: Prompt) -> bool:
        """Takes the prompt; false: it does not fit any more. An empty batch takes any prompt."""
        needed = needed_blocks(prompt, self._limits)
        fits = self._num_blocks + needed <= self._budget.max_blocks and len(self._prompts) < self._budget.max_prompts
        if self._prompts and not fits:
            return False
        self._prompts.append(prompt)
        self._num_blocks += needed
        return True

    def close(self) -> Batch:
        """The batch as it stands."""
        return Batch(tuple(self._prompts), self._num_blocks, self._budget.max_blocks)


def split(batch: Batch, limits: KVCacheLimits) -> tuple[Batch, Batch]:
    """The halves of a batch of at least two prompts that an engine was lost with."""
    middle = len(batch.prompts) // 2
    halves = (batch.prompts[:middle], batch.prompts[middle:])
    part_of = batch.part_of or len(batch.prompts)
    first, second = (
        Batch(
            prompts,
            sum(needed_blocks(each, limits) for each in prompts),
            batch.block_budget,
            part_of,
        )
        for prompts in halves
    )
    return first, second


def pack(prompts: Sequence[Prompt], limits: KVCacheLimits, budget: BatchBudget) -> list[Batch]:
    """All prompts in batches, in their order."""
    batches: list[Batch] = []
    packer = BatchPacker(limits, budget)
    for prompt in prompts:
        if not packer.try_add(prompt):
            batches.append(packer.close())
            packer = BatchPacker(limits, budget)
            packer.try_add(prompt)
    return [*batches, packer.close()] if prompts else []
