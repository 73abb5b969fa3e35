"""The engine child: vLLM's offline `LLM` in a process of ours, fed over a pipe by one of two drivers.

    generate   each message is one call of `LLM.generate`: a batch begins when the one before it has ended
    stream     `add_request` and `step`: prompts join whenever they come, and leave when they are answered

Keeps vLLM's core inside itself (VLLM_ENABLE_V1_MULTIPROCESSING=0). The only module that imports vllm, and only inside
the child. Knows nothing of batches, queries or runs.
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
from dataclasses import fields
from multiprocessing.connection import Connection
from typing import Any

from tasks.decode.answer import Generation
from tasks.engine.generations import Answered, EngineInfo
from tasks.engine.kv_cache import CHUNK, FULL, MAMBA, WINDOW, KVCacheGroup, KVCacheLimits
from tasks.engine.messages import Refusal, ResetPrefixCache, Start
from tasks.engine.step_stats import Filled, GapLogger, StepRecorder, Stopwatch
from tasks.engine.vllm_requests import (
    RequestOptions,
    answer_of,
    closing_request,
    is_cut_in_thought,
    joined_answer,
    require_same_prompt,
    sampling_params,
)
from tasks.prompt.prompts import Prompt
from tasks.system.errors import ConfigError, EngineError, first_line

PR_SET_PDEATHSIG = 1
VLLM_SERIES = "0.32"  # limits, stat loggers and the scheduler are read where this series has them


def serve(pipe: Connection) -> None:
    """Reads the engine's settings, then prompts, until the pipe ends."""
    try:
        start: Start = pipe.recv()
        llm = _build(start)
        options = _request_options(llm, start)
    except Exception as error:
        pipe.send(_refusal(error))
        return
    gaps, steps = GapLogger(), StepRecorder()
    llm.llm_engine.logger_manager.stat_loggers.append(gaps)
    if start.timeline:
        _watch_steps(llm, steps)
    pipe.send(_info(llm))
    driver = _Stream(llm, options) if start.driver == "stream" else _Calls(llm, options)
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
                pipe.send(Answered(answers, busy_s + time.monotonic() - started, gaps.take(), tuple(steps.take())))
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

    def __init__(self, llm: Any, options: RequestOptions) -> None:
        self._llm = llm
        self._request_options = options
        self._waiting: deque[Sequence[Prompt]] = deque()

    @property
    def is_busy(self) -> bool:
        return bool(self._waiting)

    def add(self, requests: Sequence[Prompt]) -> None:
        self._waiting.append(requests)

    def work(self) -> list[Generation]:
        return _answer_batch(self._llm, self._request_options, self._waiting.popleft())


class _Stream:
    """Driver `stream`: prompts join the engine whenever they come, each answer leaves in the step that ends it."""

    def __init__(self, llm: Any, options: RequestOptions) -> None:
        self._llm = llm
        self._request_options = options
        self._open: dict[str, Prompt] = {}
        self._thoughts: dict[str, tuple[Prompt, Generation]] = {}  # by the id of the call that closes them

    @property
    def is_busy(self) -> bool:
        return bool(self._open)

    def add(self, requests: Sequence[Prompt]) -> None:
        for request in requests:
            self._start(request)

    def work(self) -> list[Generation]:
        answers = [self._finish(output) for output in self._llm.llm_engine.step() if output.finished]
        return [answer for answer in answers if answer is not None]

    def _start(self, request: Prompt) -> None:
        from vllm.inputs import tokens_input
        from vllm.sampling_params import RequestOutputKind

        params = sampling_params(request, self._request_options)
        params.output_kind = RequestOutputKind.FINAL_ONLY
        self._open[request.request_id] = request
        prompt = tokens_input(request.prompt_token_ids.tolist())
        self._llm.llm_engine.add_request(request.request_id, prompt, params, lora_request=self._request_options.lora)

    def _finish(self, output: Any) -> Generation | None:
        """The answer; None where a thought has to be closed first.

        Raises:
            EngineError: vLLM answered another prompt.
        """
        request = self._open.pop(output.request_id, None)
        if request is None:
            raise EngineError(f"vLLM answered {output.request_id}, which was not asked or was already answered")
        require_same_prompt(request.request_id, request.prompt_token_ids.tolist(), output)
        answer = answer_of(request, output)
        if output.request_id in self._thoughts:
            return joined_answer(*self._thoughts.pop(output.request_id), answer)
        if is_cut_in_thought(request, output):
            closing = closing_request(request, output)
            self._thoughts[closing.request_id] = (request, answer)
            self._start(closing)
            return None
        return answer


