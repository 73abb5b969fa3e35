"""One staged query: its texts, its list, how deep it is ranked, and the digests that say whether it changed.

Knows nothing of windows, engines or databases.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from tasks.inputs.staging import StagedInput
from tasks.inputs.token_store import text_digest
from tasks.prompt.passages import FieldPieces
from tasks.ranking.recipe import Recipe
from tasks.schedule.rankings import RankingInProgress
from tasks.store.identity import candidates_digest, documents_digest


@dataclass(frozen=True, slots=True)
class StagedQuery:
    """A query of the night by its number; what it has is read from the staged files each time."""

    staged: StagedInput
    recipe: Recipe
    index: int

    @property
    def query_id(self) -> str:
        """As the input names it."""
        return self.staged.query_ids[self.index]

    @property
    def text(self) -> str:
        """What is asked; empty where the input has none."""
        return self.staged.query_texts[self.index] or ""

    @property
    def status(self) -> str:
        """'ready', or why it cannot be ranked."""
        return self.staged.query_status[self.index]

    @property
    def num_candidates(self) -> int:
        """Of its list."""
        return self.staged.list_length(self.index)

    @property
    def documents(self) -> np.ndarray:
        """Its candidates as numbers of staged documents, in first-stage order."""
        return np.asarray(self.staged.doc_index[self._span])

    @property
    def doc_ids(self) -> pa.Array:
        """Its candidates' ids, in first-stage order."""
        return self.staged.doc_ids.take(pa.array(self.documents)).combine_chunks()

    @property
    def first_stage_scores(self) -> np.ndarray:
        """Its candidates' scores, in first-stage order."""
        return np.asarray(self.staged.first_stage_score[self._span])

    @property
    def passage_tokens(self) -> np.ndarray:
        """How long its candidates' passages are, 1D int64, fields included and nothing cut."""
        lengths: np.ndarray = np.asarray(self.staged.tokens.lengths)[self.documents].astype(np.int64)
        if self.staged.field_tokens is not None:
            lengths += self.staged.field_tokens.lengths[self._span]
        return lengths

    def fields_of(self, docs: Sequence[int]) -> FieldPieces | None:
        """What stands beside the passages of some of its candidates; None where passages have no fields."""
        fields = self.staged.field_tokens
        if fields is None:
            return None
        rows = np.asarray(docs, np.int64) + self._span.start
        return FieldPieces(fields.passages(rows), fields.lengths[rows])

    @property
    def depth(self) -> int:
        """How many candidates the model ranks."""
        better_is_higher = -self.first_stage_scores if self.staged.lower_score_is_better else self.first_stage_scores
        return self.recipe.schedule.truncate.depth_of(self.num_candidates, better_is_higher)

    @property
    def digests(self) -> dict[str, int]:
        """64 bits each over all that the query's ranking depends on: columns of `rankings`."""
        return {
            "query_digest": text_digest(self.staged.query_texts[self.index]),
            "candidates_digest": candidates_digest(self.doc_ids.to_pylist(), self._field_digests),
            "documents_digest": documents_digest(np.asarray(self.staged.tokens.digests)[self.documents]),
            "recipe_digest": self.recipe.digest,
        }

    def ranking_row(self, status: str, ranking: RankingInProgress | None = None) -> dict[str, Any]:
        """Its row of `rankings`; without a ranking it was not asked."""
        return self.digests | {
            "query_id": self.query_id,
            "num_candidates": self.num_candidates,
            "depth": ranking.depth if ranking else 0,
            "num_windows": ranking.num_windows if ranking else 0,
            "num_rounds": ranking.num_rounds if ranking else 0,
            "status": status,
        }

    @property
    def _field_digests(self) -> np.ndarray | None:
        fields = self.staged.field_tokens
        return None if fields is None else fields.digests[self._span]

    @property
    def _span(self) -> slice:
        return slice(int(self.staged.offsets[self.index]), int(self.staged.offsets[self.index + 1]))


def count_depths(staged: StagedInput, recipe: Recipe) -> Counter[int]:
    """How many of the queries that can be ranked are ranked how deep."""
    ready = (number for number, status in enumerate(staged.query_status) if status == "ready")
    return Counter(StagedQuery(staged, recipe, number).depth for number in ready)
