"""What a worker starts for a flow run: a parent of the flow's own process, which outlives this parent and the worker.

    worker --> this parent (`python -m flows.flow_process`) --> `python -m prefect.engine`, in a session of its own

A worker kills what it started when it is told to stop, and when its server has been away for a quarter of an hour
(Prefect 3.7.7, workers/process.py): that is this parent, and the night goes on. SIGTERM, by which a worker cancels,
is passed on; how the flow's process ends, this one ends. Its output goes to a file, since nobody may be left to read
a pipe. Knows nothing of flows' contents, and imports nothing that takes time.
"""

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from tasks.system.environment import prefect_environment

GRACE_S = 25.0  # the worker waits 30 s after SIGTERM, then it kills this parent only
KEPT_LOGS = 50


def log_folder() -> Path:
    """Where flow runs' output goes."""
    return Path(os.environ.get("PREFECT_HOME") or prefect_environment()["PREFECT_HOME"]) / "flow-runs"


def main() -> None:
    """Entry point: PREFECT__FLOW_RUN_ID names the flow run, as for Prefect's own command."""
    with _open_log() as log:
        flow = subprocess.Popen(
            [sys.executable, "-m", "prefect.engine"], stdout=log, stderr=log, stdin=subprocess.DEVNULL,
            start_new_session=True,
        )  # fmt: skip
    signal.signal(signal.SIGTERM, lambda *_: _tell_to_stop(flow))
    signal.signal(signal.SIGALRM, lambda *_: flow.kill())
    code = flow.wait()
    if code < 0:  # by a signal: so does this one, and the worker says Crashed
        with suppress(OSError):  # SIGKILL has no other
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    raise SystemExit(code)


def _tell_to_stop(flow: "subprocess.Popen[bytes]") -> None:
    with suppress(ProcessLookupError):
        flow.send_signal(signal.SIGTERM)
    signal.alarm(int(GRACE_S))


def _open_log() -> BinaryIO:
    folder = log_folder()
    folder.mkdir(parents=True, exist_ok=True)
    logs = sorted(folder.glob("*.log"), key=lambda path: path.stat().st_mtime)
    for path in logs[: -KEPT_LOGS + 1]:
        path.unlink(missing_ok=True)
    return (folder / f"{os.environ['PREFECT__FLOW_RUN_ID']}.log").open("ab")


if __name__ == "__main__":
    main()
