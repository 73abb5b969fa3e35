"""Nights that meet each other, are cancelled, killed, late, or run again: a real server, real workers, a fake engine.

The server is deployed to from one folder and its worker runs in another. Every test has its own database, so the fake
engine's log tells what that night was asked.
"""

import base64
import json
import os
import re
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
import time
import traceback
import urllib.error
import urllib.request
from contextlib import suppress
from dataclasses import asdict
from datetime import UTC, date, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prefect.states import Crashed, Failed

from flows import alerts, local_server, shard
from flows.alerts import Alert, kind_of, message_of, send
from tasks.database import DatabaseLimits, open_database
from tasks.errors import (
    AlreadyInProgress,
    CanaryFailed,
    CheckFailed,
    ConfigError,
    EngineError,
    InputError,
    PackrankError,
    PromptTooLong,
)
from tasks.keep.shards import ShardFolder, ShardRecord
from tasks.settings import alert_settings, load_settings
from tests.makers import FAKE_VLLM, ROOT, asked, make_inputs, make_settings, write_parquet
from tests.night.test_night import engines_of

pytestmark = pytest.mark.slow

FINAL = {"COMPLETED", "FAILED", "CRASHED", "CANCELLED"}
LISTS = [12, 9, 5]
NUM_WINDOWS = 11  # 5 + 4 + 2, in five batches of 3, 3, 2, 2 and 1
HANGS = {
    "hang_at": 2
}  # the engine never answers its third batch: six windows are committed, and the night goes on and on
COMMITTED = 6
MARKER = "zebrafinch"  # in every text of every input, and nowhere else
ALERT = {"run_id", "name", "night", "state", "kind", "message", "flow_run_id", "host", "time"}
SECRET = "hooks-token-5f3a"


def wait_for(what, seconds=240.0):
    """Looks a few times a second: the server that is asked shares two cores with what is waited for."""
    deadline = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.25)


