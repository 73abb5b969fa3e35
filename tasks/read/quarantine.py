"""The rows that a night sets aside, each with its reason.

Reasons: null query_id, null doc_id, query not found, document not found, null query text, empty query text, query
too long, null document text, empty document text, no candidates. Knows nothing of how they were found.
"""

import pyarrow as pa

from tasks.database import Database

QUARANTINE_SCHEMA = pa.schema([(name, pa.string()) for name in ("source", "query_id", "doc_id", "reason", "detail")])


def quarantine_documents(database: Database, reasons: dict[int, str]) -> None:
    """Sets aside the candidates whose document has no text; `reasons` by doc_index."""
    bad = pa.table(
        {"doc_index": pa.array(list(reasons), pa.int32()), "reason": pa.array(list(reasons.values()), pa.string())}
    )
    database.execute("stage/quarantine_documents", tables={"bad": bad})


def quarantined_rows(database: Database) -> pa.Table:
    """All rows set aside: `QUARANTINE_SCHEMA`."""
    return database.query("stage/list_quarantine").cast(QUARANTINE_SCHEMA)
