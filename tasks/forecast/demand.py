"""How much a run asks and writes, counted before its first batch.

Windows depend on what the model says, so they are counted with a comparator that agrees with the first stage to a given
degree; prompts are added up, not built. Knows nothing of engines or databases.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from tasks.inputs.staging import StagedInput
from tasks.prompt.sizes import fair_lengths
from tasks.ranking.query import StagedQuery, count_depths
from tasks.ranking.recipe import Recipe
from tasks.schedule.rankings import RankingInProgress
from tasks.schedule.seeds import Seed
from tasks.schedule.windows import Outcome, Window
from tasks.system.disk import RunSize

TYPICAL_AGREEMENT = 0.5  # correlation with the first stage's order: that of the simulated comparator (docs/log.md)
AGREEMENTS = (TYPICAL_AGREEMENT, 0.0, 1.0)


@dataclass(frozen=True, slots=True)
class Demand:
    """What some queries ask of the engine, window by window: parallel 1D arrays."""

    query: np.ndarray  # int32, which of the queries that were counted, from 0
    prompt_tokens: np.ndarray  # int32
    output_tokens: np.ndarray  # int32, at most
    is_scored: np.ndarray  # bool: the log-probabilities of prompt tokens are asked for
    num_counted: int  # queries
    num_queries: int  # that they stand for

    @property
    def scale(self) -> float:
        """How many queries each counted one stands for."""
        return self.num_queries / max(1, self.num_counted)


def num_windows_of(recipe: Recipe, staged: StagedInput) -> int:
    """The most windows that the staged queries can ask, none of them twice."""
    depths = count_depths(staged, recipe)
    return sum(recipe.schedule.strategy.bound(depth).num_windows * count for depth, count in depths.items())


def size_of(recipe: Recipe, staged: StagedInput) -> RunSize:
    """What decides how much the run writes."""
    depths = count_depths(staged, recipe)
    bounds = [recipe.schedule.bound(depth).times(count, also_rounds=False) for depth, count in depths.items()]
    return RunSize(
        num_queries=staged.num_queries,
        num_candidates=staged.num_candidates,
        num_windows=sum(bound.num_windows for bound in bounds),
        num_slots=sum(bound.num_slots for bound in bounds),
        id_bytes=staged.doc_ids.nbytes / max(1, len(staged.doc_ids)),
    )


def draw_queries(queries: Sequence[int], most: int) -> list[int]:
    """At most so many of the queries, always the same ones."""
    return list(queries) if len(queries) <= most else sorted(Seed("demand").random().sample(queries, most))


def count_demand(
    staged: StagedInput, recipe: Recipe, queries: Sequence[int], num_queries: int, agreement: float
) -> Demand:
    """What the queries ask if the model agrees with the first stage to the given degree.

    Args:
        staged: where they are.
        recipe: how they are ranked.
        queries: those to count; those that cannot be ranked ask nothing.
        num_queries: how many they stand for.
        agreement: correlation of the model's order with the first stage's: 0 none, 1 the same.
    """
    rows = [
        (number, *window)
        for number, query_index in enumerate(queries)
        if staged.query_status[query_index] == "ready"
        for window in _windows_of(staged, recipe, query_index, agreement)
    ]
    query, prompt_tokens, output_tokens, is_scored = zip(*rows, strict=True) if rows else ((), (), (), ())
    return Demand(
        query=np.array(query, np.int32),
        prompt_tokens=np.array(prompt_tokens, np.int32),
        output_tokens=np.array(output_tokens, np.int32),
        is_scored=np.array(is_scored, bool),
        num_counted=len(queries),
        num_queries=num_queries,
    )


def _windows_of(staged: StagedInput, recipe: Recipe, query_index: int, agreement: float) -> list[tuple[int, int, bool]]:
    """Prompt tokens, output tokens at most, and whether the prompt is scored, of each window of a query."""
    of = StagedQuery(staged, recipe, query_index)
    ranking = RankingInProgress(query_index, of.num_candidates, recipe.schedule, depth=of.depth, query_id=of.query_id)
    lengths = of.passage_tokens
    qualities = _qualities(len(lengths), agreement, Seed("agreement").of(of.query_id))
    query = of.text
    asked = []
    waiting = list(ranking.open_windows())
    while waiting:
        opened = []
        for key, window in waiting:
            asked.append(_needs(recipe, window, query, lengths))
            opened += ranking.answer(key, _outcome(window, qualities))
        waiting = opened
    return asked


def _needs(recipe: Recipe, window: Window, query: str, lengths: np.ndarray) -> tuple[int, int, bool]:
    asking = recipe.askings[window.question]
    sizes = asking.sizes
    frame = asking.builder.frame_tokens(len(window.docs), window.num_asked, query)
    passages = np.minimum(lengths[list(window.docs)], sizes.max_passage_tokens)
    fitting = fair_lengths(passages, sizes.max_prompt_tokens - frame, sizes.min_passage_tokens)
    total = frame + int((passages if fitting is None else fitting).sum())
    return total, asking.mode.form(window).max_tokens, asking.mode.scores_query


def _qualities(num_candidates: int, agreement: float, seed: Seed) -> list[float]:
    """What the comparator sees in each candidate: the first stage's place as a normal score, and noise."""
    normal, rng = NormalDist(), seed.random()
    noise = (1 - agreement**2) ** 0.5
    scores = [-normal.inv_cdf((place + 0.5) / num_candidates) for place in range(num_candidates)]
    return [agreement * score + noise * rng.gauss(0, 1) for score in scores]


def _outcome(window: Window, qualities: Sequence[float]) -> Outcome:
    order = tuple(sorted(window.docs, key=lambda doc: (-qualities[doc], doc)))
    return Outcome(order, len(order), tuple(qualities[doc] - 10.0 for doc in order))  # as log-probabilities, below 0