class Stack:
    """A server, and workers of which any may be killed."""

    def __init__(self, state, url):
        self.state, self.url = state, url
        self.env = local_server.environment(state, url) | {
            "PYTHONPATH": os.pathsep.join(
                [str(FAKE_VLLM), str(ROOT)]
            ),  # the checkout as installed: found from anywhere
            "PREFECT_WORKER_QUERY_SECONDS": "1",
        }
        self.worker = None
        self.started = []

    def start_worker(self):
        self.worker = self.new_worker("gpu")

    def new_worker(self, pool, env=()):
        folder = self.state / "worker's folder"
        folder.mkdir(exist_ok=True)
        command = [sys.executable, "-m", "prefect", "worker", "start", "--pool", pool, "--limit", "2"]
        with (self.state / "logs" / "worker.log").open("ab") as log:
            return subprocess.Popen(
                command, cwd=folder, env=self.env | dict(env), stdout=log, stderr=log, stdin=subprocess.DEVNULL,
                start_new_session=True,
            )  # fmt: skip

    def stop_worker(self, worker=None):
        worker = worker or self.worker
        while worker.poll() is None:
            worker.terminate()
            with suppress(subprocess.TimeoutExpired):
                worker.wait(2)

    def ask(self, address, /, method="POST", **body):
        request = urllib.request.Request(
            f"{self.url}{address}",
            data=None if method == "GET" else json.dumps(body).encode(),
            headers={"Content-Type": "application/json"},
            method=method,
        )
        while True:
            try:
                with urllib.request.urlopen(request, timeout=60) as answer:
                    text = answer.read()
                return json.loads(text) if text else None
            except urllib.error.HTTPError as error:
                if error.code != 503:  # SQLite is locked, the client asks again too
                    raise
                time.sleep(0.5)
            except TimeoutError:
                if method == "POST":  # anything else may be said twice
                    raise

    def prefect(self, *arguments, folder=ROOT, env=()):
        return subprocess.run(
            [sys.executable, "-m", "prefect", *map(str, arguments)],
            cwd=folder, env=self.env | dict(env), capture_output=True, text=True, timeout=240, check=False,
        )  # fmt: skip

    def deploy_without_limit(self):
        """The same deployment for somebody who took its limit away."""
        self.deployment = self.deployment_now()
        names = ("flow_id", "entrypoint", "path", "pull_steps", "work_pool_name", "job_variables")
        asked = {name: self.deployment[name] for name in names}
        self.without_limit = self.ask("/deployments/", name="without-limit", **asked)["id"]

    def start(self, folder, /, *, due=None, deployment_id=None, name=None, **more):
        """A flow run of the deployment for a folder's night; returns its id."""
        scheduled = {"type": "SCHEDULED"}
        if due is not None:
            scheduled |= {"name": "Late", "state_details": {"scheduled_time": due.isoformat()}}
        run = self.ask(
            f"/deployments/{deployment_id or self.deployment['id']}/create_flow_run",
            parameters={"config": str(folder.config), "publish": True} | more,
            state=scheduled,
            job_variables={"env": folder.env},
            **({"name": name} if name else {}),
        )
        self.started.append(run["id"])
        return run["id"]

    def shards(self):
        """The flow runs of shards: (name, state, id), in the order of their names."""
        found = self.ask("/flow_runs/filter", flows={"name": {"any_": ["rerank-shard"]}})
        return sorted((run["name"], run["state"]["type"], run["id"]) for run in found)

    def end_all(self):
        """What a failed test left behind does not turn away the next one's night."""
        for run in self.started:
            process = process_of(run)
            if process is not None:
                os.kill(process, signal.SIGKILL)
                self.ask(f"/flow_runs/{run}", "DELETE")
        self.started = []

    def start_and_hang(self, folder, /, **more):
        """A flow run whose engine hangs, and its process."""
        run = self.start(folder, **more)
        wait_for(lambda: folder.num_committed == COMMITTED or self.state_of(run)["type"] in FINAL)
        assert self.state_of(run)["type"] == "RUNNING", self.logs(run)
        return run, process_of(run)

    def deployment_now(self):
        return self.ask("/deployments/name/nightly-rerank/nightly", "GET")

    def state_of(self, flow_run_id):
        return self.ask(f"/flow_runs/{flow_run_id}", "GET")["state"]

    def wait(self, flow_run_id, seconds=240):
        """The flow run's last state."""
        wait_for(lambda: self.state_of(flow_run_id)["type"] in FINAL, seconds)
        return self.state_of(flow_run_id)

    def logs(self, flow_run_id):
        found = self.ask("/logs/filter", limit=200, logs={"flow_run_id": {"any_": [flow_run_id]}})
        return [(line["level"], line["message"]) for line in found]


class NightFolder:
    """Settings, database and engine's log of one test."""

    def __init__(self, folder, model_folder, lists=LISTS, **settings):
        folder.mkdir(exist_ok=True)
        self.folder = folder
        self.model_folder = model_folder
        self.inputs = make_inputs(folder / "in", lists)
        for name in ("queries", "documents"):
            path = folder / "in" / f"{name}.parquet"
            rows = pq.read_table(path).to_pydict()
            write_parquet(path, **rows | {"text": [f"{MARKER} {text}" for text in rows["text"]]})
        self.log = folder / "asked"
        self.tell()
        self.set(**settings)

    def set(self, **settings):
        values = {name.replace("__", "."): value for name, value in settings.items()}
        self.config = make_settings(self.folder, self.model_folder, self.inputs | values)

    def tell(self, **behaviour):
        """How the fake engine behaves in flow runs that start from now on."""
        self.env = {"FAKE_VLLM": json.dumps({"log": str(self.log)} | behaviour)}

    @property
    def num_asked(self):
        return len(asked(self.log))

    @property
    def num_different(self):
        return len({tuple(each["ids"]) for each in asked(self.log)})

    @property
    def num_committed(self):
        """Windows in the database and in the spool."""
        loaded = self.rows("select * from windows") if self.has_database else []
        batches = {row["batch_no"] for row in loaded}
        spooled = (self.folder / "var" / "spool").rglob("[0-9]*/windows.parquet")
        return len(loaded) + sum(
            pq.read_metadata(path).num_rows for path in spooled if int(path.parent.name) not in batches
        )

    @property
    def has_database(self):
        return (self.folder / "var" / "test.duckdb").exists()

    def rows(self, statement):
        limits = DatabaseLimits("200MB", 1, self.folder / "spill")
        with open_database(self.folder / "var" / "test.duckdb", limits, read_only=True, wait_s=5.0) as opened:
            return opened.query_text(statement).to_pylist()

    def run(self, *arguments):
        """`packrank run` of the same night, without Prefect."""
        return subprocess.run(
            [sys.executable, "-m", "flows.command", "run", str(self.config), "--no-prefect", *arguments],
            cwd=ROOT, env=os.environ | self.env | {"PYTHONPATH": str(FAKE_VLLM)}, capture_output=True, text=True,
            timeout=240, check=False,
        )  # fmt: skip


