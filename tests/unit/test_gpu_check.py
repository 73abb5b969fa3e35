"""`make gpu-check`: every step runs, whatever became of the others, and says what it saw. Its steps need an engine."""

import json
import os
import subprocess
import sys
import time

import pytest

from tests.gpu_check import STEPS, Host, Skipped, Step, call, is_running, run_steps

HOST = Host(num_gpus=0, compiles=False, has_sample_model=False)


def fails(folder, timeout_s):
    raise RuntimeError("CUDA error:\n  no kernel image")


def lacks(folder, timeout_s):
    raise Skipped("no rank_llm")


def writes(folder, timeout_s):
    (folder / "seen").write_text("x")
    return str(folder)


def hangs(folder, timeout_s):
    return call([sys.executable, "-c", "import time; time.sleep(60)"], timeout_s)


def test_every_step_runs_and_is_told_in_a_line_of_json(capsys):
    steps = [
        Step("a", 5, fails),
        Step("b", 5, lacks),
        Step("c", 0.3, hangs),
        Step("d", 5, writes, lambda host: f"needs 2 GPUs, found {host.num_gpus}"),
        Step("e", 5, writes),
    ]

    results = run_steps(steps, HOST, budget_s=30)

    assert [(each.step, each.status) for each in results] == [
        ("a", "failed"),
        ("b", "skipped"),
        ("c", "failed"),
        ("d", "skipped"),
        ("e", "ok"),
    ]
    assert [each.seen for each in results[:4]] == [
        "RuntimeError: CUDA error: no kernel image",
        "no rank_llm",
        "not done after 0 s",
        "needs 2 GPUs, found 0",
    ]
    assert not os.path.exists(results[4].seen)  # its folder goes with it
    lines = capsys.readouterr().out.splitlines()
    assert [json.loads(line)["status"] for line in lines] == [each.status for each in results]


def test_no_step_outlives_the_budget():
    started = time.monotonic()

    results = run_steps([Step("a", 60, hangs), Step("b", 60, hangs)], HOST, budget_s=0.4)

    assert [each.status for each in results] == ["failed", "failed"]
    assert results[1].seen == "no time left"
    assert time.monotonic() - started < 50


def test_a_command_over_its_time_is_killed_with_what_it_started(tmp_path):
    pid_file = tmp_path / "pid"
    for timeout_s in (1, 30):  # a busy machine may take a second to start it
        with pytest.raises(subprocess.TimeoutExpired):
            call(["sh", "-c", f"sleep 60 & echo $! > {pid_file}.part; mv {pid_file}.part {pid_file}; wait"], timeout_s)
        if pid_file.exists():
            break

    pid = int(pid_file.read_text())
    deadline = time.monotonic() + 60
    while is_running(pid):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_command_that_fails_says_the_end_of_what_it_said():
    with pytest.raises(RuntimeError, match="exit code 3: engine: no such device"):
        call([sys.executable, "-c", "import sys; print('engine: no such device', file=sys.stderr); sys.exit(3)"], 20)


def test_the_steps_fit_into_the_time_and_tell_what_they_lack():
    by_name = {step.name: step for step in STEPS}

    assert by_name["tensor parallel 2"].lacks(Host(1, True, True)) == "needs 2 GPU(s), found 1"
    assert by_name["CUDA graphs"].lacks(HOST) == "needs 1 GPU(s), found 0"
    assert [step.name for step in STEPS if step.lacks(Host(2, True, True))] == []
    assert sum(step.timeout_s for step in STEPS) <= 720  # a step's limit is above its time: the budget of 600 s holds
