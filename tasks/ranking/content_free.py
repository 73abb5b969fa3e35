"""What the letters of a window get from a prompt that says nothing: taken off, so that only content ranks.

One prompt a window size, asked when the size first comes up; its rows are not windows and are not stored (contextual
calibration, arXiv:2102.09690; CapCal, arXiv:2604.10150, asks one for each query).
"""

import logging

from tasks.engine.generations import Engine, ask_alone
from tasks.ranking.recipe import Recipe
from tasks.schedule.windows import Question, Window

logger = logging.getLogger(__name__)


class Priors:
    """Log-probabilities of the places of a content-free window, by its question and size."""

    def __init__(self, recipe: Recipe) -> None:
        self._recipe = recipe
        self._found: dict[tuple[Question, int], tuple[float, ...] | None] = {}  # None: asked, and no use
        self.missing: set[tuple[Question, int]] = set()

    def expect(self, window: Window) -> None:
        """Notes what a window that will be asked needs."""
        kind = (window.question, len(window.docs))
        if self._recipe.askings[window.question].calibrates and kind not in self._found:
            self.missing.add(kind)

    def of(self, window: Window) -> tuple[float, ...] | None:
        """What to take off; None where nothing is."""
        return self._found.get((window.question, len(window.docs)))

    def learn(self, engine: Engine) -> None:
        """Asks about what is missing.

        Raises:
            EngineError: see `Engine.generate`.
        """
        prompts = []
        for question, num in sorted(self.missing):
            asking = self._recipe.askings[question]
            prompts.append(
                asking.builder.build_content_free(f"content-free/{num}", asking.mode.window(range(num)), asking.sizes)
            )
        for prompt, generation in ask_alone(engine, prompts, self._recipe.packing.headroom_share):
            question, num_passages = prompt.window.question, len(prompt.window.docs)
            prior = self._recipe.askings[question].mode.prior(generation)
            if prior is None:
                logger.warning(
                    "windows of %d passages are not calibrated: the content-free prompt got %s, expected finite "
                    "log-probabilities. The model may overflow in its precision: try another [engine] dtype.",
                    num_passages,
                    generation.logprobs,
                )
            self._found[question, num_passages] = prior
        self.missing = set()