@pytest.fixture(scope="module")
def stack(tmp_path_factory):
    state = tmp_path_factory.mktemp("life")
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("PREFECT_")]:
            patch.delenv(name)
        port = local_server._free_port()
        server = local_server._start_server(state, port, before_exec=None)
        try:
            made = Stack(state, local_server._wait_until_healthy(state, server, port))
            elsewhere = tmp_path_factory.mktemp("deployed from here")
            subprocess.run(
                [sys.executable, "-m", "flows.local_server", "deploy"],
                cwd=elsewhere, env=made.env, check=True, stdout=subprocess.DEVNULL,
            )  # fmt: skip
            made.deploy_without_limit()
            made.start_worker()
            yield made
            made.stop_worker()
        finally:
            local_server._stop(server.pid)


@pytest.fixture
def night(stack, tmp_path, model_folder):
    def make(name="night", **settings):
        return NightFolder(tmp_path / name, model_folder, **settings)

    yield make
    stack.end_all()


@pytest.fixture
def shard_night(stack, night):
    """A night in two shards, and two slots for them, whose engines behave as told."""
    workers = []

    def make(**behaviour):
        one = night(packing__shards=2)
        one.tell(**behaviour)
        workers.append(stack.new_worker("gpu-shards", one.env))
        return one

    yield make
    for _, _, run in stack.shards():
        if (process := process_of(run)) is not None:
            os.kill(process, signal.SIGKILL)
        stack.ask(f"/flow_runs/{run}", "DELETE")
    for worker in workers:
        stack.stop_worker(worker)


class Hook:
    """A web hook on loopback that keeps what it was sent."""

    def __init__(self):
        self.alerts = []
        hook = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"]))
                hook.alerts.append(json.loads(body))
                self.send_response(int(self.path.rpartition("=")[2]) if "status=" in self.path else 204)
                self.send_header("Location", "/elsewhere")
                self.end_headers()

            def log_message(self, *arguments):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/{SECRET}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def wait(self, flow_run_id):
        """The one alert of a flow run, which comes after its last state."""
        wait_for(lambda: self.of(flow_run_id))
        (alert,) = self.of(flow_run_id)
        return alert

    def of(self, flow_run_id):
        return [alert for alert in self.alerts if alert["flow_run_id"] == flow_run_id]


@pytest.fixture(scope="module")
def hook():
    made = Hook()
    yield made
    made.server.shutdown()
    made.server.server_close()


def process_of(flow_run_id):
    """The process of a flow run."""
    for path in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):
            is_engine = b"prefect.engine" in (path.parent / "cmdline").read_bytes()
            if is_engine and f"PREFECT__FLOW_RUN_ID={flow_run_id}".encode() in path.read_bytes():
                return int(path.parent.name)
    return None


def is_alive(pid):
    return Path(f"/proc/{pid}").exists()


