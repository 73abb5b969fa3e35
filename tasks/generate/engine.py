"""The engine child: vLLM's offline `LLM` in a process of ours, fed over a pipe by one of two drivers.

    generate   each message is one call of `LLM.generate`: a batch begins when the one before it has ended
    stream     `add_request` and `step`: prompts join whenever they come, and leave when they are answered

Keeps vLLM's core inside itself (VLLM_ENABLE_V1_MULTIPROCESSING=0). The only module that imports vllm, and only inside
the child. Knows nothing of batches, windows, queries or runs.
"""

import ctypes
import difflib
import os
import queue
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import fields, replace
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from tasks.errors import ConfigError, EngineError, first_line
from tasks.generate.generations import EngineInfo, RequestTimes
from tasks.generate.messages import Answer, Answers, Refusal, Request, ResetPrefixCache, Start
from tasks.generate.timeline import GapLogger, StepRecorder
from tasks.pack.kv_budget import KVCacheLimits
from tasks.prompt.answer_forms import AnswerForm
from tasks.prompt.templates import THINK_END

PR_SET_PDEATHSIG = 1


def serve(pipe: Connection) -> None:
    """Reads the engine's settings, then prompts, until the pipe ends."""
    try:
        start: Start = pipe.recv()
        llm = _build(start)
    except Exception as error:
        pipe.send(_refusal(error))
        return
    gaps, steps = GapLogger(), StepRecorder()
    llm.llm_engine.logger_manager.stat_loggers.append(gaps)
    if start.timeline:
        _watch_steps(llm, steps)
    pipe.send(_info(llm))
    driver = _Stream(llm) if start.driver == "stream" else _Calls(llm)
    inbox = _Inbox(pipe)
    busy_s = 0.0
    while True:
        try:
            message = inbox.take(wait=not driver.is_busy)
            started = time.monotonic()
            if message is _END:
                return
            if isinstance(message, ResetPrefixCache):
                llm.reset_prefix_cache()
                pipe.send(message)
            elif message is not None:
                driver.add(message)
            elif answers := driver.work():
                pipe.send(Answers(answers, busy_s + time.monotonic() - started, gaps.take(), steps.take()))
                busy_s = 0.0
                continue
            busy_s += time.monotonic() - started
        except Exception as error:
            pipe.send(Refusal(f"engine: {type(error).__name__}: {first_line(error)}", is_config=False))
            return


class _Inbox:
    """Reads the pipe ahead, in a thread: where both sides write at once, each would wait for the other to read."""

    def __init__(self, pipe: Connection) -> None:
        self._messages: queue.SimpleQueue[Any] = queue.SimpleQueue()
        threading.Thread(target=self._read, args=(pipe,), daemon=True).start()

    def take(self, *, wait: bool) -> Any:
        """The next message; None where there is none and nobody waits, `_END` where none will come."""
        try:
            return self._messages.get(block=wait)
        except queue.Empty:
            return None

    def _read(self, pipe: Connection) -> None:
        try:
            while True:
                self._messages.put(pipe.recv())
        except (EOFError, OSError):
            self._messages.put(_END)


_END = object()


class _Calls:
    """Driver `generate`: each message is one call of `LLM.generate`."""

    def __init__(self, llm: Any) -> None:
        self._llm = llm
        self._waiting: deque[Sequence[Request]] = deque()

    @property
    def is_busy(self) -> bool:
        return bool(self._waiting)

    def add(self, requests: Sequence[Request]) -> None:
        self._waiting.append(requests)

    def work(self) -> list[Answer]:
        return _answer_batch(self._llm, self._waiting.popleft())


class _Stream:
    """Driver `stream`: prompts join the engine whenever they come, each answer leaves in the step that ends it."""

    def __init__(self, llm: Any) -> None:
        self._llm = llm
        self._open: dict[str, Request] = {}
        self._thoughts: dict[str, tuple[Request, Answer]] = {}  # by the id of the call that closes them

    @property
    def is_busy(self) -> bool:
        return bool(self._open)

    def add(self, requests: Sequence[Request]) -> None:
        for request in requests:
            self._start(request)

    def work(self) -> list[Answer]:
        answers = [self._finish(output) for output in self._llm.llm_engine.step() if output.finished]
        return [answer for answer in answers if answer is not None]

    def _start(self, request: Request) -> None:
        from vllm import TokensPrompt
        from vllm.sampling_params import RequestOutputKind

        params = _sampling_params(request)
        params.output_kind = RequestOutputKind.FINAL_ONLY
        self._open[request.request_id] = request
        prompt = TokensPrompt(prompt_token_ids=request.prompt_token_ids.tolist())
        self._llm.llm_engine.add_request(request.request_id, prompt, params)

    def _finish(self, output: Any) -> Answer | None:
        """The answer; None where a thought has to be closed first.

        Raises:
            EngineError: vLLM answered another prompt.
        """
        request = self._open.pop(output.request_id, None)
        if request is None:
            raise EngineError(f"an output for {output.request_id}, which was not asked or was answered before")
        _require_same_prompt(request.request_id, request.prompt_token_ids.tolist(), output)
        answer = _answer(request, output)
        if output.request_id in self._thoughts:
            asked, thought = self._thoughts.pop(output.request_id)
            return replace(_joined(thought, answer), request_id=asked.request_id)
        if _is_cut_in_thought(request, output):
            closing = _closing(request, output)
            self._thoughts[closing.request_id] = (request, answer)
            self._start(closing)
            return None
        return answer


