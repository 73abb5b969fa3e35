"""A Prefect server on this machine: a private one for the life of a command, or one with a worker that stays.

    python -m flows.local_server up [NUM_SHARD_WORKERS] | down | deploy

Prefect's own temporary server is never used: it survives kill -9, and Ctrl-C waits 157 s for it. Both kinds listen on
loopback only and keep their files under `var/prefect`. Knows nothing of flows' contents.
"""

import contextlib
import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from tasks.environment import ROOT, STATE, prefect_environment
from tasks.errors import PackrankError

PR_SET_PDEATHSIG = 1
HOST = "127.0.0.1"
PORT = 4200  # Prefect's own
POOL, SHARD_POOL = "gpu", "gpu-shards"  # a night waits for its shards: in one pool it would take their place
START_TIMEOUT_S = 120.0  # 7 to 18 s with an empty home
STOP_TIMEOUT_S = 20.0

NEEDS_WORKERS = (
    "[packing] shards > 1 needs a Prefect server with a worker for each GPU: `make up SHARD_WORKERS=2`, or set "
    "PREFECT_API_URL and `make deploy`. --no-prefect ranks the shards one after another in this process."
)


@dataclass(frozen=True, slots=True)
class Stack:
    """What `up` started."""

    api_url: str
    server_pid: int
    worker_pids: list[int]


def start_private_server(state: Path = STATE) -> str:
    """Starts a server that ends by SIGTERM when this process has ended, however; returns its API's URL.

    To be called from the main thread: a parent-death signal is bound to the thread that started the child.
    """
    libc = ctypes.CDLL(None)
    port = _free_port()
    process = _start_server(state, port, before_exec=lambda: libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM))
    return _wait_until_healthy(state, process, port)


def running_stack_url(state: Path = STATE) -> str | None:
    """The API of the stack that `up` started, if it answers."""
    stack = _read_stack(state)
    return stack.api_url if stack is not None and _is_healthy(stack.api_url) else None


def up(state: Path = STATE, num_shard_workers: int = 0) -> str:
    """Starts server and workers and deploys, where they do not run already; returns the API's URL.

    Args:
        state: where their files go.
        num_shard_workers: for shards, beside the one for nights; each has the GPU of its number.

    Raises:
        PackrankError: a server did not start, or one runs with another number of workers.
    """
    url = running_stack_url(state)
    if url is not None:
        _require_workers(state, 1 + num_shard_workers)
        return url
    port = PORT if _is_free(PORT) else _free_port()
    server = _start_server(state, port, before_exec=None)
    url = _wait_until_healthy(state, server, port)
    deploy(url, state)
    workers = [_start_worker(state, url, POOL, "local", {})] + [
        _start_worker(state, url, SHARD_POOL, f"local-{gpu}", {"CUDA_VISIBLE_DEVICES": str(gpu)})
        for gpu in range(num_shard_workers)
    ]
    stack = Stack(url, server.pid, [worker.pid for worker in workers])
    _stack_file(state).write_text(json.dumps(asdict(stack)), encoding="utf-8")
    return url


def down(state: Path = STATE) -> bool:
    """Stops what `up` started, the worker first; false where there was nothing."""
    stack = _read_stack(state)
    if stack is None:
        return False
    for pid in (*stack.worker_pids, stack.server_pid):
        _stop(pid)
    _stack_file(state).unlink()
    return True


def deploy(api_url: str, state: Path = STATE) -> None:
    """Makes the work pools that are not there, and deploys what prefect.yaml says.

    Raises:
        PackrankError: Prefect refused; its words are in the message.
    """
    for pool in (POOL, SHARD_POOL):
        if _prefect(state, api_url, "work-pool", "inspect", pool).returncode != 0:
            _require(_prefect(state, api_url, "work-pool", "create", pool, "--type", "process"))
    _require(_prefect(state, api_url, "--no-prompt", "deploy", "--all"))


def environment(state: Path, api_url: str | None = None) -> dict[str, str]:
    """What a Prefect process of ours is started with; what the caller has set already stands."""
    own = {"PACKRANK_HOME": str(ROOT), "PREFECT_WORKER_QUERY_SECONDS": "2", "PREFECT_SERVER_LOGGING_LEVEL": "WARNING"}
    url = {} if api_url is None else {"PREFECT_API_URL": api_url}
    return prefect_environment(state) | own | os.environ | url


