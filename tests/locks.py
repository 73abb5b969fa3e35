"""A database file that another process has open, as a forgotten analyst's shell does."""

import subprocess
import sys
from contextlib import contextmanager

HOLDER = """
import sys, duckdb
connection = duckdb.connect(sys.argv[1], read_only=sys.argv[2] == "reader")
print("open", flush=True)
sys.stdin.read()
"""


@contextmanager
def held(path, how="writer"):
    """The database open in another process until the end of the block, or until that process is killed.

    Args:
        path: the database.
        how: 'reader' or 'writer'.
    """
    words = [sys.executable, "-c", HOLDER, str(path), how]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        try:
            assert holder.stdout.readline() == b"open\n"
            yield holder
        finally:
            holder.kill()
