"""The benches run: at toy size, for their shape and not for their figures."""

import json
import subprocess
import sys

import pytest

from tests.makers import ROOT, SAMPLE_MODEL


@pytest.mark.soak
@pytest.mark.parametrize(
    ("name", "arguments", "figure"),
    [
        ("host", "--queries 20 --candidates 20 --inputs {folder}", "ratio"),
        ("commits", "--queries 20 --candidates 20 --prompts 5 --at-once 2", "load_ms_a_batch"),
        ("outcomes", "--queries 3 --candidates 10 --copies 30", "largest_bytes_a_window"),
        ("makespan", "--queries 3 --shortest 10 --longest 30 --repeats 1 --modes first_token", "largest_ratio"),
    ],
)
def test_a_bench_prints_a_table_and_then_its_figures_as_one_line_of_json(tmp_path, name, arguments, figure):
    if not SAMPLE_MODEL.is_dir():
        pytest.skip("models/sample is not there: run make setup")
    command = [sys.executable, "-m", f"tests.benchmarks.{name}", *arguments.format(folder=tmp_path).split()]

    answer = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=300)

    assert answer.returncode == 0, answer.stderr[-2000:]
    *tables, last = answer.stdout.splitlines()
    told = json.loads(last)
    assert told["bench"] == name
    assert told[figure] > 0
    assert len(tables) > len(told["table"]) > 0


def test_a_bench_that_lacks_its_peer_says_so_and_is_no_failure():
    script = "import sys; sys.modules['rank_llm'] = None; from tests.benchmarks.peer import main; main()"

    answer = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=False, timeout=300
    )

    assert answer.returncode == 0, answer.stderr[-2000:]
    told, last = answer.stdout.splitlines()
    assert told.startswith("peer: skipped: ")
    assert "skipped" in json.loads(last)
