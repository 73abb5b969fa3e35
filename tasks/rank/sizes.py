"""How much a run asks and writes, counted before its first batch.

Knows nothing of engines or databases.
"""

from tasks.keep.disk import RunSize
from tasks.rank.lists import count_depths
from tasks.rank.recipe import Recipe
from tasks.read.staging import StagedInput


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
