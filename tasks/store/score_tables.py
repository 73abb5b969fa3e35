"""The scores of a run as tables for other tools: whole queries at a time, in a strict order."""

from collections.abc import Callable, Iterable, Iterator, Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tasks.store.tables import SCHEMAS
from tasks.system.errors import StoreError

Query = Callable[[str, Mapping[str, object]], pa.Table]  # name of a SQL file, its parameters -> its rows
QUERIES_A_READ = 2_000  # bounds memory, and the time for which a writer waits
EXPORT_SCHEMA = SCHEMAS["scores"].remove(SCHEMAS["scores"].get_field_index("run_id"))


class Tally:
    """Counts what an export streams."""

    def __init__(self) -> None:
        self.num_queries = 0
        self.num_rows = 0

    def counted(self, tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
        """The same tables, counted as they pass."""
        for table in tables:
            self.num_queries += len(table.column("query_id").unique())
            self.num_rows += table.num_rows
            yield table


def score_tables(query: Query, run_id: str, top_k: int | None = None) -> Iterator[pa.Table]:
    """The run's rows by query_id and rank, whole queries at a time, so that others get their turn at the database.

    Raises:
        StoreError: the rows have no strict order.
    """
    listed = query("evaluation/list_queries", {"run_id": run_id})
    queries = sorted(listed.column("query_id").to_pylist())
    for start in range(0, len(queries), QUERIES_A_READ):
        span = queries[start : start + QUERIES_A_READ]
        names = {"run_id": run_id, "first_query_id": span[0], "last_query_id": span[-1], "top_k": top_k}
        table = query("publication/list_scores", names).cast(EXPORT_SCHEMA)
        _check_order(run_id, table)
        yield table


def _check_order(run_id: str, table: pa.Table) -> None:
    """A run that failed its checks may have rows that another tool would read in another order."""
    if table.num_rows == 0:
        return
    counts = table.group_by(["query_id", "doc_id"]).aggregate([([], "count_all")])
    repeated = counts.filter(pc.greater(counts.column("count_all"), 1)).to_pylist()
    queries = table.column("query_id").to_numpy()
    scores = table.column("score").to_numpy()
    wrong = np.flatnonzero((queries[1:] == queries[:-1]) & ~(scores[1:] < scores[:-1]))
    if repeated or len(wrong):
        query = repeated[0]["query_id"] if repeated else queries[wrong[0]]
        what = f"lists {repeated[0]['doc_id']!r} twice" if repeated else "has scores that do not fall with the rank"
        raise StoreError(f"run {run_id}: query {query!r} {what}. See check_results; compute it again with --rerun.")
