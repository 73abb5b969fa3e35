"""Which queries of a night are not asked: an earlier run ranked the same texts by the same recipe.

Its score rows stay where they are and are pointed to, the run that computed them by name, never a chain. For every
other query the reason is kept. Knows nothing of how a query is ranked.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import pyarrow as pa

from tasks.database import Database
from tasks.rank.lists import list_depth, list_digests
from tasks.rank.recipe import Recipe
from tasks.read.staging import StagedInput

ReuseFrom = Literal["published", "repeated", "nothing"]  # the last published night, the run that is repeated, no run

PARTS = ("model", "prompt", "settings")  # of a recipe, in the order in which a change is told
INCOMING = pa.schema(
    [
        ("query_id", pa.string()),
        ("depth", pa.int32()),
        ("query_digest", pa.uint64()),
        ("candidates_digest", pa.uint64()),
        ("documents_digest", pa.uint64()),
        ("recipe_digest", pa.uint64()),
    ]
)


@dataclass(frozen=True, slots=True)
class EarlierRun:
    """The run whose rows may be this run's too."""

    run_id: str
    recipe_change: str  # why a query of it that was ranked by another recipe is ranked anew


@dataclass(frozen=True, slots=True)
class Standing:
    """How a query stands against the earlier run: it is reused, or there is a reason why not."""

    reuse_reason: str | None
    scores_run_id: str | None  # the run that computed the earlier run's rows

    @property
    def reused_run_id(self) -> str | None:
        """The run whose rows are the query's; None if it is ranked."""
        return self.scores_run_id if self.reuse_reason is None else None


def earlier_run(row: Mapping[str, Any], model_identity: str, recipe: Mapping[str, str]) -> EarlierRun:
    """What of the recipe is another since that run.

    Args:
        row: of `runs`: run_id, model_identity, recipe.
        model_identity: of this run.
        recipe: of this run, digest by part.
    """
    if row["model_identity"] != model_identity:
        return EarlierRun(row["run_id"], "model changed")
    theirs = json.loads(row.get("recipe") or "{}")
    changed = [part for part in PARTS if part in theirs and theirs[part] != recipe[part]]
    return EarlierRun(row["run_id"], f"{(changed or ['settings'])[0]} changed")


def find_standings(
    database: Database, earlier: EarlierRun, staged: StagedInput, recipe: Recipe, queries: Iterable[int]
) -> dict[str, Standing]:
    """By query_id, for those of the staged queries that can be ranked."""
    rows = [
        {"query_id": staged.query_ids[each], "depth": list_depth(staged, recipe, each)}
        | list_digests(staged, recipe, each)
        for each in queries
        if staged.query_status[each] == "ready"
    ]
    found = database.query(
        "reuse/match_queries",
        {"earlier_run_id": earlier.run_id, "recipe_change": earlier.recipe_change},
        {"incoming": pa.Table.from_pylist(rows, INCOMING)},
    )
    return {row["query_id"]: Standing(row["reuse_reason"], row["scores_run_id"]) for row in found.to_pylist()}
