"""What the letters of a window get from a prompt that says nothing: taken off, so that only content ranks.

One prompt a window size, asked when the size first comes up; its rows are not windows and are not stored (CapCal,
arXiv:2604.10150).
"""

import math
from collections.abc import Set

from tasks.generate.generations import Engine
from tasks.pack.batches import pack
from tasks.pack.kv_budget import batch_budget
from tasks.rank.recipe import Recipe


class Priors:
    """Log-probabilities of the places of a content-free window, by its size."""

    def __init__(self, recipe: Recipe) -> None:
        self._recipe = recipe
        self._by_size: dict[int, tuple[float, ...]] = {}

    def of(self, num_passages: int) -> tuple[float, ...] | None:
        """What to take off; None where nothing is."""
        return self._by_size.get(num_passages)

    def is_missing(self, sizes: Set[int]) -> bool:
        """Whether the recipe calibrates, and one of the sizes was never asked about."""
        return self._recipe.calibrates and not sizes <= self._by_size.keys()

    def learn(self, engine: Engine, sizes: Set[int]) -> None:
        """Asks about the sizes that are not known yet.

        Raises:
            EngineError: see `Engine.generate`.
        """
        missing = sorted(sizes - self._by_size.keys())
        asking = self._recipe.main
        prompts = [asking.builder.build_content_free(f"content-free/{num}", num, asking.sizes) for num in missing]
        limits = engine.info.limits
        budget = batch_budget(limits, self._recipe.packing.headroom_share, one_token_answers=True, batch_loads=1)
        for batch in pack(prompts, limits, budget):
            generations, _ = engine.generate(batch)
            for prompt, generation in zip(batch.prompts, generations, strict=True):
                logprobs = generation.logprobs or ()
                floor = min((value for value in logprobs if value is not None), default=0.0)
                prior = tuple(floor if value is None or math.isnan(value) else value for value in logprobs)
                self._by_size[len(prompt.window.docs)] = prior
