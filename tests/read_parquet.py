"""Reads Parquet files as a night does, and says of each what came of it and the peak memory so far, as JSON lines.

python -m tests.read_parquet FILE ...
"""

import json
import re
import sys
from datetime import date
from pathlib import Path

from tasks.inputs.locations import Wanted
from tasks.inputs.parquet_files import open_input, read_batches
from tasks.inputs.parquet_schema import Column
from tasks.system.errors import InputError

COLUMNS = (Column("doc_id", "id", "doc_id"), Column("text", "text", "text"))


def main() -> None:
    for path in sys.argv[1:]:
        rows, longest = 0, 0
        try:
            opened = open_input("documents", path, COLUMNS, Wanted(date(2026, 1, 1)), allow_empty=True)
            for _, batch in read_batches(opened, ["doc_id", "text"]):
                rows, longest = rows + batch.num_rows, max(longest, batch.num_rows)
            told = "read"
        except InputError as error:
            told = str(error)
        status = Path("/proc/self/status").read_text(encoding="utf-8")  # ru_maxrss begins with the parent's
        peak_mb = int(re.search(r"VmHWM:\s+(\d+)", status)[1]) >> 10
        print(json.dumps({"told": told, "rows": rows, "longest": longest, "peak_mb": peak_mb}), flush=True)


if __name__ == "__main__":
    main()
