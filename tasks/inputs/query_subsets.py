"""Loads the queries into the staging database, one row an id, each with the reason why it cannot be ranked.

Knows nothing of candidates and documents.
"""

from collections.abc import Callable, Sequence
from functools import partial
from hashlib import blake2b

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tasks.inputs.parquet_files import ParquetInput, read_batches
from tasks.inputs.parquet_schema import Column
from tasks.system.database import Database
from tasks.system.errors import InputError

CountTokens = Callable[[Sequence[str]], np.ndarray]  # texts -> int32 tokens of each as it stands in a prompt; 0: blank

IsOwn = Callable[[pa.Array], pa.Array]  # query ids -> whether each is to be staged: a shard's are, or a sample's


def query_columns(names: dict[str, str]) -> tuple[Column, ...]:
    """The columns of `queries`, under their names in the files."""
    return (
        Column("query_id", "id", names.get("query_id", "query_id")),
        Column("text", "text", names.get("text", "text")),
    )


def stage_queries(
    database: Database, opened: ParquetInput, count_tokens: CountTokens, is_own: IsOwn | None = None
) -> None:
    """Fills `query_rows(query_id, text, is_undecodable, num_tokens)`.

    Raises:
        InputError: a null query_id, or one id with two texts.
    """
    for file, batch in read_batches(opened, ["query_id", "text"], mark_undecodable=True):
        check_no_null_ids(opened, file.path, file.num_rows, batch.column("query_id"))
        rows = own_rows(pa.Table.from_batches([batch]), is_own)
        texts = [text or "" for text in rows.column("text").to_pylist()]
        lengths = pa.array(count_tokens(texts), pa.int32())
        database.append("query_rows", rows.append_column("num_tokens", lengths))
    check_one_text_each(database, opened)


def own_rows(rows: pa.Table, is_own: IsOwn | None) -> pa.Table:
    """The rows of the queries that are staged."""
    return rows if is_own is None else rows.filter(is_own(rows.column("query_id").combine_chunks()))


def where_ids(is_wanted: Callable[[str | None], bool], query_ids: pa.Array) -> pa.Array:
    """Which ids are wanted, bool; each different one is looked at once."""
    encoded = query_ids.dictionary_encode()
    wanted = [is_wanted(query_id) for query_id in encoded.dictionary.to_pylist()]
    return pc.fill_null(pa.array(wanted, pa.bool_()).take(encoded.indices), is_wanted(None))


def sample_of_queries(share: float, seed: str) -> IsOwn:
    """A share of the queries, each drawn by the hash of its id; rows without an id are not drawn."""

    def is_drawn(query_id: str | None) -> bool:
        return query_id is not None and id_hash(query_id, seed) < share * 2.0**64

    return partial(where_ids, is_drawn)


def id_hash(query_id: str, seed: str = "") -> int:
    """64 bits of BLAKE2b, the same on every machine: never Python's own hash."""
    digest = blake2b(query_id.encode("utf-8", "surrogatepass"), digest_size=8, key=seed.encode())
    return int.from_bytes(digest.digest(), "little")


def check_no_null_ids(opened: ParquetInput, path: str, num_rows: int, ids: pa.Array) -> None:
    """Without its id no result could be joined back.

    Raises:
        InputError: naming file, column and rows.
    """
    if ids.null_count:
        name = opened.columns[0].file_name
        raise InputError(
            f"{opened.source}: {path}: column {name!r} is null in {ids.null_count} of {num_rows} rows; "
            "every row needs its id. Drop or repair them upstream."
        )


def check_one_text_each(database: Database, opened: ParquetInput) -> None:
    """Raises InputError if one query_id has two texts."""
    clashes = database.query("staging/find_query_clashes").to_pylist()
    if clashes:
        first = clashes[0]
        raise InputError(
            f"{opened.source}: {opened.files[0].path}: query_id {first['query_id']!r} has {first['num_texts']} "
            f"different texts in {first['num_rows']} rows ({len(clashes)} such ids). Keep one row an id."
        )
