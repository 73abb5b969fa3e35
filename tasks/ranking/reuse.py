"""Which queries of a night are not asked: an earlier run ranked the same texts by the same recipe.

Its score rows stay where they are and are pointed to, the run that computed them by name, never a chain. For every
other query the reason is kept. Knows nothing of how a query is ranked.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

import pyarrow as pa

from tasks.inputs.staging import StagedInput
from tasks.ranking.query import StagedQuery
from tasks.ranking.recipe import Recipe
from tasks.store.runs import Run
from tasks.system.database import Database

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
class ReuseSource:
    """An earlier run whose rows may be this run's too."""

    run_id: str
    recipe_change: str  # why a query that it ranked by another recipe is ranked anew


@dataclass(frozen=True, slots=True)
class ReuseDecision:
    """How a query stands against the earlier run: it is reused, or there is a reason why not."""

    reuse_reason: str | None
    scores_run_id: str | None  # the run that computed the earlier run's rows

    @property
    def reused_run_id(self) -> str | None:
        """The run whose rows are the query's; None if it is ranked."""
        return self.scores_run_id if self.reuse_reason is None else None


def reuse_source(earlier: Run, model_identity: str, recipe_parts: Mapping[str, str]) -> ReuseSource:
    """An earlier run, and what of its recipe has changed since.

    Args:
        earlier: the run.
        model_identity: of tonight's run.
        recipe_parts: of tonight's run, digest by part.
    """
    if earlier.model_identity != model_identity:
        return ReuseSource(earlier.run_id, "model changed")
    theirs = json.loads(earlier.recipe or "{}")
    changed = [part for part in PARTS if part in theirs and theirs[part] != recipe_parts[part]]
    return ReuseSource(earlier.run_id, f"{(changed or ['settings'])[0]} changed")


def find_standings(
    database: Database, earlier: ReuseSource, staged: StagedInput, recipe: Recipe, queries: Iterable[int]
) -> dict[str, ReuseDecision]:
    """By query_id, for those of the staged queries that can be ranked."""
    rows = [
        {"query_id": query.query_id, "depth": query.depth} | query.digests
        for query in (StagedQuery(staged, recipe, number) for number in queries)
        if query.status == "ready"
    ]
    found = database.query(
        "reuse/match_queries",
        {"earlier_run_id": earlier.run_id, "recipe_change": earlier.recipe_change},
        {"incoming": pa.Table.from_pylist(rows, INCOMING)},
    )
    return {row["query_id"]: ReuseDecision(row["reuse_reason"], row["scores_run_id"]) for row in found.to_pylist()}
