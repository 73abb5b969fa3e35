"""One staged query's list: its documents, how deep it is ranked, and the digests that say whether it changed.

Knows nothing of windows, engines or databases.
"""

from collections import Counter

import numpy as np
import pyarrow as pa

from tasks.keep.fingerprints import candidates_digest, documents_digest
from tasks.rank.recipe import Recipe
from tasks.read.staging import StagedInput
from tasks.read.token_store import text_digest


def list_span(staged: StagedInput, query_index: int) -> slice:
    """The query's rows among the staged candidates."""
    return slice(int(staged.offsets[query_index]), int(staged.offsets[query_index + 1]))


def list_doc_ids(staged: StagedInput, query_index: int) -> pa.Array:
    """The ids of the query's documents, in first-stage order."""
    documents = pa.array(np.asarray(staged.doc_index[list_span(staged, query_index)]))
    return staged.doc_ids.take(documents).combine_chunks()


def list_depth(staged: StagedInput, recipe: Recipe, query_index: int) -> int:
    """How many candidates of the query the model ranks."""
    scores = np.asarray(staged.first_stage_score[list_span(staged, query_index)])
    return recipe.schedule.truncate.depth_of(staged.list_length(query_index), scores)


def count_depths(staged: StagedInput, recipe: Recipe) -> Counter[int]:
    """How many of the queries that can be ranked are ranked how deep."""
    ready = (number for number, status in enumerate(staged.query_status) if status == "ready")
    return Counter(list_depth(staged, recipe, number) for number in ready)


def list_digests(staged: StagedInput, recipe: Recipe, query_index: int) -> dict[str, int]:
    """64 bits each over all that the query's ranking depends on: columns of `rankings`."""
    documents = staged.doc_index[list_span(staged, query_index)]
    return {
        "query_digest": text_digest(staged.query_texts[query_index]),
        "candidates_digest": candidates_digest(list_doc_ids(staged, query_index).to_pylist()),
        "documents_digest": documents_digest(np.asarray(staged.tokens.digests)[documents]),
        "recipe_digest": recipe.digest,
    }
