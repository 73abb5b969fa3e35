"""Nights whose Prefect goes away in the middle: an artifact, the worker, the server. The last test leaves the server dead."""

import ast
import itertools
import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import contextmanager
from datetime import UTC, date, datetime
from uuid import uuid4

import pytest
from prefect.client.schemas.objects import FlowRun
from prefect.settings import PREFECT_API_URL, temporary_settings

from flows import messenger, shard
from flows.messenger import Messenger, PrefectGone, ProgressArtifact, ends_without_prefect
from flows.shard import ShardRuns
from tasks.nightly.night_progress import Progress
from tasks.store.shard_folder import ShardFolder, ShardRecord
from tasks.system.errors import CheckFailed
from tests.clock import Clock
from tests.flow.stack import NightFolder, engine_and_process_are_gone, nobody_listens, process_of, served, wait_for
from tests.makers import FAKE_VLLM, ROOT
from tests.processes import engines_of
from tests.web_hook import ALERT, Hook

LISTS = [12, 9, 9, 9, 5]
ROWS = "select query_id, doc_id, rank, score, first_stage_rank from latest_scores order by all"
GONE = "Prefect was not notified"
END_S = 150.0  # what a dead server may cost a night, behind its last batch: a minute, on a machine with other work some more


@pytest.fixture(scope="module")
def stack(tmp_path_factory):
    with served(tmp_path_factory) as made:
        yield made


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory, model_folder):
    """The rows of a night that nobody disturbs."""
    one = NightFolder(tmp_path_factory.mktemp("undisturbed") / "night", model_folder, LISTS, **SMALL)
    ended = one.run("--publish")
    assert ended.returncode == 0, ended.stderr
    return one.rows(ROWS), one.num_asked


SMALL = {"packing__batch_loads": 1, "packing__cohort_queries": 2}  # more batches, so that there is a third of them


@pytest.fixture
def night(tmp_path, model_folder):
    def make(name="night", **settings):
        one = NightFolder(tmp_path / name, model_folder, LISTS, **SMALL | settings)
        one.tell(batch_s=1.0)
        return one

    return make


def wait_for_share(nights, share, num_asked):
    wait_for(lambda: all(one.num_asked >= share * num_asked for one in nights))


def longest_pause(one, since):
    """Seconds between two batches of the engine."""
    at = [row["submitted_at"] for row in one.rows("select submitted_at from batches order by submitted_at")]
    later = [moment for moment in at if moment > since]
    assert len(later) >= 3
    return max((after - before).total_seconds() for before, after in itertools.pairwise(later))


def stop_engines_at(processes, share, num_asked):
    """Stops each night's engine when it has asked so much: on a busy machine they begin far apart."""
    engines = {}

    def all_stopped():
        for one, find in processes.items():
            if one not in engines and one.num_asked >= share * num_asked:
                (engines[one],) = engines_of(find())
                os.kill(engines[one], signal.SIGSTOP)
        return len(engines) == len(processes)

    wait_for(all_stopped)
    return engines.values()


def test_a_night_whose_progress_artifact_is_deleted_and_whose_server_hangs_is_published(stack, night, undisturbed):
    """The server takes what it is asked and does not answer, until it wakes up again."""
    rows, num_asked = undisturbed
    one = night()
    flow_run = stack.start(one)
    wait_for_share([one], 1 / 3, num_asked)
    wait_for(lambda: artifacts(stack, flow_run))
    (progress,) = artifacts(stack, flow_run)

    stack.ask(f"/artifacts/{progress['id']}", "DELETE")
    os.kill(stack.server.pid, signal.SIGSTOP)
    try:
        stopped_at = datetime.now(UTC)
        wait_for_share([one], 5 / 6, num_asked)
    finally:
        os.kill(stack.server.pid, signal.SIGCONT)

    assert stack.wait(flow_run)["type"] == "COMPLETED", stack.logs(flow_run)
    assert one.rows("select status from runs") == [{"status": "published"}]
    assert one.rows(ROWS) == rows
    assert longest_pause(one, stopped_at) < 45.0
    warnings = [message for level, message in stack.logs(flow_run) if "Could not send" in message and level == 30]
    assert len(warnings) == 1
    assert {each["key"] for each in artifacts(stack, flow_run)} >= {"run-summary", "run-report"}


def artifacts(stack, flow_run):
    return stack.ask("/artifacts/filter", artifacts={"flow_run_id": {"any_": [flow_run]}})


