"""What fits: the one place that admits prompts, to a batch or to the engine's cache, while its budget lasts.

Knows nothing of rounds, queries or engines.
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


class Packer:
    """Counts the prompts that share a budget. Answers of one token and longer ones never share one."""

    def __init__(self, limits: KVCacheLimits, budget: BatchBudget) -> None:
        self.budget = budget
        self.num_blocks = 0  # upper bound
        self._limits = limits
        self._num_prompts = self._num_tokens = 0

    def try_add(self, prompt: Prompt) -> bool:
        """Admits the prompt, or returns false if it no longer fits. The first prompt always fits."""
        needed, budget = needed_blocks(prompt, self._limits), self.budget
        fits = (
            prompt.has_one_token_answer == budget.one_token_answers
            and self.num_blocks + needed <= budget.max_blocks
            and self._num_prompts < budget.max_prompts
            and self._num_tokens + prompt.prompt_tokens <= budget.max_prompt_tokens
        )
        if self._num_prompts and not fits:
            return False
        self._count(prompt, needed, 1)
        return True

    def remove(self, prompt: Prompt) -> None:
        """Gives back what the prompt took."""
        self._count(prompt, -needed_blocks(prompt, self._limits), -1)

    def _count(self, prompt: Prompt, num_blocks: int, sign: int) -> None:
        self.num_blocks += num_blocks
        self._num_prompts += sign
        self._num_tokens += sign * prompt.prompt_tokens


def pack(prompts: Sequence[Prompt], limits: KVCacheLimits, budget: BatchBudget) -> list[Batch]:
    """All prompts in batches, in their order."""
    batches: list[tuple[Packer, list[Prompt]]] = []
    for prompt in prompts:
        if not batches or not batches[-1][0].try_add(prompt):
            batches.append((Packer(limits, budget), []))
            batches[-1][0].try_add(prompt)
        batches[-1][1].append(prompt)
    return [Batch(tuple(taken), packer.num_blocks, budget.max_blocks) for packer, taken in batches]