def _build(start: Start) -> Any:
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


def _refusal(error: Exception) -> Refusal:
    if isinstance(error, ConfigError):
        return Refusal(str(error), is_config=True)
    lines = " ".join(line.strip() for line in str(error).splitlines() if line.strip())
    message = f"engine: vLLM did not start: {type(error).__name__}: {lines[:600]}"
    return Refusal(message, is_config=isinstance(error, TypeError | ValueError))


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


def _answer_batch(llm: Any, requests: Sequence[Request]) -> list[Answer]:
    outputs = _generate(llm, requests)
    answers = [_answer(request, output) for request, output in zip(requests, outputs, strict=True)]
    closed = _close_by_force(llm, requests, outputs)
    return [_joined(answer, closed.get(place)) for place, answer in enumerate(answers)]


def _generate(llm: Any, requests: Sequence[Request]) -> list[Any]:
    """One output a prompt.

    Raises:
        EngineError: vLLM answered more, fewer or other prompts.
    """
    from vllm import TokensPrompt

    ids = [request.prompt_token_ids.tolist() for request in requests]
    prompts = [TokensPrompt(prompt_token_ids=each) for each in ids]
    outputs: list[Any] = llm.generate(prompts, [_sampling_params(request) for request in requests], use_tqdm=False)
    if len(outputs) != len(requests):
        raise EngineError(f"{len(outputs)} outputs for {len(requests)} prompts, first {requests[0].request_id}")
    for request, asked, output in zip(requests, ids, outputs, strict=True):
        _require_same_prompt(request.request_id, asked, output)
    return outputs


def _require_same_prompt(request_id: str, asked: list[int], output: Any) -> None:
    if list(output.prompt_token_ids) != asked:
        raise EngineError(f"the output for {request_id} belongs to another prompt")


def _close_by_force(llm: Any, requests: Sequence[Request], outputs: Sequence[Any]) -> dict[int, Answer]:
    """The answers behind think blocks that reached their budget, by place: asked again with the block closed."""
    places = [place for place, request in enumerate(requests) if _is_cut_in_thought(request, outputs[place])]
    if not places:
        return {}
    again = [_closing(requests[place], outputs[place]) for place in places]
    closed = _generate(llm, again)
    return {place: _answer(*each) for place, each in zip(places, zip(again, closed, strict=True), strict=True)}


def _closing(request: Request, output: Any) -> Request:
    """The prompt with its cut thought and the words that close it."""
    close = request.form.close
    assert close is not None, request.request_id
    parts = [request.prompt_token_ids, output.outputs[0].token_ids, close.token_ids]
    return Request(
        request_id=f"{request.request_id}/closed",
        prompt_token_ids=np.concatenate([np.asarray(part, np.int32) for part in parts]),
        form=AnswerForm(close.max_tokens),
        num_scored_tokens=0,
    )


def _is_cut_in_thought(request: Request, output: Any) -> bool:
    completion = output.outputs[0]
    return request.form.close is not None and completion.finish_reason == "length" and THINK_END not in completion.text


def _joined(answer: Answer, closed: Answer | None) -> Answer:
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


def _sampling_params(request: Request) -> Any:
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


def _answer(request: Request, output: Any) -> Answer:
    completion = output.outputs[0]
    logprobs = None
    if request.form.logprob_token_ids is not None:
        flat = completion.logprobs
        found = dict(zip(flat.token_ids, flat.logprobs, strict=True)) if flat is not None else {}
        logprobs = tuple(found.get(token_id) for token_id in request.form.logprob_token_ids)
    return Answer(
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


def _scored_logprob(request: Request, output: Any) -> float | None:
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
    with Connection(int(sys.argv[1])) as pipe:
        serve(pipe)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # vLLM's own teardown takes 2.9 s; what it leaves behind lies in the run's TMPDIR


if __name__ == "__main__":
    main()
