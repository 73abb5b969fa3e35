"""The parent's side of the engine child: starts it, sends prompts, waits for answers, and replaces it when it is lost.

    night's loop  --  EngineProcess  ==pipe==>  engine.serve()  --  vllm.LLM

The child dies with its parent (PR_SET_PDEATHSIG), has its own session (so that Ctrl-C stays with the parent and its
group can be killed) and writes to a log file. Knows nothing of windows, queries or runs.
"""

import contextlib
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from multiprocessing import Pipe

import numpy as np

from tasks.decode.answer import Generation
from tasks.engine.batches import Batch
from tasks.engine.engine_options import EngineOptions
from tasks.engine.generations import Answered, BatchStats, EngineInfo
from tasks.engine.messages import Refusal, ResetPrefixCache, Start
from tasks.prompt.prompts import Prompt
from tasks.system.errors import ConfigError, EngineError, EngineLost

logger = logging.getLogger(__name__)
POLL_S = 0.2
MIN_PART_TIMEOUT_S = 60.0  # a new engine compiles at its first batch
CLOSE_S = 10.0  # it ends in 0.1 s once its pipe is closed


class EngineProcess:
    """The parent's side of one child, which loads the model from the first moment on."""

    def __init__(self, options: EngineOptions) -> None:
        if threading.current_thread() is not threading.main_thread():
            raise EngineError("the engine must be started from the main thread: its death signal is bound to it")
        self._options = options
        self._pipe, child_pipe = Pipe()
        options.log_path.parent.mkdir(parents=True, exist_ok=True)
        with options.log_path.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tasks.engine.child", str(child_pipe.fileno()), str(os.getpid())],
                env={**os.environ, **options.environment},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=[child_pipe.fileno()],
                start_new_session=True,
            )
        child_pipe.close()
        with contextlib.suppress(ConnectionError):  # it died at once: `wait_until_ready` says so
            self._pipe.send(
                Start(dict(options.keywords), options.driver, options.timeline, options.lora, options.draws)
            )
        self._info: EngineInfo | None = None

    @property
    def is_ready(self) -> bool:
        """Whether the model is loaded, and somebody waited for it."""
        return self._info is not None

    @property
    def info(self) -> EngineInfo:
        """What a ready engine reported."""
        assert self._info is not None, "not waited for"
        return self._info

    def wait_until_ready(self) -> EngineInfo:
        """Waits until the model is loaded, and returns what the engine reported.

        Raises:
            ConfigError: vLLM does not know a key of [engine], or refuses its value.
            EngineError: it could not start.
        """
        info = self._receive(self._options.start_timeout_s, "start")
        assert isinstance(info, EngineInfo), type(info)
        self._info = info
        return info

    def submit(self, prompts: Sequence[Prompt]) -> None:
        """See `Engine.submit`."""
        self._send(list(prompts))

    def collect(self, timeout_s: float | None = None) -> Answered:
        """See `Engine.collect`; nothing at all for `timeout_s`, or [packing] batch_timeout_s, is a hang."""
        reply = self._receive(timeout_s or self._options.batch_timeout_s, "batch")
        assert isinstance(reply, Answered), type(reply)
        return reply

    def generate(self, batch: Batch) -> tuple[list[Generation], BatchStats]:
        """See `Engine.generate`."""
        submitted_at = datetime.now(UTC)
        self.submit(batch.prompts)
        by_id: dict[str, Generation] = {}
        parts: list[Answered] = []
        while len(by_id) < len(batch.prompts):
            parts.append(self.collect(self._timeout_s(batch)))
            by_id |= {generation.request_id: generation for generation in parts[-1].generations}
        stats = BatchStats(
            submitted_at,
            datetime.now(UTC),
            sum(part.engine_s for part in parts),
            np.concatenate([part.itl_s for part in parts]),
            tuple(step for part in parts for step in part.steps),
        )
        return [by_id[prompt.request_id] for prompt in batch.prompts], stats

    def reset_prefix_cache(self) -> None:
        """Forgets every cached prefix, so that what comes next is not helped by what came before."""
        self._send(ResetPrefixCache())
        self._receive(self._options.batch_timeout_s, "reset of the prefix cache")

    def close(self) -> None:
        """Lets the child end by itself, and kills its group if it does not."""
        self._pipe.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(CLOSE_S)
        self.kill()

    def kill(self) -> None:
        """Ends the child and whatever it started, now."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def _timeout_s(self, batch: Batch) -> float:
        """A part of a lost batch gets its share of the time: all parts on the way to one prompt take three times it."""
        most = self._options.batch_timeout_s
        if batch.part_of is None:
            return most
        return min(most, max(MIN_PART_TIMEOUT_S, most * len(batch.prompts) / batch.part_of))

    def _receive(self, timeout_s: float, what: str) -> object:
        deadline = time.monotonic() + timeout_s
        while not self._pipe.poll(POLL_S):
            if self._process.poll() is not None and not self._pipe.poll(0):
                raise self._died(what)
            if time.monotonic() > deadline:
                self.kill()
                raise EngineError(
                    f"engine: no answer to a {what} within {timeout_s:.0f} s, so it was killed. See "
                    f"{self._options.log_path}; raise [packing] batch_timeout_s or start_timeout_s if it was only slow."
                )
        try:
            reply = self._pipe.recv()
        except (EOFError, ConnectionError) as error:
            raise self._died(what) from error
        if isinstance(reply, Refusal):
            raise ConfigError(reply.message) if reply.is_config else EngineError(reply.message)
        return reply

    def _send(self, message: object) -> None:
        try:
            self._pipe.send(message)
        except ConnectionError as error:  # it died since its last answer, while nobody waited for it
            raise self._died("wait for work") from error

    def _died(self, what: str) -> EngineError:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(1.0)
        return EngineError(
            f"engine: its process ended (exit status {self._process.poll()}) during a {what}. "
            f"See {self._options.log_path}."
        )


class EngineOnDemand:
    """An engine that starts when it is first needed, and again after a death or a hang."""

    def __init__(self, options: EngineOptions, max_starts: int, on_ready: Callable[[EngineInfo], None]) -> None:
        self._options = options
        self._max_starts = max_starts
        self._on_ready = on_ready
        self._process: EngineProcess | None = None

    def start(self) -> None:
        """Lets the model load while the caller does something else; `info` waits for it."""
        if self._process is None:
            self._process = EngineProcess(self._options)

    @property
    def info(self) -> EngineInfo:
        """See `Engine.info`; starts the engine if none runs."""
        return self._running().info

    def submit(self, prompts: Sequence[Prompt]) -> None:
        """See `Engine.submit`."""
        process = self._running()
        with self._kills_what_fails():
            process.submit(prompts)

    def collect(self) -> Answered:
        """See `Engine.collect`."""
        assert self._process is not None, "nothing was submitted"
        with self._kills_what_fails():
            return self._process.collect()

    def generate(self, batch: Batch, tries: int = 1) -> tuple[list[Generation], BatchStats]:
        """See `Engine.generate`; a batch that an engine was lost with is asked again of a fresh one, `tries` in all."""
        for number in range(1, tries + 1):
            process = self._running()
            try:
                with self._kills_what_fails():
                    return process.generate(batch)
            except EngineLost as error:
                if number == tries:
                    raise
                logger.warning("engine lost, starting another: %s", error)
        raise AssertionError("a batch is asked at least once")

    def reset_prefix_cache(self) -> None:
        """See `EngineProcess.reset_prefix_cache`; an engine that does not run yet has nothing to forget."""
        if self._process is not None and self._process.is_ready:
            self._process.reset_prefix_cache()

    def close(self) -> None:
        """Ends the engine, if one runs; one that nobody waited for at once."""
        if self._process is not None and self._process.is_ready:
            self._process.close()
            self._process = None
        self.kill()

    def kill(self) -> None:
        """Ends the engine now, if one runs."""
        if self._process is not None:
            self._process.kill()
            self._process = None

    @contextmanager
    def _kills_what_fails(self) -> Iterator[None]:
        try:
            yield
        except EngineError as error:
            self.kill()
            raise EngineLost(str(error)) from error

    def _running(self) -> EngineProcess:
        """The engine, ready. Every start after a failed one gets empty caches: a torn write may have damaged them."""
        caches = self._options.caches
        for number in range(1, self._max_starts + 1):
            if self._process is not None and self._process.is_ready:
                break
            self.start()
            assert self._process is not None
            try:
                self._on_ready(self._process.wait_until_ready())
                if number > 1:
                    logger.warning(
                        "engine started without the caches in %s: if this happens again, remove them", caches
                    )
            except EngineError as error:
                self.kill()
                if number == self._max_starts:
                    raise EngineError(f"{error} It was started {number} times; giving up.") from error
                logger.warning("engine did not start, starting another with empty caches: %s", error)
                self._options = self._options.with_empty_caches()
            except BaseException:
                self.kill()
                raise
        assert self._process is not None, self._max_starts
        return self._process


@contextmanager
def engine_on_demand(
    options: EngineOptions, max_starts: int, on_ready: Callable[[EngineInfo], None]
) -> Iterator[EngineOnDemand]:
    """Ended on the way out: gently after success, by a kill after any exception.

    Args:
        options: how to start it.
        max_starts: how often it is started for the same batch, and how often a start is tried.
        on_ready: told what each start reported; may refuse it by an exception.
    """
    engine = EngineOnDemand(options, max_starts, on_ready)
    try:
        yield engine
    except BaseException:
        engine.kill()
        raise
    engine.close()
