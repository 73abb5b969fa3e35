"""The candidates of a file, as numbers until they are ranked."""

from array import array

import numpy as np
import pyarrow as pa

from tasks.system.errors import InputError

CANDIDATES = pa.schema(
    [("query_id", pa.string()), ("doc_id", pa.string()), ("rank", pa.int64()), ("score", pa.float64())]
)


class CandidateRows:
    """Candidate rows in file order, as numbers: ids are kept once."""

    def __init__(self) -> None:
        self.query_numbers: dict[str, int] = {}
        self.doc_numbers: dict[str, int] = {}
        self._queries = array("q")
        self._docs = array("q")
        self._ranks = array("q")
        self._scores = array("d")
        self._lines = array("q")

    def add(self, query_id: str, doc_id: str, rank: int, score: float, line: int = 0) -> None:
        """One row; `line` is where it stands, for `check_once`."""
        self._queries.append(self.query_numbers.setdefault(query_id, len(self.query_numbers)))
        self._docs.append(self.doc_numbers.setdefault(doc_id, len(self.doc_numbers)))
        self._ranks.append(rank)
        self._scores.append(score)
        self._lines.append(line)

    def check_once(self, path: str) -> None:
        """Raises InputError at the first row that lists a document of its query again."""
        pair = np.array(self._queries) * max(len(self.doc_numbers), 1) + np.array(self._docs)
        order = np.argsort(pair, kind="stable")
        again = order[1:][pair[order][1:] == pair[order][:-1]]
        if len(again):
            row = int(again.min())
            query, doc = list(self.query_numbers)[self._queries[row]], list(self.doc_numbers)[self._docs[row]]
            raise InputError(
                f"{path}, line {self._lines[row]}: query {query!r} lists document {doc!r} again "
                f"({len(again)} such rows). Keep one row a pair."
            )

    def ranked(self) -> pa.Table:
        """The rows of CANDIDATES: queries in the order in which they came, each best first."""
        queries, scores = np.array(self._queries), np.array(self._scores)
        lowest, highest = np.full(len(self.query_numbers), np.inf), np.full(len(self.query_numbers), -np.inf)
        np.minimum.at(lowest, queries, scores)
        np.maximum.at(highest, queries, scores)
        says_nothing = (lowest == highest)[queries]
        order = np.lexsort((np.where(says_nothing, np.array(self._ranks), -scores), queries))  # stable: file order
        queries = queries[order]
        starts = np.searchsorted(queries, np.arange(len(self.query_numbers)))
        columns = {
            "query_id": pa.array(list(self.query_numbers), pa.string()).take(queries),
            "doc_id": pa.array(list(self.doc_numbers), pa.string()).take(np.array(self._docs)[order]),
            "rank": np.arange(len(queries)) - starts[queries] + 1,
            "score": scores[order],
        }
        return pa.table(columns, schema=CANDIDATES)