@pytest.mark.parametrize("number", [pytest.param(signal.SIGKILL, marks=pytest.mark.soak), signal.SIGTERM])
def test_a_night_outlives_its_worker(stack, night, undisturbed, number):
    """kill -9 of the worker alone, and a worker that is told to stop, which kills what it started."""
    rows, num_asked = undisturbed
    one = night()
    flow_run = stack.start(one)
    (engine,) = stop_engines_at({one: lambda: process_of(flow_run)}, 1 / 2, num_asked)

    while stack.worker.poll() is None:
        stack.worker.send_signal(number)
        time.sleep(1.0)

    assert one.num_asked < num_asked  # it is in the middle
    os.kill(engine, signal.SIGCONT)
    try:
        assert stack.wait(flow_run)["type"] == "COMPLETED", stack.logs(flow_run)
        assert one.rows("select status from runs") == [{"status": "published"}]
        assert one.rows(ROWS) == rows
        wait_for(lambda: process_of(flow_run) is None)
    finally:
        stack.start_worker()


def test_the_server_alerts_of_a_night_that_is_late_or_cancelled(stack, night, tmp_path):
    """Where no worker is there, nobody else can."""
    hook = Hook()
    one = night(night__alert_url=hook.url)
    asked = tmp_path / "automations.yaml"
    asked.write_text((ROOT / "configs" / "prefect_automations.yaml").read_text().replace("within: 1800", "within: 10"))
    code = "import sys; from pathlib import Path; from flows.automations import create_automations as create; "
    arguments = [sys.executable, "-c", f"{code}print(create(Path(sys.argv[1]), Path(sys.argv[2])))", one.config, asked]
    for _ in range(2):  # the second time it replaces them
        made = subprocess.run(arguments, cwd=ROOT, env=stack.env, capture_output=True, text=True, check=False)
        assert made.returncode == 0, made.stderr
    created = [each["name"] for each in stack.ask("/automations/filter")]
    assert sorted(created) == sorted(ast.literal_eval(made.stdout))
    stack.ask("/work_pools/gpu", "PATCH", is_paused=True)
    try:
        late = stack.start(one, night="2026-11-28")
        wait_for(lambda: hook.of(late))
        stack.ask(
            f"/flow_runs/{late}/set_state", state={"type": "CANCELLED", "name": "Cancelled", "message": "by hand"}
        )
        wait_for(lambda: len(hook.of(late)) == 2)
    finally:
        stack.ask("/work_pools/gpu", "PATCH", is_paused=False)

    told = hook.of(late)
    assert [(alert["kind"], alert["night"]) for alert in told] == [("late", "2026-11-28"), ("cancelled", "2026-11-28")]
    assert told[1]["message"] == "by hand"
    assert all(alert.keys() == ALERT for alert in told)


def test_nights_whose_server_is_killed_go_on_to_their_end_and_say_that_nobody_was_told(stack, night, undisturbed):
    """A deployment's night, one whose checks fail, and a command; the server never comes back."""
    rows, num_asked = undisturbed
    hook = Hook()
    published, degraded, command = (
        night("published"),
        night("degraded", prompt__max_passage_tokens=8, checks__max_truncated_share=0.0, night__alert_url=hook.url),
        night("command"),
    )
    runs = [stack.start(published), stack.start(degraded)]
    started = subprocess.Popen(
        [sys.executable, "-m", "flows.cli", "run", str(command.config), "--publish"],
        cwd=ROOT, env=stack.env | command.env | {"PYTHONPATH": str(FAKE_VLLM)}, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    nights = {
        published: lambda: process_of(runs[0]),
        degraded: lambda: process_of(runs[1]),
        command: lambda: started.pid,
    }
    engines = stop_engines_at(nights, 1 / 3, num_asked)
    processes = [find() for find in nights.values()]

    os.kill(stack.server.pid, signal.SIGKILL)

    killed_at = datetime.now(UTC)
    for engine in engines:
        os.kill(engine, signal.SIGCONT)
    assert all(one.num_asked < num_asked for one in nights)
    wait_for(lambda: all(one.num_asked == num_asked for one in nights))
    asked_at = time.monotonic()
    stdout, stderr = started.communicate(timeout=END_S)
    wait_for(lambda: all(engine_and_process_are_gone(process) for process in processes[:2]), END_S)
    print(f"{time.monotonic() - asked_at:.0f} s from the last batch to the last process's end")
    assert started.returncode == 0, stderr
    assert stderr.splitlines()[-1] == f"packrank: {GONE} of the outcome: its server does not answer."
    assert "Traceback" not in stderr
    assert "nDCG" not in stdout
    for one in (published, command):
        assert one.rows("select status from runs") == [{"status": "published"}]
        assert one.rows(ROWS) == rows
        assert one.num_asked == num_asked
    assert max(longest_pause(one, killed_at) for one in nights) < 45.0  # 60 s and more where the loop waits for Prefect
    assert degraded.rows("select status, is_degraded from runs") == [{"status": "complete", "is_degraded": True}]
    (alert,) = hook.alerts
    assert (alert["kind"], alert["flow_run_id"]) == ("checks", runs[1])
    told = [(stack.state / "prefect" / "flow-runs" / f"{run}.log").read_text() for run in runs]
    assert all(text.count(GONE) == 1 and text.count("Could not send") == 1 for text in told)
    assert not any("Traceback" in text.split(GONE)[1] for text in told)


def test_a_command_whose_server_is_not_there_runs_without_it(night, undisturbed):
    rows, _ = undisturbed
    one = night()
    one.tell()
    with nobody_listens() as port:
        nowhere = {"PREFECT_API_URL": f"http://127.0.0.1:{port}/api", "PYTHONPATH": str(FAKE_VLLM)}
        ended = subprocess.run(
            [sys.executable, "-m", "flows.cli", "run", str(one.config), "--publish"],
            cwd=ROOT, env=os.environ | one.env | nowhere, capture_output=True, text=True, timeout=600, check=False,
        )  # fmt: skip

    assert ended.returncode == 0, ended.stderr
    assert ended.stderr.count("does not answer. The night runs without Prefect.") == 1
    assert "Traceback" not in ended.stderr
    assert one.rows(ROWS) == rows


@contextmanager
def silent_server():
    """A server that takes every connection and answers none."""
    with socket.create_server(("127.0.0.1", 0), backlog=64) as listening:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}/api"


