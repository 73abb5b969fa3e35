"""A Prefect server on this machine: a private one for the life of a command, or one with a worker that stays.

    python -m flows.local_server up | down

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
from pathlib import Path

from tasks.database import ROOT
from tasks.environment import STATE, prefect_environment
from tasks.errors import PackrankError

PR_SET_PDEATHSIG = 1
HOST = "127.0.0.1"
PORT = 4200  # Prefect's own
POOL = "gpu"
START_TIMEOUT_S = 120.0  # 7 to 18 s with an empty home
STOP_TIMEOUT_S = 20.0
LOGS = STATE / "logs"
STACK_FILE = STATE / "prefect" / "local_stack.json"


def start_private_server() -> str:
    """Starts a server that ends by SIGTERM when this process has ended, however; returns its API's URL.

    To be called from the main thread: a parent-death signal is bound to the thread that started the child.
    """
    port = _free_port()
    libc = ctypes.CDLL(None)
    process = _start_server(port, before_exec=lambda: libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM))
    return _wait_until_healthy(process, port)


def running_stack_url() -> str | None:
    """The API of the stack that `up` started, if it answers."""
    with contextlib.suppress(OSError, ValueError, KeyError):
        url = str(json.loads(STACK_FILE.read_text(encoding="utf-8"))["api_url"])
        return url if _is_healthy(url) else None
    return None


def up() -> None:
    """Starts server and worker, and deploys. Does nothing where they run already."""
    url = running_stack_url()
    if url is None:
        port = PORT if _is_free(PORT) else _free_port()
        server = _start_server(port, before_exec=None)
        url = _wait_until_healthy(server, port)
        deploy(url)
        worker = _start_worker(url)
        stack = {"api_url": url, "server_pid": server.pid, "worker_pid": worker.pid}
        STACK_FILE.write_text(json.dumps(stack), encoding="utf-8")
    print(f"server and worker run: {url.removesuffix('/api')} (logs in {LOGS})")
    print(f"export PREFECT_API_URL={url}")
    print("prefect deployment run 'nightly-rerank/nightly' --watch")


def down() -> None:
    """Stops what `up` started: the worker first, then the server."""
    try:
        stack = json.loads(STACK_FILE.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        print("nothing to stop")
        return
    for name in ("worker_pid", "server_pid"):
        _stop(int(stack[name]))
    STACK_FILE.unlink()
    print("server and worker stopped")


def deploy(api_url: str) -> None:
    """Makes the work pool if there is none, and deploys what prefect.yaml says.

    Raises:
        PackrankError: Prefect refused; its words are in the message.
    """
    if _prefect(api_url, "work-pool", "inspect", POOL).returncode != 0:
        _require(_prefect(api_url, "work-pool", "create", POOL, "--type", "process"))
    _require(_prefect(api_url, "--no-prompt", "deploy", "--all"))


def environment(api_url: str | None = None) -> dict[str, str]:
    """What a Prefect process of ours is started with."""
    own = {"PACKRANK_HOME": str(ROOT), "PREFECT_WORKER_QUERY_SECONDS": "2", "PREFECT_SERVER_LOGGING_LEVEL": "WARNING"}
    url = {} if api_url is None else {"PREFECT_API_URL": api_url}
    return prefect_environment() | own | os.environ | url


def _prefect(api_url: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "prefect", *arguments]
    return subprocess.run(
        command,
        cwd=ROOT,
        env=environment(api_url),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )


def _require(answer: "subprocess.CompletedProcess[str]") -> None:
    if answer.returncode != 0:
        words = (answer.stderr + answer.stdout).strip().splitlines()
        raise PackrankError(f"{' '.join(answer.args[2:])}: {' / '.join(words[-3:])}")


def _start_server(port: int, before_exec: Callable[[], object] | None) -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-m", "prefect", "server", "start", "--host", HOST, "--port", str(port)]
    return _start_in_background(command, "prefect-server.log", environment(), before_exec)


def _start_worker(api_url: str) -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-m", "prefect", "worker", "start", "--pool", POOL, "--name", "local", "--limit", "1"]
    return _start_in_background(command, "prefect-worker.log", environment(api_url), None)


def _start_in_background(
    command: list[str], log_name: str, env: dict[str, str], before_exec: Callable[[], object] | None
) -> "subprocess.Popen[bytes]":
    LOGS.mkdir(parents=True, exist_ok=True)
    STACK_FILE.parent.mkdir(parents=True, exist_ok=True)
    with (LOGS / log_name).open("wb") as log:
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


def _wait_until_healthy(process: "subprocess.Popen[bytes]", port: int) -> str:
    url = f"http://{HOST}:{port}/api"
    deadline = time.monotonic() + START_TIMEOUT_S
    while not _is_healthy(url):
        if process.poll() is not None or time.monotonic() > deadline:
            raise PackrankError(f"the Prefect server did not start; see {LOGS / 'prefect-server.log'}.")
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
    while command_line.exists() and b"prefect" in command_line.read_bytes():
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
            if time.monotonic() > deadline:
                os.killpg(pid, signal.SIGKILL)
        time.sleep(1.0)


def main() -> None:
    """Entry point: up, down, or deploy to PREFECT_API_URL."""
    verbs: dict[str, Callable[[], None]] = {
        "up": up,
        "down": down,
        "deploy": lambda: deploy(os.environ["PREFECT_API_URL"]),
    }
    try:
        verbs[sys.argv[1]]()
    except PackrankError as error:
        raise SystemExit(f"packrank: {error}") from error


if __name__ == "__main__":
    main()
