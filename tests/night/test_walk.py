"""The walk of one query from Parquet to latest_scores: how many files, lines, statements and openings it takes.

The budget says what a reader has to go through to follow it. Lower it whenever the walk gets shorter; never raise it.
"""

import inspect
import sys
import threading
from collections import Counter
from datetime import date
from pathlib import Path

import pytest

from tasks.nightly.night import run_night
from tasks.nightly.prepare import NightRequest, prepare_night
from tasks.settings import PackingSettings
from tasks.system import database
from tests.makers import ROOT, make_inputs, make_settings, value

BUDGET = {"files": 84, "lines": 13_940, "statements": 88, "openings": 10}
CHILD_FILES = {f"tasks/engine/{name}.py" for name in ("child", "messages", "step_stats", "vllm_requests")}


class Walk:
    """Counts what this process goes through: files of which a function is called, and what DuckDB is asked."""

    def __init__(self) -> None:
        self.files: set[str] = set()
        self.statements: Counter[str] = Counter()
        self.num_openings = 0
        self._patch = pytest.MonkeyPatch()

    def __enter__(self) -> "Walk":
        read_sql, append, connected = database.read_sql, database.Database.append, database._connected

        def counted_read(name: str) -> str:
            self.statements[name] += 1
            return read_sql(name)

        def counted_append(*arguments: object) -> None:
            self.statements[f"append {arguments[1]}"] += 1
            append(*arguments)

        def counted_connected(*arguments: object, **keywords: object) -> object:
            self.num_openings += 1
            return connected(*arguments, **keywords)

        self._patch.setattr(database, "read_sql", counted_read)
        self._patch.setattr(database.Database, "append", counted_append)
        self._patch.setattr(database, "_connected", counted_connected)
        threading.setprofile(self._look)
        sys.setprofile(self._look)
        return self

    def __exit__(self, *error: object) -> None:
        sys.setprofile(None)
        threading.setprofile(None)
        self._patch.undo()

    def _look(self, frame, event, _) -> None:
        code = frame.f_code
        is_function = code.co_flags & inspect.CO_OPTIMIZED and not code.co_name.startswith("<")
        if event == "call" and is_function and code.co_filename.startswith(f"{ROOT}/tasks/"):
            self.files.add(str(Path(code.co_filename).relative_to(ROOT)))


@pytest.mark.slow
def test_one_query_walks_no_further_than_its_budget(tmp_path, model_folder, fake_vllm):
    """A published night of one query with nine candidates, in a folder without a database, on the default driver."""
    settings = make_inputs(tmp_path / "in", [9]) | {"packing.driver": PackingSettings().driver}
    config = make_settings(tmp_path, model_folder, settings)
    with Walk() as walk:
        prepared = prepare_night(NightRequest(config=config, night=date(2026, 11, 29), publish=True))
        run_night(prepared)
    assert value(prepared, "select count(*) from latest_scores") == 9

    files = sorted(walk.files | CHILD_FILES)
    lines = {name: len((ROOT / name).read_text(encoding="utf-8").splitlines()) for name in files}
    found = {
        "files": len(files),
        "lines": sum(lines.values()),
        "statements": walk.statements.total(),
        "openings": walk.num_openings,
    }
    print(found, *(f"{lines[name]:5} {name}" for name in files), sep="\n")
    print(*(f"{times:5} {name}" for name, times in walk.statements.items()), sep="\n")
    assert {name: number for name, number in found.items() if number > BUDGET[name]} == {}
