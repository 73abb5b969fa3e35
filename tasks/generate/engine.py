"""The engine child: one process of ours that holds vLLM's offline `LLM` and answers batches over a pipe.

    night's loop  --  EngineProcess  ==pipe==>  serve()  --  vllm.LLM.generate

The child dies with its parent (PR_SET_PDEATHSIG), has its own session (so that Ctrl-C stays with the parent and its
group can be killed), keeps vLLM's core inside itself (VLLM_ENABLE_V1_MULTIPROCESSING=0) and writes to a log file.
The only module that imports vllm, and only inside the child. Knows nothing of windows, queries or runs.
"""

import contextlib
import ctypes
import difflib
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tasks.environment import STATE, checkout_path, engine_environment
from tasks.errors import ConfigError, EngineError, EngineLost, first_line
from tasks.generate.generations import BatchStats, EngineInfo, Generation, RequestTimes, latency
from tasks.generate.timeline import EngineStep, GapLogger, StepRecorder
from tasks.pack.batches import Batch
from tasks.pack.kv_budget import KVCacheLimits
from tasks.prompt.answer_forms import AnswerForm
from tasks.prompt.templates import THINK_END

if TYPE_CHECKING:  # the child needs no settings, and starts faster without
    from tasks.settings import Settings

logger = logging.getLogger(__name__)

PR_SET_PDEATHSIG = 1
POLL_S = 0.2
MIN_PART_TIMEOUT_S = 60.0  # a new engine compiles at its first batch
CLOSE_S = 10.0  # it ends in 0.1 s once its pipe is closed


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """How to start the child, and how long it may take."""

    keywords: Mapping[str, Any]  # of vllm.LLM
    environment: Mapping[str, str]
    log_path: Path
    start_timeout_s: float
    batch_timeout_s: float
    timeline: bool = False  # whether every step is recorded


def engine_options(settings: "Settings", scratch: Path, log_path: Path) -> EngineOptions:
    """How the settings start an engine, whose temporary files go to `scratch`."""
    folder = checkout_path(settings.engine.model)
    keywords = settings.engine_keywords() | ({"model": str(folder)} if folder.is_dir() else {})
    return EngineOptions(
        keywords=keywords,
        environment=engine_environment(STATE, scratch, model_is_folder=folder.is_dir()),
        log_path=log_path,
        start_timeout_s=settings.packing.start_timeout_s,
        batch_timeout_s=settings.packing.batch_timeout_s,
        timeline=settings.packing.timeline,
    )


@dataclass(frozen=True, slots=True)
class _Start:
    """How the child starts: the first message on the pipe."""

    keywords: dict[str, Any]
    timeline: bool


@dataclass(frozen=True, slots=True)
class _ResetPrefixCache:
    """Asks for an empty prefix cache; the reply is the same."""


@dataclass(frozen=True, slots=True)
class _Request:
    """A prompt on the pipe."""

    request_id: str
    prompt_token_ids: np.ndarray
    form: AnswerForm
    num_scored_tokens: int


@dataclass(frozen=True, slots=True)
class _Answer:
    """A finished request on the pipe."""

    request_id: str
    form: AnswerForm
    text: str
    finish_reason: str
    output_tokens: int
    cached_tokens: int
    logprobs: tuple[float | None, ...] | None
    scored_logprob: float | None
    times: RequestTimes | None
    num_preemptions: int


@dataclass(frozen=True, slots=True)
class _Answers:
    """A finished batch on the pipe."""

    answers: list[_Answer]
    engine_s: float
    itl_s: np.ndarray
    steps: list[EngineStep]


@dataclass(frozen=True, slots=True)
class _Refusal:
    """What went wrong in the child, in one line."""

    message: str
    is_config: bool