def main() -> None:
    """Entry point: up, down, or deploy to PREFECT_API_URL."""
    verbs = {"up": _up, "down": _down, "deploy": _deploy}
    try:
        verbs[sys.argv[1]]()
    except PackrankError as error:
        raise SystemExit(f"packrank: {error}") from error


def _up() -> None:
    url = up(num_shard_workers=int(sys.argv[2]) if len(sys.argv) > 2 else 0)
    print(f"Prefect runs: {url.removesuffix('/api')} (logs: {STATE / 'logs'})")
    print(f"  export PREFECT_API_URL={url} PREFECT_HOME={STATE / 'prefect'}")
    print("  .venv/bin/prefect deployment run 'nightly-rerank/nightly' --watch")


def _down() -> None:
    print("server and workers stopped" if down() else "nothing to stop")


def _deploy() -> None:
    url = os.environ.get("PREFECT_API_URL") or running_stack_url()
    if url is None:
        raise PackrankError("deploy: set PREFECT_API_URL to a server's API, such as http://127.0.0.1:4200/api.")
    deploy(url)
    print(f"deployed nightly-rerank/nightly and rerank-shard/shard to {url}")


def _stack_file(state: Path) -> Path:
    return state / "prefect" / "local_stack.json"


def _read_stack(state: Path) -> Stack | None:
    try:
        return Stack(**json.loads(_stack_file(state).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None


def _require_workers(state: Path, num_workers: int) -> None:
    stack = _read_stack(state)
    found = 0 if stack is None else len(stack.worker_pids)
    if found != num_workers:
        raise PackrankError(f"up: a server runs with {found} workers, wanted {num_workers}. `make down` first.")


def _prefect(state: Path, api_url: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "prefect", *arguments],
        cwd=ROOT,
        env=environment(state, api_url),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )


def _require(answer: "subprocess.CompletedProcess[str]") -> None:
    if answer.returncode != 0:
        words = (answer.stderr + answer.stdout).strip().splitlines()
        raise PackrankError(f"{' '.join(answer.args[2:])}: {' / '.join(words[-3:])}")


def _start_server(state: Path, port: int, before_exec: Callable[[], object] | None) -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-m", "prefect", "server", "start", "--host", HOST, "--port", str(port)]
    return _start_in_background(command, state, "prefect-server.log", environment(state), before_exec)


def _start_worker(
    state: Path, api_url: str, pool: str, name: str, variables: dict[str, str]
) -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-m", "prefect", "worker", "start", "--pool", pool, "--name", name, "--limit", "1"]
    log_name = f"prefect-worker.{name}.log"
    return _start_in_background(command, state, log_name, environment(state, api_url) | variables, None)


def _start_in_background(
    command: list[str], state: Path, log_name: str, env: dict[str, str], before_exec: Callable[[], object] | None
) -> "subprocess.Popen[bytes]":
    for folder in (state / "logs", _stack_file(state).parent):
        folder.mkdir(parents=True, exist_ok=True)
    with (state / "logs" / log_name).open("wb") as log:
        return subprocess.Popen(
            command,
            cwd=ROOT,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,  # Ctrl-C stays with the command
            preexec_fn=before_exec,
        )


def _wait_until_healthy(state: Path, process: "subprocess.Popen[bytes]", port: int) -> str:
    url = f"http://{HOST}:{port}/api"
    deadline = time.monotonic() + START_TIMEOUT_S
    while not _is_healthy(url):
        if process.poll() is not None or time.monotonic() > deadline:
            raise PackrankError(f"the Prefect server did not start; see {state / 'logs' / 'prefect-server.log'}.")
        time.sleep(0.2)
    return url


def _is_healthy(url: str) -> bool:
    with contextlib.suppress(OSError, ValueError), urllib.request.urlopen(f"{url}/health", timeout=2) as answer:
        return bool(answer.status == 200)
    return False


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex((HOST, port)) != 0


def _stop(pid: int) -> None:
    """SIGTERM, and SIGKILL to its group if that does not help; only to a process that is Prefect's."""
    command_line = Path(f"/proc/{pid}/cmdline")
    deadline = time.monotonic() + STOP_TIMEOUT_S
    with contextlib.suppress(ProcessLookupError, FileNotFoundError):
        while b"prefect" in command_line.read_bytes():
            os.kill(pid, signal.SIGTERM)  # a worker may need a second one
            if time.monotonic() > deadline:
                os.killpg(pid, signal.SIGKILL)
            time.sleep(1.0)


if __name__ == "__main__":
    main()
