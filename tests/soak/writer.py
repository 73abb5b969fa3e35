"""A night's ledger without a night: commits a made-up batch every 50 ms until stdin ends, then tells how long each took.

python -m tests.soak.writer FOLDER
"""

import json
import sys
import threading
import time
from pathlib import Path

from tasks.store.loader import Ledger, LoadPace
from tasks.store.night_store import Store
from tasks.store.spool import Spool
from tasks.system.database import DatabaseLimits
from tests.ledger_rows import RUN, make_tables

PERIOD_S = 0.05
SCORES_A_BATCH = 100


def database_of(folder: Path) -> Path:
    """Where the writer writes."""
    return folder / "var" / "test.duckdb"


def main() -> None:
    folder = Path(sys.argv[1])
    store = Store(database_of(folder), DatabaseLimits("1GB", 2, folder / "spill"))
    ledger = Ledger(store, Spool(folder / "spool", RUN), RUN, 0, LoadPace(every_s=1, max_share=1))
    stopped = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), stopped.set()), daemon=True).start()
    print("ready", flush=True)
    commits, due = [], time.monotonic()
    while not stopped.wait(max(0.0, due - time.monotonic())):
        batch_id = ledger.next_id()
        tables = make_tables(batch_id.batch_no, SCORES_A_BATCH)
        started = time.monotonic()
        ledger.commit(batch_id, tables)
        commits.append((started, time.monotonic() - started))
        due = max(due + PERIOD_S, time.monotonic())
    ledger.close()
    print(json.dumps(commits))


if __name__ == "__main__":
    main()