class EngineProcess:
    """The parent's side of one child."""

    def __init__(self, options: EngineOptions) -> None:
        if threading.current_thread() is not threading.main_thread():
            raise EngineError("the engine must be started from the main thread: its death signal is bound to it")
        self._options = options
        self._pipe, child_pipe = Pipe()
        options.log_path.parent.mkdir(parents=True, exist_ok=True)
        with options.log_path.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tasks.generate.engine", str(child_pipe.fileno()), str(os.getpid())],
                env={**os.environ, **options.environment},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=[child_pipe.fileno()],
                start_new_session=True,
            )
        child_pipe.close()

    def wait_until_ready(self) -> EngineInfo:
        """Loads the model and returns what the engine reported.

        Raises:
            ConfigError: vLLM does not know a key of [engine], or refuses its value.
            EngineError: it could not start.
        """
        self._send(_Start(dict(self._options.keywords), self._options.timeline))
        try:
            info = self._receive(self._options.start_timeout_s, "start")
        except EngineError as error:
            raise EngineError(
                f"{error} If it fails like this again, remove vLLM's caches, which a torn write may have damaged: "
                f"{self._options.environment['VLLM_CACHE_ROOT']}."
            ) from error
        assert isinstance(info, EngineInfo), type(info)
        self.info = info
        return info

    def generate(self, batch: Batch, meanwhile: Callable[[], None]) -> tuple[list[Generation], BatchStats]:
        """See `Engine.generate`."""
        submitted_at = datetime.now(UTC)
        self._send(
            [
                _Request(each.request_id, each.prompt_token_ids, each.form, each.num_scored_tokens)
                for each in batch.prompts
            ]
        )
        meanwhile()
        reply = self._receive(self._timeout_s(batch), f"batch of {len(batch.prompts)} prompts")
        assert isinstance(reply, _Answers), type(reply)
        stats = BatchStats(submitted_at, datetime.now(UTC), reply.engine_s, reply.itl_s, tuple(reply.steps))
        return [_generation(answer) for answer in reply.answers], stats

    def reset_prefix_cache(self) -> None:
        """Forgets every cached prefix, so that what comes next is not helped by what came before."""
        self._send(_ResetPrefixCache())
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
        if isinstance(reply, _Refusal):
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

    @property
    def info(self) -> EngineInfo:
        """See `Engine.info`; starts the engine if none runs."""
        return self._running().info

    def generate(self, batch: Batch, meanwhile: Callable[[], None]) -> tuple[list[Generation], BatchStats]:
        """See `Engine.generate`; a batch that an engine was lost with is asked again of a fresh one, a part is not."""
        tries = self._max_starts if batch.part_of is None else 1
        for number in range(1, tries + 1):
            process = self._running()
            try:
                return process.generate(batch, meanwhile)
            except EngineError as error:
                self.kill()
                if number == tries:
                    raise EngineLost(f"{error} It was asked {tries} times, each time of a fresh engine.") from error
                logger.warning("engine lost, starting another: %s", error)
        raise AssertionError("a batch is asked at least once")

    def reset_prefix_cache(self) -> None:
        """See `EngineProcess.reset_prefix_cache`; an engine that does not run yet has nothing to forget."""
        if self._process is not None:
            self._process.reset_prefix_cache()

    def close(self) -> None:
        """Ends the engine, if one runs."""
        if self._process is not None:
            self._process.close()
            self._process = None

    def kill(self) -> None:
        """Ends the engine now, if one runs."""
        if self._process is not None:
            self._process.kill()
            self._process = None

    def _running(self) -> EngineProcess:
        for number in range(1, self._max_starts + 1):
            if self._process is not None:
                break
            process = EngineProcess(self._options)
            try:
                self._on_ready(process.wait_until_ready())
            except EngineError as error:
                process.kill()
                if number == self._max_starts:
                    raise EngineError(f"{error} It was started {number} times; giving up.") from error
                logger.warning("engine did not start, starting another: %s", error)
            except BaseException:
                process.kill()
                raise
            else:
                self._process = process
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


def _generation(answer: _Answer) -> Generation:
    return Generation(
        request_id=answer.request_id,
        text=answer.text,
        finish_reason=answer.finish_reason,
        output_tokens=answer.output_tokens,
        cached_tokens=answer.cached_tokens,
        logprobs=answer.logprobs,
        scored_logprob=answer.scored_logprob,
        latency=latency(answer.times, answer.output_tokens),
        num_preemptions=answer.num_preemptions,
    )


# ---- the child ----------------------------------------------------------------------------------------------------


def serve(pipe: Connection) -> None:
    """Reads the engine's settings, then batches, until the pipe ends."""
    try:
        start: _Start = pipe.recv()
        llm = _build(start)
    except Exception as error:
        pipe.send(_refusal(error))
        return
    gaps, steps = GapLogger(), StepRecorder()
    llm.llm_engine.logger_manager.stat_loggers.append(gaps)
    if start.timeline:
        _watch_steps(llm, steps)
    pipe.send(_info(llm))
    while True:
        try:
            requests = pipe.recv()
        except EOFError:
            return
        try:
            if isinstance(requests, _ResetPrefixCache):
                llm.reset_prefix_cache()
                pipe.send(requests)
                continue
            pipe.send(_answer_batch(llm, requests, gaps, steps))
        except Exception as error:
            pipe.send(_Refusal(f"engine: {type(error).__name__}: {first_line(error)}", is_config=False))


