"""Starts of a night that end by SIGKILL at a given moment: each a process of its own, forked from one that has imported
everything, so that a start's life is the night's and not Python's.

    test  --  Starter  ==pipes==>  python -m tests.soak.starts  --fork-->  one start  --spawn-->  its engine child

A step is what the start does with a file of its folder, as Python's audit events tell it (a folder made, a batch
renamed), or an SQL statement that is about to run. Steps are the same every time, so a moment named by a step can be
had again.
"""

import contextlib
import ctypes
import json
import os
import re
import select
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path
from types import ModuleType

import pyarrow as pa

from tasks.system.database import Database
from tests.makers import FAKE_VLLM, ROOT
from tests.soak.moments import PHASES, Moment

EVENTS = frozenset(
    {"open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.scandir", "shutil.rmtree", "subprocess.Popen"}
)
NIGHT = date(2026, 11, 29)


@dataclass(frozen=True, slots=True)
class Told:
    """What a start is told."""

    folder: str  # of the night: steps are those of its files
    config: str
    publish: bool
    environment: dict[str, str]
    log: str
    steps: str | None  # file for the steps' names, written when it ends by itself
    moment: dict[str, object] | None  # only one at a step: the start kills itself there


@dataclass(frozen=True, slots=True)
class Ended:
    """How a start ended."""

    was_killed: bool
    exit_code: int | None  # None: killed
    life_s: float


class Starter:
    """The parent of all starts of a test."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.soak.starts"],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
        )
        assert self._process.stdout.readline() == b"ready\n"

    def begin(
        self,
        folder: Path,
        *,
        publish: bool,
        fake: Mapping[str, object] | None,
        moment: Moment | None = None,
        steps: Path | None = None,
    ) -> None:
        """Starts the night of the folder's nightly.toml.

        Args:
            folder: the night's.
            publish: whether it is to be published.
            fake: what the fake engine is told; the real one if not given.
            moment: at which step it kills itself, if at one.
            steps: file for the steps' names.
        """
        environment = {} if fake is None else {"PYTHONPATH": str(FAKE_VLLM), "FAKE_VLLM": json.dumps(fake)}
        at_step = None if moment is None or moment.phase is None else asdict(moment)
        told = Told(
            folder=str(folder),
            config=str(folder / "nightly.toml"),
            publish=publish,
            environment=environment,
            log=str(folder / "start.log"),
            steps=None if steps is None else str(steps),
            moment=at_step,
        )
        self._begun_at = time.monotonic()
        self._process.stdin.write(json.dumps(asdict(told)).encode() + b"\n")
        self._pid = int(self._process.stdout.readline())

    def has_ended(self, within_s: float) -> bool:
        """Waits so long for the start to end by itself."""
        return bool(select.select([self._process.stdout], [], [], within_s)[0])

    def kill(self) -> None:
        """Kills the start, unless it has just ended."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._pid, signal.SIGKILL)

    def end(self, timeout_s: float = 900.0) -> Ended:
        """Waits until the start has ended."""
        assert self.has_ended(timeout_s), f"a start does not end within {timeout_s} s"
        status = int(self._process.stdout.readline())
        life_s = time.monotonic() - self._begun_at
        if os.WIFSIGNALED(status):
            assert os.WTERMSIG(status) == signal.SIGKILL, status
            return Ended(was_killed=True, exit_code=None, life_s=life_s)
        return Ended(was_killed=False, exit_code=os.WEXITSTATUS(status), life_s=life_s)

    def close(self) -> None:
        """Ends the parent of starts."""
        self._process.kill()
        self._process.wait()
        self._process.stdin.close()
        self._process.stdout.close()


class Steps:
    """Counts a start's steps, and kills the process at one of them."""

    def __init__(self, folder: str, moment: Moment | None) -> None:
        self.names: list[str] = []
        self._folder = folder
        self._moment = moment
        self._pattern = None if moment is None or moment.phase is None else re.compile(PHASES[moment.phase])
        self._left = 0 if moment is None else moment.number

    def __call__(self, event: str, arguments: tuple[object, ...]) -> None:
        """Python calls it at every audited event."""
        if event not in EVENTS or not isinstance(arguments[0], str | bytes | os.PathLike):
            return
        path = os.fsdecode(arguments[0])
        if event == "subprocess.Popen":
            path = Path(path).name
        elif path.startswith(self._folder):
            path = path.removeprefix(self._folder)
        elif path.startswith("/"):
            return
        self._tell(f"{event} {path}")

    def watch(self, database: ModuleType) -> None:
        """Counts what `tasks.system.database` runs as well: no audit event tells that, since files of SQL are read once."""
        read_sql, append = database.read_sql, database.Database.append

        def tell_and_read(name: str) -> str:
            self._tell(f"statement {name}")
            return read_sql(name)

        def tell_and_append(opened: Database, table: str, rows: pa.Table) -> None:
            self._tell(f"append {table}")
            append(opened, table, rows)

        database.read_sql, database.Database.append = tell_and_read, tell_and_append

    def _tell(self, name: str) -> None:
        self.names.append(name)
        if self._pattern is not None and self._pattern.search(self.names[-1]):
            if self._left == 0:
                self._kill()
            self._left -= 1

    def _kill(self) -> None:
        os.write(2, f"to be killed {self._moment.after_s:.4f} s after {self.names[-1]}\n".encode())
        if self._moment.after_s:
            threading.Timer(self._moment.after_s, os.kill, (os.getpid(), signal.SIGKILL)).start()
        else:
            os.kill(os.getpid(), signal.SIGKILL)


def run(told: Told) -> int:
    """One start, in its own process; returns the exit code that the command would have."""
    import logging

    from tasks.engine.child import PR_SET_PDEATHSIG
    from tasks.nightly.night import run_night
    from tasks.nightly.prepare import NightRequest, prepare_night
    from tasks.system import database
    from tasks.system.errors import PackrankError

    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # a test that fails leaves nothing running either
    os.environ.update(told.environment)
    log = os.open(told.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for descriptor in (1, 2):
        os.dup2(log, descriptor)
    logging.basicConfig(level=logging.INFO)
    steps = Steps(told.folder, Moment(**told.moment) if told.moment else None)
    sys.addaudithook(steps)
    steps.watch(database)
    try:
        run_night(prepare_night(NightRequest(config=Path(told.config), night=NIGHT, publish=told.publish)))
        code = 0
    except PackrankError as error:
        print(f"packrank: {error}", file=sys.stderr)
        code = error.exit_code
    except BaseException:
        traceback.print_exc()
        code = 70
    assert not {"torch", "vllm", "prefect"} & sys.modules.keys(), "heavy imports outside the engine child"
    if told.steps is not None:
        Path(told.steps).write_text("\n".join(steps.names), encoding="utf-8")
    return code


def main() -> None:
    """Forks one start a line of stdin; tells its process id, then its status."""
    import pandas  # noqa: F401
    from transformers.utils.chat_template_utils import render_jinja_template  # noqa: F401

    import tasks.evaluation.evaluate
    import tasks.nightly.night  # noqa: F401

    print("ready", flush=True)
    while line := sys.stdin.readline():
        child = os.fork()
        if child == 0:
            code = 70
            try:
                code = run(Told(**json.loads(line)))
            finally:
                sys.stderr.flush()
                os._exit(code)
        print(child, flush=True)
        _, status = os.waitpid(child, 0)
        print(status, flush=True)


if __name__ == "__main__":
    main()
