"""Distinguishes tables of the lake formats from plain Parquet: their logs, which are not read, say which files count.

If such a table were read as plain files, its deleted rows would come back. Knows nothing of what is in a file.
"""

import posixpath
import re
from collections.abc import Iterable

DUCKDB = "duckdb -c \"install {0}; load {0}; copy (from {0}_scan('{{path}}')) to '{{source}}.parquet'\""
SPARK = "spark.read.format('{0}').load('{{path}}').write.parquet(...)"

# What lies inside a table's folder, seen from there -> the format, and how to write its present rows as plain Parquet.
TRACES = {
    re.compile(r"(.*/)?_delta_log/.+"): ("a Delta table", DUCKDB.format("delta")),
    re.compile(r"(.*/)?metadata/([^/]+\.metadata\.json|version-hint\.text|snap-[^/]+\.avro)"): (
        "an Iceberg table",
        DUCKDB.format("iceberg"),
    ),
    re.compile(r"(.*/)?\.hoodie/.+|(.*/)?\.hoodie_partition_metadata(\.parquet)?"): (
        "a Hudi table",
        SPARK.format("hudi"),
    ),
    re.compile(r"(.*/)?_versions/[^/]+\.manifest|.+\.lance"): (
        "a Lance data set",
        "pyarrow.parquet.write_table(lance.dataset('{path}').to_table(), '{source}.parquet')",
    ),
    re.compile(r"(.*/)?ducklake-[^/]+\.parquet"): (
        "the files of a DuckLake table",
        "copy (from lake.{source}) to '{source}.parquet', in DuckDB with the lake attached",
    ),
    re.compile(r"(.*/)?snapshot/snapshot-\d+"): ("a Paimon table", SPARK.format("paimon")),
}
TABLE_FOLDERS = ("_delta_log", ".hoodie", "metadata", "_versions", "snapshot")


def table_format(names: Iterable[str]) -> tuple[str, str] | None:
    """The format and the advice, by the files seen from an input's folder; None for plain files."""
    for name in names:
        for trace, found in TRACES.items():
            if trace.fullmatch(name):
                return found
    return None


def may_be_inside_table(folder: str) -> list[str]:
    """The folders that may be the table in which a folder lies: itself, and those above partitions, buckets, `data`."""
    folders = [folder]
    while re.fullmatch(r".*=.*|data|bucket-\d+", posixpath.basename(folder)):
        folder = posixpath.dirname(folder)
        folders.append(folder)
    return folders
