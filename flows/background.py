"""Servers in the background: a free port, a process that ends with its parent, and its end."""

import contextlib
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import psutil

from tasks.system.environment import LOOPBACK, ROOT

PR_SET_PDEATHSIG = 1
HOST = LOOPBACK
STOP_TIMEOUT_S = 20.0


def start_in_background(
    command: list[str],
    log: Path,
    env: dict[str, str],
    before_exec: Callable[[], object] | None,
    pass_fds: tuple[int, ...] = (),
) -> "subprocess.Popen[bytes]":
    """A process in a session of its own, whose output goes to a log."""
    with log.open("wb") as output:
        return subprocess.Popen(
            command,
            cwd=ROOT,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,  # Ctrl-C stays with the command
            preexec_fn=before_exec,
            pass_fds=pass_fds,
        )


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


def is_free(port: int) -> bool:
    """Whether nobody listens on the port."""
    with socket.socket() as probe:
        return probe.connect_ex((HOST, port)) != 0


def stop_process(pid: int) -> None:
    """SIGTERM, and SIGKILL to its group if that does not help; only to a process that is Prefect's."""
    deadline = time.monotonic() + STOP_TIMEOUT_S
    with contextlib.suppress(ProcessLookupError):
        while is_prefect(pid):
            os.kill(pid, signal.SIGTERM)  # a worker may need a second one
            if time.monotonic() > deadline:
                os.killpg(pid, signal.SIGKILL)
            time.sleep(1.0)


def is_prefect(pid: int) -> bool:
    """Whether the process lives and is Prefect's: the number may be another's by now."""
    with contextlib.suppress(psutil.Error):
        return any("prefect" in word for word in psutil.Process(pid).cmdline())
    return False