@contextmanager
def flow_run_on(url, monkeypatch):
    """As if in a flow run of a command, whose server is at `url`."""
    monkeypatch.setattr(messenger, "current_flow_run", lambda: FlowRun(flow_id=uuid4(), name="x"))
    monkeypatch.setattr(messenger, "TIMEOUT_S", 0.2)
    monkeypatch.setattr(messenger, "PROBE_TIMEOUT_S", 0.2)
    monkeypatch.setattr(messenger, "CLOSE_S", 0.5)
    monkeypatch.setattr(messenger, "RETURN_S", 0.5)
    with temporary_settings({PREFECT_API_URL: url}):
        yield


def test_a_server_that_never_answers_costs_the_loop_nothing_and_the_end_seconds(monkeypatch, caplog):
    with silent_server() as url, flow_run_on(url, monkeypatch):
        begun = time.monotonic()
        with Messenger() as sends:
            artifact = ProgressArtifact(sends, "x")
            monkeypatch.setattr(messenger, "UPDATE_EVERY_S", 0.0)
            for done in range(1_000):
                artifact.show(Progress("ranking", done, 1_000))
            sends.send_text("run-summary", "| a |")
            told_s = time.monotonic() - begun
        assert told_s < 20.0  # minutes, if one in a hundred waited
        with pytest.raises(PrefectGone) as gone, ends_without_prefect():
            raise CheckFailed("x")
        assert isinstance(gone.value.outcome, CheckFailed)
        assert time.monotonic() - begun < 60.0
        wait_for(lambda: "Could not send" in caplog.text, 10)
        assert caplog.text.count("Could not send") == 1


def test_an_interrupted_flow_does_not_wait_for_its_server(monkeypatch):
    with silent_server() as url, flow_run_on(url, monkeypatch):
        monkeypatch.setattr(messenger, "RETURN_S", 60.0)
        begun = time.monotonic()
        with pytest.raises(PrefectGone) as gone, ends_without_prefect():
            raise KeyboardInterrupt
        assert isinstance(gone.value.outcome, KeyboardInterrupt)
        assert time.monotonic() - begun < 50.0


def test_shards_that_end_without_a_server_are_loaded_and_it_is_warned_of_once(tmp_path, caplog, monkeypatch):
    done, ends_later = (ShardFolder(tmp_path, "r", number) for number in range(2))
    record = ShardRecord(is_done=True, host="h", versions={}, engine=None, canaries=())
    done.write(record)
    monkeypatch.setattr(shard, "time", Clock(on_sleep=lambda: ends_later.write(record)))

    with nobody_listens() as port, temporary_settings({PREFECT_API_URL: f"http://127.0.0.1:{port}/api"}):
        ended = list(ShardRuns("c.toml", date(2026, 11, 29))([done, ends_later]))

    assert ended == [done, ends_later]
    assert caplog.text.count("Prefect does not answer") == 1