def _build(start: _Start) -> Any:
    from vllm import LLM
    from vllm.engine.arg_utils import EngineArgs

    known = {field.name for field in fields(EngineArgs)}
    for key in start.keywords:
        if key not in known:
            close = difflib.get_close_matches(key, known, n=1)
            raise ConfigError(f"[engine] {key}: vLLM knows no such setting.{f' Is it {close[0]}?' if close else ''}")
    watched = {"enable_logging_iteration_details": True} if start.timeline else {}
    return LLM(**{"disable_log_stats": False, "use_tqdm_on_load": False, **watched, **start.keywords})


def _watch_steps(llm: Any, steps: StepRecorder) -> None:
    """Puts the recorder around the step, behind the scheduler and among the loggers; vLLM's core is in this process."""
    engine = llm.llm_engine
    scheduler = engine.engine_core.engine_core.scheduler
    usable, schedule = engine.vllm_config.cache_config.num_gpu_blocks - 1, scheduler.schedule

    def watched(*arguments: Any, **keywords: Any) -> Any:
        chosen = schedule(*arguments, **keywords)
        _, num_waiting = scheduler.get_request_counts()
        steps.scheduled(num_waiting, round(scheduler.kv_cache_manager.usage * usable))
        return chosen

    scheduler.schedule = watched
    engine.step = steps.timed(engine.step)
    engine.logger_manager.stat_loggers.append(steps)


def _refusal(error: Exception) -> _Refusal:
    if isinstance(error, ConfigError):
        return _Refusal(str(error), is_config=True)
    lines = " ".join(line.strip() for line in str(error).splitlines() if line.strip())
    message = f"engine: vLLM did not start: {type(error).__name__}: {lines[:600]}"
    return _Refusal(message, is_config=isinstance(error, TypeError | ValueError))


def _info(llm: Any) -> EngineInfo:
    """Reads the limits; their path has moved before (vLLM 0.32: llm_engine.vllm_config)."""
    from vllm.platforms import current_platform

    config = llm.llm_engine.vllm_config
    limits = KVCacheLimits(
        num_gpu_blocks=config.cache_config.num_gpu_blocks,
        block_size=config.cache_config.block_size,
        max_num_seqs=config.scheduler_config.max_num_seqs,
        max_num_batched_tokens=config.scheduler_config.max_num_batched_tokens,
        max_model_len=config.model_config.max_model_len,
        num_lookahead_tokens=config.num_lookahead_tokens,
        max_concurrency=config.cache_config.kv_cache_max_concurrency,
    )
    return EngineInfo(
        limits=limits,
        device=current_platform.get_device_name(),
        dtype=str(config.model_config.dtype).removeprefix("torch."),
        enable_prefix_caching=bool(config.cache_config.enable_prefix_caching),
    )


def _answer_batch(llm: Any, requests: Sequence[_Request], gaps: GapLogger, steps: StepRecorder) -> _Answers:
    ids = [request.prompt_token_ids.tolist() for request in requests]
    started = time.monotonic()
    outputs = _generate(llm, requests, ids, [_sampling_params(request) for request in requests])
    answers = [_answer(request, output) for request, output in zip(requests, outputs, strict=True)]
    closed = _close_by_force(llm, requests, ids, outputs)
    answers = [_joined(answer, closed.get(place)) for place, answer in enumerate(answers)]
    return _Answers(answers, time.monotonic() - started, gaps.take(), steps.take())


def _generate(llm: Any, requests: Sequence[_Request], ids: list[list[int]], params: list[Any]) -> list[Any]:
    """One output a prompt.

    Raises:
        EngineError: vLLM answered more, fewer or other prompts.
    """
    from vllm import TokensPrompt

    outputs: list[Any] = llm.generate([TokensPrompt(prompt_token_ids=each) for each in ids], params, use_tqdm=False)
    if len(outputs) != len(requests):
        raise EngineError(f"{len(outputs)} outputs for {len(requests)} prompts, first {requests[0].request_id}")
    for request, asked, output in zip(requests, ids, outputs, strict=True):
        if list(output.prompt_token_ids) != asked:
            raise EngineError(f"the output for {request.request_id} belongs to another prompt")
    return outputs


def _close_by_force(
    llm: Any, requests: Sequence[_Request], ids: list[list[int]], outputs: Sequence[Any]
) -> dict[int, _Answer]:
    """The answers behind think blocks that reached their budget, by place: asked again with the block closed."""
    places = [place for place, request in enumerate(requests) if _is_cut_in_thought(request, outputs[place])]
    if not places:
        return {}
    again = [
        _Request(
            request_id=requests[place].request_id,
            prompt_token_ids=np.array([*ids[place], *outputs[place].outputs[0].token_ids, *close.token_ids], np.int32),
            form=AnswerForm(close.max_tokens),
            num_scored_tokens=0,
        )
        for place in places
        if (close := requests[place].form.close) is not None
    ]
    prompts = [request.prompt_token_ids.tolist() for request in again]
    closed = _generate(llm, again, prompts, [_sampling_params(request) for request in again])
    return {place: _answer(*each) for place, each in zip(places, zip(again, closed, strict=True), strict=True)}