def unpacked(blob):
    """A stored result with what is base64 in it, as Prefect's pickles are, decoded."""
    lines = blob.replace(b"\\n", b"").replace(b"\n", b"")
    runs = re.findall(rb"[A-Za-z0-9+/]{16,}", lines)
    return blob + b"".join(base64.b64decode(run[: len(run) // 4 * 4]) for run in runs)


def engines_of_shards(stack):
    """The engines of the shards' flow runs, one each."""
    processes = [process for _, _, run in stack.shards() if (process := process_of(run)) is not None]
    return [engine for process in processes for engine in engines_of(process)]


def engine_and_process_are_gone(process):
    return not is_alive(process) and engines_of(process) == []


@pytest.mark.fault(17)
def test_a_night_in_progress_turns_others_away_and_is_whole_when_told_to_stop(stack, night, hook):
    """By the deployment's limit; without it by the run lock, which a command meets too. Then SIGTERM to the process."""
    one = night(night__alert_url=hook.url)
    one.tell(**HANGS)
    first, process = stack.start_and_hang(one)
    (engine,) = engines_of(process)

    by_limit = stack.start(one)
    by_lock = stack.start(one, deployment_id=stack.without_limit)
    other = stack.start(one, deployment_id=stack.without_limit, overrides={"strategy.window_size": 3})
    command = one.run()

    assert command.returncode == 5
    assert f"(process {process} on" in command.stderr
    assert stack.wait(by_limit)["type"] == "CANCELLED"
    assert "concurrency limit" in stack.state_of(by_limit)["message"]
    assert stack.wait(by_lock)["type"] == "CANCELLED"
    assert f"(process {process} on" in stack.state_of(by_lock)["message"]
    assert stack.wait(other)["type"] == "FAILED"  # its own night is not ranked
    assert hook.wait(other)["kind"] == "locked"
    assert (hook.of(by_limit), hook.of(by_lock)) == ([], [])

    os.kill(process, signal.SIGTERM)

    assert stack.wait(first)["type"] == "CRASHED"
    wait_for(lambda: not is_alive(engine))
    (run,) = one.rows("select status, error from runs")
    assert run == {"status": "cancelled", "error": "TerminationSignal"}
    assert hook.wait(first)["kind"] == "crashed"


@pytest.mark.fault(15)
def test_a_cancelled_night_leaves_no_process_and_goes_on_from_what_was_committed(stack, night, hook):
    one = night(night__alert_url=hook.url)
    one.tell(**HANGS)
    flow_run, process = stack.start_and_hang(one)

    answer = stack.prefect("flow-run", "cancel", flow_run)

    assert answer.returncode == 0, answer.stderr
    assert stack.wait(flow_run)["type"] == "CANCELLED"
    wait_for(lambda: engine_and_process_are_gone(process))
    assert one.rows("select status from runs") == [{"status": "cancelled"}]
    assert one.num_committed == COMMITTED
    assert hook.of(flow_run) == []  # somebody meant it
    one.tell()
    assert one.run().returncode == 0
    assert (one.num_asked, one.num_different) == (NUM_WINDOWS, NUM_WINDOWS)
    assert one.rows("select status from runs") == [{"status": "complete"}]


@pytest.mark.fault(14, 15)
def test_a_killed_night_is_crashed_at_once_told_of_and_the_next_flow_run_ends_it(stack, night, hook):
    one = night(night__alert_url=hook.url)
    one.tell(**HANGS)
    killed, process = stack.start_and_hang(one)

    os.kill(process, signal.SIGKILL)

    assert stack.wait(killed)["type"] == "CRASHED"
    wait_for(lambda: engine_and_process_are_gone(process))
    alert = hook.wait(killed)
    (run,) = one.rows("select * from runs")
    assert (run["status"], run["flow_run_id"]) == ("failed", killed)
    assert run["error"] == "killed: its process ended without a word"
    assert alert.keys() == ALERT
    assert (alert["run_id"], alert["name"], alert["kind"]) == (run["run_id"], "nightly", "crashed")
    assert alert["night"] == run["night"].isoformat()
    assert abs(datetime.now(UTC) - datetime.fromisoformat(alert["time"])) < timedelta(minutes=1)

    one.tell()
    again = stack.start(one)

    assert stack.wait(again)["type"] == "COMPLETED"
    logs = [message for _, message in stack.logs(again)]
    assert any("taken_up_from=failed" in message for message in logs)
    assert any(re.match(r"batch=\d+ prompts=\d+ prompt_tokens=\d+ ", message) for message in logs)
    assert one.num_asked == one.num_different == NUM_WINDOWS
    (run,) = one.rows("select status, flow_run_id, settings::varchar as settings from runs")
    assert (run["status"], run["flow_run_id"]) == ("published", again)
    assert SECRET not in run["settings"]


@pytest.mark.fault(18, 73, 82, 83)
def test_of_five_late_runs_the_newest_night_is_ranked_once_and_nobody_is_alarmed(stack, night, hook):
    """They mean the same night, the newest: whoever meets it in progress is Cancelled, whoever comes later is done."""
    one = night(night__alert_url=hook.url)
    one.tell(batch_s=0.5)
    stack.ask("/work_pools/gpu", "PATCH", is_paused=True)  # as if no worker had been there
    now = datetime.now(UTC)
    try:
        late = [stack.start(one, due=now - timedelta(days=days)) for days in (5, 4, 3, 2, 1)]
    finally:
        stack.ask("/work_pools/gpu", "PATCH", is_paused=False)

    states = [stack.wait(run)["type"] for run in late]

    assert set(states) <= {"COMPLETED", "CANCELLED"}
    assert "COMPLETED" in states
    assert one.num_asked == one.num_different == NUM_WINDOWS
    newest = alert_settings(one.config).night_at(now)
    assert one.rows("select night, status from runs") == [{"night": newest, "status": "published"}]
    assert [alert for run in late for alert in hook.of(run)] == []
    tasks = stack.ask("/task_runs/count", flow_runs={"id": {"any_": late}})
    assert tasks <= 6 * len(late)  # whole stages, not queries or batches


@pytest.mark.fault(8, 11)
def test_what_fails_late_in_the_night_is_tried_again_without_asking_again(stack, night, hook):
    """A task that Prefect retries, and a flow run that somebody retries: the engine answers each prompt once."""
    cut = {"prompt__max_passage_tokens": 8, "night__alert_url": hook.url}
    one = night(packing__max_engine_starts=1, checks__max_truncated_share=0.0, **cut)
    one.tell(die_at=2)
    one.env["PREFECT_TASKS_DEFAULT_RETRIES"] = "1"

    flow_run = stack.start(one)

    assert stack.wait(flow_run)["type"] == "FAILED"
    assert one.num_asked == one.num_different == NUM_WINDOWS
    assert one.rows("select status, is_degraded from runs") == [{"status": "complete", "is_degraded": True}]
    alert = hook.wait(flow_run)
    assert (alert["kind"], alert["state"]) == ("checks", "Failed")
    assert "1 checks failed" in alert["message"]

    one.set(packing__max_engine_starts=1, **cut)  # the limit is raised
    answer = stack.prefect("flow-run", "retry", flow_run)

    assert answer.returncode == 0, answer.stderr
    wait_for(lambda: stack.state_of(flow_run)["type"] == "COMPLETED")
    assert one.num_asked == NUM_WINDOWS
    assert one.rows("select status, is_degraded from runs") == [{"status": "published", "is_degraded": False}]


@pytest.mark.fault(16)
def test_a_night_whose_worker_was_killed_with_it_does_not_keep_the_next_from_running(stack, night):
    """Nobody is left to tell Prefect, which shows it Running: deleting the flow run frees the deployment's slot."""
    one = night()
    one.tell(**HANGS)
    zombie, process = stack.start_and_hang(one, night="2026-11-28")

    os.kill(stack.worker.pid, signal.SIGKILL)
    os.kill(process, signal.SIGKILL)
    stack.worker.wait()
    wait_for(lambda: engine_and_process_are_gone(process))
    assert stack.state_of(zombie)["type"] == "RUNNING"
    stack.start_worker()

    assert stack.prefect("flow-run", "delete", zombie).returncode == 0
    one.tell()
    following = stack.start(one, night="2026-11-29")
    assert stack.wait(following)["type"] == "COMPLETED"
    assert one.rows("select night, status, error from runs order by night") == [
        {"night": date(2026, 11, 28), "status": "failed", "error": "killed: its process ended without a word"},
        {"night": date(2026, 11, 29), "status": "published", "error": None},
    ]


@pytest.mark.fault(8, 10)
def test_of_two_shards_the_one_whose_process_is_killed_is_started_again_alone(stack, shard_night):
    """q000 is the first shard's, in five rounds; the others are the second's."""
    one = shard_night(batch_s=1.0)
    flow_run = stack.start(one)
    spool = one.folder / "var" / "spool"
    wait_for(lambda: len(list(spool.glob("test/*/0/[0-9]*"))) == 3 or stack.state_of(flow_run)["type"] in FINAL)
    ((name, state, first), (other, _, second)) = stack.shards()
    assert state == "RUNNING", stack.logs(flow_run)

    process = process_of(first)
    os.kill(process, signal.SIGKILL)

    assert stack.wait(flow_run)["type"] == "COMPLETED", stack.logs(flow_run)
    assert engine_and_process_are_gone(process)
    ended = stack.shards()
    assert [(each, state) for each, state, _ in ended] == [(name, "COMPLETED"), (name, "CRASHED"), (other, "COMPLETED")]
    assert [run for _, _, run in ended[1:]] == [first, second]
    (run,) = one.rows("select run_id, status, num_queries, device from runs")
    assert (name, other) == (f"{run['run_id']}.0", f"{run['run_id']}.1")
    assert (run["status"], run["num_queries"], run["device"]) == ("published", 3, "fake")
    assert one.rows("select count(*) as n from latest_scores") == [{"n": sum(LISTS)}]
    assert one.rows("select count(*) as n from windows") == [{"n": NUM_WINDOWS}]
    assert one.num_different == NUM_WINDOWS
    assert one.num_asked <= NUM_WINDOWS + 1  # the window that it was at
    assert any("It is started once more" in message for _, message in stack.logs(flow_run))
    assert not (spool / "test" / run["run_id"]).exists()


@pytest.mark.fault(15)
def test_a_night_that_is_cancelled_stops_its_shards(stack, shard_night):
    one = shard_night(batch_s=300)
    flow_run = stack.start(one)
    wait_for(lambda: len(engines_of_shards(stack)) == 2 or stack.state_of(flow_run)["type"] in FINAL)
    processes = engines_of_shards(stack)
    assert processes, stack.logs(flow_run)

    answer = stack.prefect("flow-run", "cancel", flow_run)

    assert answer.returncode == 0, answer.stderr
    assert stack.wait(flow_run)["type"] == "CANCELLED"
    wait_for(lambda: {state for _, state, _ in stack.shards()} == {"CANCELLED"})
    wait_for(lambda: not any(is_alive(process) for process in processes))
    assert one.rows("select status from runs") == [{"status": "cancelled"}]


@pytest.mark.parametrize(
    ("state", "num_starts", "kind", "words"),
    [
        (Crashed(message="gone"), 1, None, None),  # started once more
        (Crashed(message="gone"), 2, PackrankError, "shard 1: Crashed: gone. It was started 2 times; flow run"),
        (Failed(name="EngineError", message="lost"), 1, None, None),
        (Failed(name="InputError", message="no column"), 1, InputError, "run r, shard 1: InputError: no column"),
        (Failed(name="CanaryFailed", message="wrong"), 1, CanaryFailed, "run r, shard 1: CanaryFailed: wrong"),
    ],
)
def test_a_shard_is_started_once_more_unless_that_would_only_say_the_same(tmp_path, state, num_starts, kind, words):
    watched = shard._Watched(ShardFolder(tmp_path, "r", 1), flow_run_id=uuid4(), num_starts=num_starts)

    ended = shard._conclude(watched, state)

    assert type(ended) is (kind or type(None))
    assert words is None or words in str(ended)
    assert (watched.flow_run_id is None) == (kind is None)


def test_a_shard_that_wrote_its_record_is_done_whatever_prefect_says(tmp_path):
    folder = ShardFolder(tmp_path, "r", 1)
    folder.write(ShardRecord(is_done=True, host="h", versions={}, engine=None, canaries=()))

    assert shard._conclude(shard._Watched(folder, uuid4(), 1), Crashed(message="gone")) is folder


def test_a_shard_that_runs_without_its_lock_for_a_minute_has_lost_its_machine(tmp_path):
    watched = shard._Watched(ShardFolder(tmp_path, "r", 1), uuid4(), 1)

    assert not shard._is_lost(watched, now=100.0)  # it may not have begun
    assert not shard._is_lost(watched, now=159.0)
    with watched.folder.lock():
        assert not shard._is_lost(watched, now=161.0)
    assert not shard._is_lost(watched, now=170.0)
    assert shard._is_lost(watched, now=231.0)


@pytest.mark.fault(84)
def test_a_paused_schedule_stays_paused_and_one_that_is_removed_is_there_until_it_is_deleted(stack, tmp_path):
    def schedules():
        return [(each["slug"], each["active"]) for each in stack.deployment_now()["schedules"]]

    (schedule,) = stack.deployment["schedules"]
    stack.ask(f"/deployments/{stack.deployment['id']}/schedules/{schedule['id']}", "PATCH", active=False)
    assert stack.prefect("--no-prompt", "deploy", "--all").returncode == 0
    assert schedules() == [("nightly", False)]

    text = (ROOT / "prefect.yaml").read_text()
    (tmp_path / "prefect.yaml").write_text(text.replace("schedules: [*nightly]", "schedules: []"))
    deployed = stack.prefect("--no-prompt", "deploy", "--all", "--prefect-file", tmp_path / "prefect.yaml")
    assert deployed.returncode == 0, deployed.stderr
    assert schedules() == [("nightly", False)]  # it would fire on if it had been active

    name = "nightly-rerank/nightly"
    deleted = stack.prefect("deployment", "schedule", "delete", name, schedule["id"], "--accept-yes")
    assert deleted.returncode == 0, deleted.stdout + deleted.stderr
    assert schedules() == []


@pytest.mark.fault(86)
def test_the_flows_process_and_the_worker_import_no_engine(stack):
    """Prefect loads the flow's module in the worker too, for its hooks."""
    heavy = "('vllm', 'torch', 'transformers', 'matplotlib', 'scipy')"
    code = f"import sys, flows.nightly_rerank; print([name for name in {heavy} if name in sys.modules])"

    answer = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=stack.env, capture_output=True, check=True)

    assert answer.stdout.strip() == b"[]"


@pytest.mark.fault(8, 79, 80)
def test_broken_settings_and_input_are_told_of_and_no_text_is_in_logs_states_or_results(stack, night, hook):
    broken = night("broken", night__alert_url=hook.url, strategy__stride=99)
    unreadable = night("unreadable", night__alert_url=hook.url)
    texts = pa.array([MARKER.encode() + b" caf\xe9"]).view(pa.string())  # no UTF-8
    write_parquet(unreadable.folder / "in" / "queries.parquet", query_id=["q000"], text=texts)

    runs = [stack.start(one, deployment_id=stack.without_limit) for one in (broken, unreadable)]

    assert [stack.wait(run)["type"] for run in runs] == ["FAILED", "FAILED"]
    told = [hook.wait(run) for run in runs]
    assert [(alert["kind"], alert["run_id"] is None) for alert in told] == [("settings", True), ("input", False)]
    assert "stride = 99 must be between 1 and window_size = 4" in told[0]["message"]
    assert "not valid UTF-8" in told[1]["message"]
    assert [alert["night"] for alert in told] == [
        alert_settings(broken.config).night_at(datetime.now(UTC)).isoformat()
    ] * 2
    kept = {path: path.read_bytes() for path in stack.state.rglob("*") if path.is_file()}
    results = [unpacked(blob) for path, blob in kept.items() if path.parent.name == "storage"]
    assert any(b"not valid UTF-8" in result for result in results)
    for words in (MARKER, SECRET):
        assert [path for path, blob in kept.items() if words.encode() in blob] == []
        assert [blob for blob in results if words.encode() in blob] == []
    assert max(map(len, results)) < 5_000
    with sqlite3.connect(f"file:{stack.state}/prefect/prefect.db?mode=ro", uri=True) as server:
        for column, table in (("parameters", "flow_run"), ("data", "flow_run_state"), ("data", "task_run_state")):
            (longest,) = server.execute(f"select max(length({column})) from {table}").fetchone()
            assert (longest or 0) < 2_000, (table, column)


@pytest.mark.parametrize(
    ("path", "words"),
    [("?status=500", "HTTP status 500"), ("?status=302", "HTTP status 302"), ("", None)],
)
def test_an_alert_that_is_not_delivered_is_one_line_without_the_secret(hook, path, words):
    trouble = send(make_alert(), hook.url + path)

    assert trouble == (None if words is None else f"the alert to 127.0.0.1 was not delivered: {words}")
    assert hook.alerts[-1] == asdict(make_alert())  # the redirect was not followed


def test_nobody_listening_or_answering_is_the_same(monkeypatch):
    monkeypatch.setattr(alerts, "TIMEOUT_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://user:{SECRET}@127.0.0.1:{silent.getsockname()[1]}/{SECRET}?key={SECRET}"
        told = [send(make_alert(), url)]
    told.append(send(make_alert(), url))

    assert all(line.startswith("the alert to 127.0.0.1 was not delivered: ") for line in told)
    assert SECRET not in "".join(told)


@given(st.text(min_size=1))
def test_an_error_that_nobody_foresaw_is_told_without_its_words(text):
    """A driver's message may have a value of a row in it."""
    told = message_of(ValueError(f"cannot convert <<{text}>>"))

    assert told == "ValueError, which packrank does not foresee. The flow run's log has it."


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (PromptTooLong("x"), "settings"),
        (InputError("x"), "input"),
        (CheckFailed("x"), "checks"),
        (AlreadyInProgress("x"), "locked"),
        (EngineError("x"), "failed"),
        (KeyError("x"), "failed"),
    ],
)
def test_an_alert_says_what_kind_of_failure_it_is(error, kind):
    assert kind_of(error) == kind


def test_the_urls_secret_is_nowhere_but_in_its_file(tmp_path):
    url = f"https://example.org/{SECRET}"
    path = make_settings(tmp_path, tmp_path / "model", {"inputs.nested": "n.parquet", "night.alert_url": url})

    settings = load_settings(path)

    assert settings.night.alert_url.get_secret_value() == url
    assert SECRET not in settings.model_dump_json() + repr(settings)
    with pytest.raises(ConfigError, match="Prefect would store the secret") as refused:
        load_settings(path, {"night.alert_url": url})
    assert SECRET not in str(refused.value)


@pytest.mark.parametrize(
    "values",
    [
        {"night.alert_url": f"ftp://example.org/{SECRET}"},
        {"night.alert_url": SECRET},
        {"night.alert_url": f"https://[{SECRET}"},
        {"night.alert_ulr": f"https://example.org/{SECRET}"},
        {"night.alert_url": f"https://example.org/{SECRET}", "inputs.nested": None},
    ],
)
def test_no_error_of_settings_shows_the_secret_nor_what_caused_it(tmp_path, values):
    """Prefect logs an exception with all that it came from."""
    path = make_settings(tmp_path, tmp_path / "model", {"inputs.nested": "n.parquet"} | values)

    with pytest.raises(ConfigError) as refused:
        load_settings(path)

    assert SECRET not in "".join(traceback.format_exception(refused.value))


@pytest.mark.parametrize("section", ['cron = "never"', 'timezone = "Mars/Olympus"', "alert_ulr = 3"])
def test_an_alert_goes_out_whatever_else_is_wrong_in_the_settings(tmp_path, section):
    path = tmp_path / "nightly.toml"
    path.write_text(f'[night]\nalert_url = "https://example.org/{SECRET}"\n{section}\n[strategy]\nwindow_size = -1\n')

    night = alert_settings(path)

    assert (night.name, night.alert_url.get_secret_value()) == ("nightly", f"https://example.org/{SECRET}")


@pytest.mark.parametrize("text", ["[night", '[night]\nalert_url = "no"', "night = 3\n[night]"])
def test_settings_that_cannot_be_read_have_no_alert(tmp_path, text):
    path = tmp_path / "nightly.toml"
    path.write_text(text)

    with pytest.raises(ConfigError):
        alert_settings(path)


def make_alert():
    return Alert(None, "nightly", "2026-11-29", "Failed", "checks", "line", "id", "host", "2026-11-29T01:30:00+00:00")
