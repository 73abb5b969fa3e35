"""A Prefect server and its workers for tests, and the folder of a night that they run.

The server is deployed to from one folder and its worker runs in another. Every night has its own database, so the fake
engine's log tells what that night was asked.
"""

import base64
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from flows import background, prefect_server
from tests import processes
from tests.makers import FAKE_VLLM, ROOT, asked, make_inputs, make_settings, read_rows, write_parquet
from tests.processes import engines_of, is_alive

FINAL = {"COMPLETED", "FAILED", "CRASHED", "CANCELLED"}
LISTS = [12, 9, 5]
HANGS = {"hang_at": 2}  # the engine never answers its third batch: the night goes on and on
COMMITTED = 6  # windows of a night that hangs
MARKER = "zebrafinch"  # in every text of every input, and nowhere else

wait_for = partial(
    processes.wait_for, every_s=0.25
)  # the server that is asked shares two cores with what is waited for


def authorization(state):
    return f"Basic {base64.b64encode(prefect_server.password(state).encode()).decode()}"


class Stack:
    """A server, and workers of which any may be killed."""

    def __init__(self, state, url):
        self.state, self.url = state, url
        self.env = prefect_server.client_environment(state, url) | {
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
            headers={"Content-Type": "application/json", "Authorization": authorization(self.state)},
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
            cwd=folder, env=self.env | dict(env), capture_output=True, text=True, timeout=600, check=False,
        )  # fmt: skip

    def start(self, folder, /, *, due=None, **more):
        """A flow run of the deployment for a folder's night; returns its id."""
        scheduled = {"type": "SCHEDULED"}
        if due is not None:
            scheduled |= {"name": "Late", "state_details": {"scheduled_time": due.isoformat()}}
        run = self.ask(
            f"/deployments/{self.deployment['id']}/create_flow_run",
            parameters={"config": str(folder.config), "publish": True} | more,
            state=scheduled,
            job_variables={"env": folder.env},
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

    def set_state(self, flow_run_id, kind, *, force=False):
        """As `prefect flow-run cancel` does it, without five seconds of imports."""
        answer = self.ask(f"/flow_runs/{flow_run_id}/set_state", state={"type": kind}, force=force)
        assert answer["status"] == "ACCEPT", answer

    def retry(self, flow_run_id):
        """As `prefect flow-run retry` does it, once the worker has seen the first process end: before, the worker dies of it."""
        wait_for(lambda: any(message.startswith("Process for flow run") for _, message in self.logs(flow_run_id)))
        self.set_state(flow_run_id, "SCHEDULED", force=True)

    def state_of(self, flow_run_id):
        return self.ask(f"/flow_runs/{flow_run_id}", "GET")["state"]

    def wait(self, flow_run_id, seconds=600):
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
        driver = {"packing.driver": "generate"}  # whose calls are batches: what is committed when one hangs is known
        self.config = make_settings(self.folder, self.model_folder, self.inputs | driver | values)

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
        return read_rows(self.folder / "var" / "test.duckdb", statement)

    def run(self, *arguments):
        """`packrank run` of the same night, without Prefect."""
        return subprocess.run(
            [sys.executable, "-m", "flows.cli", "run", str(self.config), "--no-prefect", *arguments],
            cwd=ROOT, env=os.environ | self.env | {"PYTHONPATH": str(FAKE_VLLM)}, capture_output=True, text=True,
            timeout=600, check=False,
        )  # fmt: skip


@contextmanager
def served(tmp_path_factory):
    """A server with the deployments and a worker, in a folder of their own."""
    state = tmp_path_factory.mktemp("life")
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("PREFECT_")]:
            patch.delenv(name)
        port = background.free_port()
        server = prefect_server._start_server(state, port, before_exec=None)
        try:
            made = Stack(state, prefect_server._wait_until_healthy(state, server, port))
            made.server = server
            elsewhere = tmp_path_factory.mktemp("deployed from here")
            subprocess.run(
                [sys.executable, "-m", "flows.prefect_server", "deploy"],
                cwd=elsewhere, env=made.env, check=True, stdout=subprocess.DEVNULL,
            )  # fmt: skip
            made.deployment = made.deployment_now()
            made.start_worker()
            yield made
            made.stop_worker()
        finally:
            background.stop_process(server.pid)


def process_of(flow_run_id):
    """The process of a flow run."""
    for path in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):
            is_engine = b"prefect.engine" in (path.parent / "cmdline").read_bytes()
            if is_engine and f"PREFECT__FLOW_RUN_ID={flow_run_id}".encode() in path.read_bytes():
                return int(path.parent.name)
    return None


def engine_and_process_are_gone(process):
    return not is_alive(process) and engines_of(process) == []


@contextmanager
def nobody_listens():
    """A port of loopback that takes no connection, and that no other program can have meanwhile."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield bound.getsockname()[1]
