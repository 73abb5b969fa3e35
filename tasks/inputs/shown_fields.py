"""The fields of some queries' candidates, read again for people; streamed, only these are kept."""

from collections.abc import Collection, Iterator, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tasks.inputs.candidates import OrderBy
from tasks.inputs.documents import unroll
from tasks.inputs.parquet_files import read_batches
from tasks.inputs.staging import NightInput

Pair = tuple[str, str]  # query_id, doc_id
Values = list[str | None]


def find_fields_of(
    found: NightInput, wanted: Mapping[str, Collection[str]], order_by: OrderBy, *, lower_score_is_better: bool
) -> dict[Pair, Values]:
    """The texts of all fields of some candidates; of one that is listed twice those of its best place.

    Args:
        found: the night's input, with its fields.
        wanted: query_id -> doc_ids.
        order_by: see `[inputs]`.
        lower_score_is_better: see `[inputs]`.

    Raises:
        InputError: see `read_batches`.
    """
    best: dict[Pair, tuple[tuple[bool, float, bool, float], Values]] = {}
    for row in _candidates(found, wanted):
        pair = row["query_id"], row["doc_id"]
        if pair[1] in wanted[pair[0]]:
            rank, score = None if order_by == "score" else row["given_rank"], row["given_score"]
            place = (rank is None, rank or 0, score is None, (score or 0) * (1 if lower_score_is_better else -1))
            if pair not in best or place < best[pair][0]:
                best[pair] = place, row["fields"]
    documents = _documents(found, {doc_id for _, doc_id in best})
    return {
        pair: [mine or other for mine, other in zip(values, documents.get(pair[1], values), strict=True)]
        for pair, (_, values) in best.items()
    }


def _candidates(found: NightInput, wanted: Mapping[str, Collection[str]]) -> Iterator[dict[str, Any]]:
    query_ids = pa.array(sorted(wanted), pa.string())
    is_nested = "nested" in found.inputs
    opened = found.inputs["nested" if is_nested else "candidates"]
    flat = list(dict.fromkeys(["query_id", "doc_id", "rank", "score", *found.fields.of("candidates")]))
    for file, batch in read_batches(opened, ["query_id", "candidates"] if is_nested else flat):
        rows = batch.filter(pc.is_in(batch.column("query_id"), value_set=query_ids))
        if is_nested:
            yield from unroll(opened, file.path, rows, found.fields).to_pylist()
            continue
        fields = found.fields.rows("candidates", rows, rows.num_rows)
        names = ["query_id", "doc_id", "given_rank", "given_score", "fields"]
        columns = [rows.column(name) for name in ("query_id", "doc_id", "rank", "score")]
        yield from pa.RecordBatch.from_arrays([*columns, fields], names=names).to_pylist()


def _documents(found: NightInput, doc_ids: Collection[str]) -> dict[str, Values]:
    own = found.fields.of("documents")
    texts: dict[str, Values] = {}
    for _, batch in read_batches(found.inputs["documents"], ["doc_id", *own]) if own else ():
        rows = batch.filter(pc.is_in(batch.column("doc_id"), value_set=pa.array(sorted(doc_ids), pa.string())))
        fields = found.fields.rows("documents", rows, rows.num_rows)
        texts |= dict(zip(rows.column("doc_id").to_pylist(), fields.to_pylist(), strict=True))
        if len(texts) == len(doc_ids):
            break
    return texts