def _is_cut_in_thought(request: _Request, output: Any) -> bool:
    completion = output.outputs[0]
    return request.form.close is not None and completion.finish_reason == "length" and THINK_END not in completion.text


def _joined(answer: _Answer, closed: _Answer | None) -> _Answer:
    """A thought and the answer behind its forced close as one answer, of one sequence as it ended."""
    if closed is None:
        return answer
    close = answer.form.close
    assert close is not None, answer.request_id
    times = answer.times
    if times is not None and closed.times is not None:
        times = replace(times, last_token_ts=closed.times.last_token_ts)
    return replace(
        answer,
        text=answer.text + close.text + closed.text,
        finish_reason=closed.finish_reason,
        output_tokens=answer.output_tokens + len(close.token_ids) + closed.output_tokens,
        times=times,
        num_preemptions=answer.num_preemptions + closed.num_preemptions,
    )


def _sampling_params(request: _Request) -> Any:
    """Everything explicit: vLLM's defaults are temperature 1.0 and 16 tokens, or the model's generation_config."""
    from vllm import SamplingParams

    form = request.form
    return SamplingParams(
        n=1,
        temperature=0.0,
        top_p=1.0,
        top_k=0,
        min_p=0.0,
        presence_penalty=0.0,
        frequency_penalty=0.0,
        repetition_penalty=1.0,
        max_tokens=form.first_max_tokens,
        min_tokens=0,
        stop=list(form.stop),
        include_stop_str_in_output=True,
        logprob_token_ids=None if form.logprob_token_ids is None else list(form.logprob_token_ids),
        prompt_logprobs=0 if request.num_scored_tokens else None,
        flat_logprobs=True,
        detokenize=form.logprob_token_ids is None and not request.num_scored_tokens,
        skip_special_tokens=form.close is None,  # a think block may end with one
    )


def _answer(request: _Request, output: Any) -> _Answer:
    completion = output.outputs[0]
    logprobs = None
    if request.form.logprob_token_ids is not None:
        flat = completion.logprobs
        found = dict(zip(flat.token_ids, flat.logprobs, strict=True)) if flat is not None else {}
        logprobs = tuple(found.get(token_id) for token_id in request.form.logprob_token_ids)
    return _Answer(
        request_id=request.request_id,
        form=request.form,
        text=completion.text,
        finish_reason=str(completion.finish_reason),
        output_tokens=len(completion.token_ids),
        cached_tokens=output.num_cached_tokens or 0,
        logprobs=logprobs,
        scored_logprob=_scored_logprob(request, output),
        times=_times(output.metrics),
        num_preemptions=getattr(output.metrics, "num_preemptions", 0),
    )


def _scored_logprob(request: _Request, output: Any) -> float | None:
    """The sum over the prompt's last `num_scored_tokens` tokens; None where one is missing."""
    flat = output.prompt_logprobs
    if not request.num_scored_tokens or flat is None:
        return None
    total, ids = 0.0, request.prompt_token_ids
    for place in range(len(ids) - request.num_scored_tokens, len(ids)):
        span = slice(flat.start_indices[place], flat.end_indices[place])
        found = dict(zip(flat.token_ids[span], flat.logprobs[span], strict=True))
        if int(ids[place]) not in found:
            return None
        total += found[int(ids[place])]
    return total


def _times(metrics: Any) -> RequestTimes | None:
    """None where the engine gives no metrics, or not all of them (vllm#15394): never a lost batch."""
    names = [field.name for field in fields(RequestTimes)]
    values = [getattr(metrics, name, None) for name in names]
    known = [float(value) for value in values if value is not None]
    return RequestTimes(*known) if len(known) == len(names) else None


def main() -> None:
    """Entry point of the child: `python -m tasks.generate.engine PIPE_FD PARENT_PID`."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != int(sys.argv[2]):  # the parent died before the line above
        os._exit(1)
    from tasks.generate import engine  # records must unpickle as tasks.generate.engine, not as __main__

    with Connection(int(sys.argv[1])) as pipe:
        engine.serve(pipe)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # vLLM's own teardown takes 2.9 s; what it leaves behind lies in the run's TMPDIR


if __name__ == "__main__":
    main()
