"""A Prefect server on this machine: a private one for the life of a command, or one with a worker that stays.

    python -m flows.prefect_server up [NUM_SHARD_WORKERS] | down | deploy

Prefect's own temporary server is never used: it survives kill -9, and Ctrl-C waits 157 s for it. Both kinds listen on
loopback only, ask for a password that only this user can read, and keep their files under `var/prefect`. Knows nothing
of flows' contents.
"""

import contextlib
import ctypes
import fcntl
import itertools
import json
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import httpx

from flows.background import HOST, PR_SET_PDEATHSIG, free_port, is_free, is_prefect, start_in_background, stop_process
from tasks.system.environment import FILES, ROOT, STATE, loopback_environment, prefect_environment
from tasks.system.errors import PackrankError

PORT = 4200  # Prefect's own
POOL, SHARD_POOL = "gpu", "gpu-shards"  # a night waits for its shards: in one pool it would take their place
START_TIMEOUT_S = 120.0  # 7 to 18 s with an empty home
HEALTH_TIMEOUT_S = 2.0
BUSY_S = 20.0  # for the answer of a server that lives: it shares its cores with engines
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
    port = free_port()
    process = _start_server(state, port, before_exec=lambda: libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM))
    return _wait_until_healthy(state, process, port)


def running_stack_url(state: Path = STATE) -> str | None:
    """The API of the stack that `up` started, if it lives and answers."""
    stack = _read_stack(state)
    if stack is None or not is_prefect(stack.server_pid):
        return None
    deadline = time.monotonic() + BUSY_S
    while not _is_healthy(stack.api_url):
        if time.monotonic() > deadline:
            return None
        time.sleep(0.5)
    return stack.api_url


def password(state: Path = STATE) -> str:
    """What servers of ours are asked with: without it any user of this machine could start flow runs as this one.

    Made on first use, in a file that only its owner can read.
    """
    path = _password_file(state)
    path.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileExistsError):
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with open(descriptor, "w", encoding="utf-8") as stream:
            stream.write(f"packrank:{secrets.token_urlsafe(24)}")
    return path.read_text(encoding="utf-8")


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
    port = PORT
    if not is_free(PORT):
        port = free_port()
        print(f"port {PORT} is taken by another program: the server has {port}")
    server = _start_server(state, port, before_exec=None)
    url = _wait_until_healthy(state, server, port)
    deploy(client_environment(state, url))
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
        stop_process(pid)
    _stack_file(state).unlink()
    return True


def deploy(env: dict[str, str]) -> None:
    """Makes the work pools that are not there, and deploys what prefect.yaml says.

    Args:
        env: of a client of the server, see `environment`.

    Raises:
        PackrankError: Prefect refused; its words are in the message.
    """
    for pool in (POOL, SHARD_POOL):
        if _prefect(env, "work-pool", "inspect", pool).returncode != 0:
            _require(_prefect(env, "work-pool", "create", pool, "--type", "process"))
    _require(_prefect(env, "--no-prompt", "deploy", "--all"))


def environment(state: Path, api_url: str | None = None) -> dict[str, str]:
    """The environment of our Prefect processes; variables that the caller has set are kept."""
    own = {
        "PACKRANK_HOME": str(ROOT),
        "PREFECT_WORKER_QUERY_SECONDS": "5",
        "PREFECT_SERVER_LOGGING_LEVEL": "WARNING",
        "TMPDIR": temporary_folder(),
    }
    url = {} if api_url is None else {"PREFECT_API_URL": api_url}
    return prefect_environment(state) | own | os.environ | loopback_environment() | url


def temporary_folder() -> str:
    """A folder of this user's own below the system's temporary one.

    A worker keeps its files in `runner_storage` there (prefect/runner/runner.py): the first user of the host to start a
    worker owns that, and no other user's worker starts.

    Raises:
        PackrankError: another user has made the folder.
    """
    folder = Path(tempfile.gettempdir()) / f"packrank-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.stat().st_uid != os.getuid():
        raise PackrankError(f"{folder}: belongs to another user. Remove it, or set TMPDIR to a folder of your own.")
    return str(folder)


def client_environment(state: Path, api_url: str) -> dict[str, str]:
    """What a client of a server of ours is started with."""
    return environment(state, api_url) | {"PREFECT_API_AUTH_STRING": password(state)}