def _build(start: Start) -> Any:
    from vllm import LLM, __version__
    from vllm.engine.arg_utils import EngineArgs
    from vllm.platforms import current_platform

    if not __version__.startswith(f"{VLLM_SERIES}."):
        raise ConfigError(
            f"engine: vLLM {__version__} is installed, but packrank supports only {VLLM_SERIES}. `make` installs it."
        )
    known = {field.name for field in fields(EngineArgs)}
    for key in start.keywords:
        if key not in known:
            close = difflib.get_close_matches(key, known, n=1)
            raise ConfigError(f"[engine] {key}: vLLM has no such setting.{f' Is it {close[0]}?' if close else ''}")
    watched = {"enable_logging_iteration_details": True} if start.timeline else {}
    keywords = {"disable_log_stats": False, "use_tqdm_on_load": False, **watched, **start.keywords}
    if not (start.draws and current_platform.is_cpu()):
        return LLM(**keywords)
    if keywords.get("enable_chunked_prefill"):
        raise ConfigError(
            "[engine] enable_chunked_prefill: true, but vLLM's CPU engine must prefill a sampled prompt whole. "
            "Leave the key out, or set [prompt] sampling = {temperature = 0.0}."
        )
    llm = LLM(**(keywords | {"enable_chunked_prefill": False}))
    _require_whole_prefills(llm)
    return llm


def _require_whole_prefills(llm: Any) -> None:
    """On a CPU no prompt that draws may be prefilled in parts: vLLM would end with "CPU Generator does not use offset".

    After each part but the last it winds back the request's seeded generator, which torch has for GPUs only
    (vllm/v1/worker/gpu_model_runner.py, `set_offset`). Prefills of models with Mamba layers always have parts.

    Raises:
        ConfigError: the model has such layers.
    """
    groups = cache_groups(llm.llm_engine.engine_core.engine_core.scheduler.kv_cache_manager.coordinator)
    if any(group.kind == MAMBA for group in groups):
        raise ConfigError(
            "[prompt] sampling: vLLM's CPU engine cannot sample with a seed for a model with Mamba or linear-attention "
            "layers. Set [prompt] sampling = {temperature = 0.0}, or use a GPU."
        )


def _request_options(llm: Any, start: Start) -> RequestOptions:
    """Loads the adapter, so that one that vLLM refuses is told before the first prompt."""
    lora = None
    if start.lora is not None:
        from vllm.lora.request import LoRARequest

        lora = LoRARequest("adapter", 1, start.lora)
        llm.llm_engine.add_lora(lora)
    return RequestOptions(lora, scores_chosen_rows=bool(llm.llm_engine.vllm_config.use_v2_model_runner))


def _watch_steps(llm: Any, steps: StepRecorder) -> None:
    """Puts the recorder around the step, behind the scheduler and among the loggers; vLLM's core is in this process."""
    engine = llm.llm_engine
    core = engine.engine_core.engine_core
    scheduler, blocks = core.scheduler, core.scheduler.kv_cache_manager
    usable, schedule = engine.vllm_config.cache_config.num_gpu_blocks - 1, steps.schedule.around(scheduler.schedule)

    def watched(*arguments: Any, **keywords: Any) -> Any:
        chosen = schedule(*arguments, **keywords)
        _, num_waiting = scheduler.get_request_counts()
        stored = sum(request.num_computed_tokens for request in scheduler.running)
        used = round(blocks.usage * usable)
        steps.scheduled(Filled(num_waiting, len(chosen.scheduled_new_reqs), stored, used))
        return chosen

    scheduler.schedule = watched
    scheduler.update_from_output = steps.update.around(scheduler.update_from_output)
    _time_calls(blocks, ("allocate_slots", "free"), steps.block_tables)
    if (rows := _worker_rows(core)) is not None:
        _time_calls(rows, ("add_row", "append_row", "clear_row", "move_row", "commit_block_table"), steps.block_tables)
    engine.step = steps.timed(engine.step)
    engine.logger_manager.stat_loggers.append(steps)


def _time_calls(owner: Any, names: Sequence[str], stopwatch: Stopwatch) -> None:
    """Those that there are: a timeline is there to be looked at, and ends no night."""
    for name in names:
        if (call := getattr(owner, name, None)) is not None:
            setattr(owner, name, stopwatch.around(call))


