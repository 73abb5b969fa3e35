"""Quality against judgments with ir-measures: trec_eval's definitions, over all judged queries.

nDCG@10 has a linear gain and its ideal list comes from all judgments; a judged query without results counts as 0; a
query without a relevant document is left out and counted. Knows nothing of how a run was made.
"""

from dataclasses import dataclass
from datetime import date

import ir_measures
import pandas as pd
import pyarrow as pa

from tasks.errors import InputError
from tasks.read.parquet_files import Column, ParquetInput, input_digest, open_input, read_batches
from tasks.read.staging import resolve_path
from tasks.settings import InputSettings

DEFAULT_MEASURES = ("nDCG@10",)


@dataclass(frozen=True, slots=True)
class Qrels:
    """Judgments: columns query_id, doc_id, relevance."""

    frame: pd.DataFrame
    digest: str

    def of_queries(self, query_ids: set[str]) -> "Qrels":
        """Only those of the given queries: a limited run is judged on what it ran."""
        return Qrels(self.frame[self.frame["query_id"].isin(query_ids)], self.digest)


def read_qrels(settings: InputSettings, night: date) -> Qrels:
    """Reads `[inputs] qrels`.

    Raises:
        InputError: unreadable, or one pair judged twice with different relevance.
    """
    assert settings.qrels is not None, "no [inputs] qrels"
    names = settings.columns.qrels
    columns = (
        Column("query_id", "id", names.get("query_id", "query_id")),
        Column("doc_id", "id", names.get("doc_id", "doc_id")),
        Column("relevance", "relevance", names.get("relevance", "relevance")),
    )
    opened = open_input(
        "qrels", resolve_path(settings.qrels), columns, partition=None, night=night, allow_empty=settings.allow_empty
    )
    batches = [batch for _, batch in read_batches(opened, [column.name for column in columns])]
    frame = pa.Table.from_batches(batches).to_pandas().drop_duplicates()
    _check_pairs(opened, frame)
    return Qrels(frame, input_digest([opened]))


def evaluate(qrels: Qrels, run: pd.DataFrame, measures: tuple[str, ...] = DEFAULT_MEASURES) -> pd.DataFrame:
    """Each measure's mean (query_id null) and values by query: columns measure, query_id, value, num_queries.

    Args:
        qrels: the judgments.
        run: query_id, doc_id, score; the score carries the order.
        measures: as ir-measures writes them.
    """
    relevant = qrels.frame.groupby("query_id")["relevance"].max()
    judged = set(relevant[relevant > 0].index)
    kept = qrels.frame[qrels.frame["query_id"].isin(judged)]
    parsed = [ir_measures.parse_measure(measure) for measure in measures]
    rows = [
        {"measure": str(metric.measure), "query_id": metric.query_id, "value": metric.value, "num_queries": 1}
        for metric in ir_measures.iter_calc(parsed, kept, run)
    ]
    by_query = pd.DataFrame(rows, columns=["measure", "query_id", "value", "num_queries"])
    means = [
        {
            "measure": str(measure),
            "query_id": None,
            "value": by_query.loc[by_query["measure"] == str(measure), "value"].sum() / max(len(judged), 1),
            "num_queries": len(judged),
        }
        for measure in parsed
    ]
    return pd.concat([pd.DataFrame(means), by_query], ignore_index=True)


def _check_pairs(opened: ParquetInput, frame: pd.DataFrame) -> None:
    repeated = frame[frame.duplicated(["query_id", "doc_id"], keep=False)]
    if len(repeated):
        first = repeated.iloc[0]
        raise InputError(
            f"qrels: {opened.files[0].path}: {first['query_id']!r}, {first['doc_id']!r} is judged in several ways "
            f"({len(repeated)} rows). Keep one row a pair."
        )
    if frame["relevance"].isna().any() or frame["query_id"].isna().any() or frame["doc_id"].isna().any():
        raise InputError(f"qrels: {opened.files[0].path}: a null among query_id, doc_id and relevance.")