def main() -> None:
    """Entry point: up, down, or deploy to PREFECT_API_URL."""
    verbs = {"up": _up, "down": _down, "deploy": _deploy}
    try:
        if (verb := verbs[sys.argv[1]]) is not _down:
            from flows.deployed_schedules import check_schedules  # a command's server needs neither it nor YAML

            check_schedules()
        verb()
    except PackrankError as error:
        raise SystemExit(f"packrank: {error}") from error


def _up() -> None:
    url = up(num_shard_workers=int(sys.argv[2]) if len(sys.argv) > 2 else 0)
    print(f"Prefect runs: {url.removesuffix('/api')} (logs: {STATE / 'logs'})")
    print(f"  export PREFECT_API_URL={url} PREFECT_HOME={STATE / 'prefect'}")
    print(f"  export PREFECT_API_AUTH_STRING=$(cat {_password_file(STATE)})    # the page asks for it, too")
    print("  .venv/bin/prefect deployment run 'nightly-rerank/nightly' --watch")


def _down() -> None:
    print("server and workers stopped" if down() else "nothing to stop")


def _deploy() -> None:
    url = os.environ.get("PREFECT_API_URL")
    if url is not None:
        deploy(environment(STATE, url))
    elif (url := running_stack_url()) is not None:
        deploy(client_environment(STATE, url))
    else:
        raise PackrankError("deploy: set PREFECT_API_URL to a server's API, such as http://127.0.0.1:4200/api.")
    print(f"deployed nightly-rerank/nightly and rerank-shard/shard to {url}")


def _password_file(state: Path) -> Path:
    return state / "prefect" / "password"


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
        raise PackrankError(f"up: a server runs with {found} workers, expected {num_workers}. Run `make down` first.")


def _prefect(env: dict[str, str], *arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "prefect", *arguments],
        cwd=ROOT,
        env=env,
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
    """Starts a server on a database that no other server has open: `prefect.db`, or `prefect-2.db`, ..."""
    logs = state / "logs"
    for folder in (logs, state / "prefect"):
        folder.mkdir(parents=True, exist_ok=True)
    with _free_database(state / "prefect") as (lock, database):
        env = environment(state) | {
            "PREFECT_SERVER_DATABASE_CONNECTION_URL": f"sqlite+aiosqlite:///{database}",
            "PREFECT_SERVER_UI_API_URL": f"http://{HOST}:{port}/api",  # else the page would show and steer port 4200
            "PREFECT_SERVER_API_AUTH_STRING": password(state),
            "PREFECT_LOGGING_SETTINGS_PATH": str(FILES / "configs" / "prefect_server_logging.yml"),
            "PREFECT_LOGGING_HANDLERS_FILE_FILENAME": str(logs / f"{database.stem}-server.log"),
        }
        command = [sys.executable, "-m", "prefect", "server", "start", "--host", HOST, "--port", str(port)]
        return start_in_background(command, logs / f"{database.stem}-server.out", env, before_exec, (lock,))


@contextlib.contextmanager
def _free_database(folder: Path) -> Iterator[tuple[int, Path]]:
    """A database, and the descriptor of its lock, which whoever inherits it holds for its life."""
    for number in itertools.count(1):
        database = folder / ("prefect.db" if number == 1 else f"prefect-{number}.db")
        with database.with_suffix(".lock").open("a") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue
            yield lock.fileno(), database
            return


def _start_worker(
    state: Path, api_url: str, pool: str, name: str, variables: dict[str, str]
) -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-m", "prefect", "worker", "start", "--pool", pool, "--name", name, "--limit", "1"]
    log = state / "logs" / f"prefect-worker.{name}.log"
    return start_in_background(command, log, client_environment(state, api_url) | variables, None)


def _wait_until_healthy(state: Path, process: "subprocess.Popen[bytes]", port: int) -> str:
    url = f"http://{HOST}:{port}/api"
    deadline = time.monotonic() + START_TIMEOUT_S
    while not _is_healthy(url):
        if process.poll() is not None or time.monotonic() > deadline:
            raise PackrankError(f"the Prefect server did not start; see prefect-server.* in {state / 'logs'}.")
        time.sleep(0.2)
    return url


def _is_healthy(url: str) -> bool:
    with contextlib.suppress(httpx.HTTPError):  # a proxy knows nothing of our loopback
        return httpx.get(f"{url}/health", trust_env=False, timeout=HEALTH_TIMEOUT_S).status_code == httpx.codes.OK
    return False


if __name__ == "__main__":
    main()