def _worker_rows(core: Any) -> Any:
    """The worker's rows of block ids (v1/worker/block_table.py); None where the worker is another process or runner."""
    found = core
    for name in ("model_executor", "driver_worker", "worker", "model_runner", "input_batch", "block_table"):
        found = getattr(found, name, None)
    return found


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
        groups=cache_groups(llm.llm_engine.engine_core.engine_core.scheduler.kv_cache_manager.coordinator),
        num_lookahead_tokens=config.num_lookahead_tokens,
        max_concurrent_batches=config.max_concurrent_batches,
    )
    return EngineInfo(
        limits=limits,
        device=current_platform.get_device_name(),
        dtype=str(config.model_config.dtype).removeprefix("torch."),
        enable_prefix_caching=bool(config.cache_config.enable_prefix_caching),
    )


def cache_groups(coordinator: Any) -> tuple[KVCacheGroup, ...]:
    """The cache groups of vLLM's KVCacheCoordinator: each has a manager, whose class decides what a sequence holds."""
    is_copied = coordinator.enable_partial_hash_hits  # a prefix hit inside a block copies it for a step
    return tuple(_cache_group(manager, int(is_copied)) for manager in coordinator.single_type_managers)


def _cache_group(manager: Any, extra_blocks: int) -> KVCacheGroup:
    name, spec = type(manager).__name__, manager.kv_cache_spec
    if name == "SlidingWindowManager":
        window_tokens = spec.sliding_window + spec.extra_retained_tokens
        return KVCacheGroup(WINDOW, manager.block_size, span_tokens=window_tokens, extra_blocks=extra_blocks)
    if name == "ChunkedLocalAttentionManager":
        chunk_tokens = spec.attention_chunk_size
        return KVCacheGroup(CHUNK, manager.block_size, span_tokens=chunk_tokens, extra_blocks=extra_blocks)
    if name == "MambaManager":
        extra_blocks += spec.num_speculative_blocks
        checkpoints = spec.num_prefill_checkpoint_blocks
        return KVCacheGroup(MAMBA, manager.block_size, num_checkpoints=checkpoints, extra_blocks=extra_blocks)
    kind = FULL if name == "FullAttentionManager" else name
    return KVCacheGroup(kind, manager.block_size, extra_blocks=extra_blocks)


def _answer_batch(llm: Any, options: RequestOptions, requests: Sequence[Prompt]) -> list[Generation]:
    outputs = _generate(llm, options, requests)
    answers = [answer_of(request, output) for request, output in zip(requests, outputs, strict=True)]
    for place, closed in _close_by_force(llm, options, requests, outputs).items():
        answers[place] = joined_answer(requests[place], answers[place], closed)
    return answers


def _generate(llm: Any, options: RequestOptions, requests: Sequence[Prompt]) -> list[Any]:
    """One output a prompt.

    Raises:
        EngineError: vLLM answered more, fewer or other prompts.
    """
    from vllm import TokensPrompt

    ids = [request.prompt_token_ids.tolist() for request in requests]
    prompts = [TokensPrompt(prompt_token_ids=each) for each in ids]
    params = [sampling_params(request, options) for request in requests]
    outputs: list[Any] = llm.generate(prompts, params, use_tqdm=False, lora_request=options.lora)
    if len(outputs) != len(requests):
        raise EngineError(f"{len(outputs)} outputs for {len(requests)} prompts, first {requests[0].request_id}")
    for request, asked, output in zip(requests, ids, outputs, strict=True):
        require_same_prompt(request.request_id, asked, output)
    return outputs


def _close_by_force(
    llm: Any, options: RequestOptions, requests: Sequence[Prompt], outputs: Sequence[Any]
) -> dict[int, Generation]:
    """The answers behind think blocks that reached their budget, by place: asked again with the block closed."""
    places = [place for place, request in enumerate(requests) if is_cut_in_thought(request, outputs[place])]
    if not places:
        return {}
    again = [closing_request(requests[place], outputs[place]) for place in places]
    closed = _generate(llm, options, again)
    return {place: answer_of(*each) for place, each in zip(places, zip(again, closed, strict=True), strict=True)}


def main() -> None:
    """Entry point of the child: `python -m tasks.engine.child PIPE_FD PARENT_PID`."""
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
