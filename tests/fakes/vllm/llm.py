"""The engine: steps, blocks and stat loggers.

Both drivers run in steps, as vLLM's do: each gives every sequence that decodes its next token, then begins waiting
prompts as far as max_num_seqs, max_num_batched_tokens and the blocks allow, all of one prompt at once, and tells the stat
loggers if the engine was asked for iteration details. A sequence keeps the blocks of its prompt and whole answer from the
start, so nothing is ever preempted.
"""

import json
import os
import time
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

from vllm.answers import Answers
from vllm.engine.arg_utils import EngineArgs
from vllm.faults import Faults
from vllm.sampling_params import SamplingParams


@dataclass
class _StatLoggers:
    stat_loggers: list = field(default_factory=list)


@dataclass(eq=False)
class _Sequence:
    request_id: str
    ids: list
    params: SamplingParams
    lora: object = None
    output: object = None  # what it will have said
    tokens_left: int = 1
    num_blocks: int = 0
    num_computed_tokens: int = 0


@dataclass
class _KVCacheManager:
    coordinator: SimpleNamespace
    usage: float = 0.0

    def allocate_slots(self, sequence):
        """Blocks are counted by the scheduler."""

    def free(self, sequence):
        """Blocks are counted by the scheduler."""


class _Scheduler:
    def __init__(self, args, num_blocks, block_size, manager):
        self.waiting = deque()
        self.running = []
        manager = type(manager, (SimpleNamespace,), {})(kv_cache_spec=None, block_size=block_size)
        coordinator = SimpleNamespace(enable_partial_hash_hits=False, single_type_managers=(manager,))
        self.kv_cache_manager = _KVCacheManager(coordinator)
        self._max_num_seqs = args.max_num_seqs or 256
        self._max_tokens = args.max_num_batched_tokens or 8192
        self._usable, self._block_size = num_blocks - 1, block_size

    def schedule(self):
        """The sequences that begin in this step, as `scheduled_new_reqs`; they run from here on."""
        begun, tokens = [], len(self.running)
        used = sum(each.num_blocks for each in self.running)
        while self.waiting and len(self.running) + len(begun) < self._max_num_seqs:
            each = self.waiting[0]
            each.num_blocks = -(-(len(each.ids) + each.tokens_left) // self._block_size)
            is_full = tokens + len(each.ids) > self._max_tokens or used + each.num_blocks > self._usable
            if (begun or self.running) and is_full:
                break
            tokens += len(each.ids)
            used += each.num_blocks
            self.kv_cache_manager.allocate_slots(each)
            begun.append(self.waiting.popleft())
        self.kv_cache_manager.usage = used / self._usable
        self.running += begun
        for each in self.running:
            each.num_computed_tokens += len(each.ids) if each in begun else 1
        return SimpleNamespace(scheduled_new_reqs=begun)

    def update_from_output(self):
        """The sequences that end in this step."""
        for each in self.running:
            each.tokens_left -= 1
        ended = [each for each in self.running if each.tokens_left <= 0]
        self.running = [each for each in self.running if each.tokens_left > 0]
        for each in ended:
            self.kv_cache_manager.free(each)
        return ended

    def get_request_counts(self):
        return len(self.running), len(self.waiting)


class LLM:
    def __init__(self, **keywords):
        args = EngineArgs(**keywords)
        told = json.loads(os.environ.get("FAKE_VLLM", "{}"))
        self._step_cost_s = told.get("step_cost_s", (0.0, 0.0, 0.0))
        self._faults = Faults(told, args.model)
        self._faults.start()
        if not (Path(args.model) / "config.json").exists():
            raise ValueError(f"no model in {args.model}")
        self._max_model_len = args.max_model_len
        block_size = told.get("block_size", args.block_size or 16)
        num_blocks = told.get("num_gpu_blocks", 4_000) * args.tensor_parallel_size
        self._is_call = False
        manager = told.get("cache_manager", "FullAttentionManager")
        self._scheduler = _Scheduler(args, num_blocks, block_size, manager)
        self._has_lora = args.enable_lora
        self._details = args.enable_logging_iteration_details
        self.llm_engine = SimpleNamespace(
            logger_manager=_StatLoggers(),
            engine_core=SimpleNamespace(engine_core=SimpleNamespace(scheduler=self._scheduler)),
            step=self._stream_step,
            add_request=self._add_request,
            add_lora=self._add_lora,
            vllm_config=_vllm_config(args, num_blocks, block_size, is_v2=told.get("v2", False)),
        )
        self._answers = Answers(told, args.model, self.llm_engine.logger_manager.stat_loggers)

    def generate(self, prompts, sampling_params, use_tqdm=True, lora_request=None):
        for prompt, params in zip(prompts, sampling_params, strict=True):
            self._check_length(prompt, params)
        self._faults.begin_batch([prompt["prompt_token_ids"] for prompt in prompts], sampling_params)
        self._answers.begin_call()
        self._is_call = True
        for number, (prompt, params) in enumerate(zip(prompts, sampling_params, strict=True)):
            self._enqueue(_Sequence(str(number), prompt["prompt_token_ids"], params, lora_request))
        finished = {}
        while self._scheduler.waiting or self._scheduler.running:
            finished |= {each.request_id: each for each in self.llm_engine.step()}
        self._is_call = False
        return self._faults.disturbed([finished[str(number)] for number in range(len(prompts))])

    def reset_prefix_cache(self):
        return True

    def _add_request(self, request_id, prompt, params, lora_request=None):
        if prompt.get("type") != "token":
            raise ValueError("raw prompts are deprecated: the engine takes what vllm.inputs makes")
        self._check_length(prompt, params)
        self._enqueue(_Sequence(request_id, prompt["prompt_token_ids"], params, lora_request))

    def _add_lora(self, lora_request):
        if not self._has_lora:
            raise RuntimeError("LoRA is not enabled")
        return (Path(lora_request.lora_path) / "adapter_model.safetensors").is_file()

    def _enqueue(self, sequence):
        sequence.output = self._answers.output(sequence.ids, sequence.params, sequence.lora)
        sequence.output.request_id, sequence.output.finished = sequence.request_id, True
        sequence.tokens_left = len(sequence.output.outputs[0].token_ids)
        self._scheduler.waiting.append(sequence)

    def _check_length(self, prompt, params):
        length = len(prompt["prompt_token_ids"])
        if length + params.max_tokens > self._max_model_len:
            raise ValueError(f"prompt of {length} tokens is longer than max_model_len {self._max_model_len}")

    def _stream_step(self):
        """The requests that end in this step."""
        scheduler = self._scheduler
        begun = scheduler.schedule().scheduled_new_reqs
        if begun and not self._is_call:
            self._faults.begin_batch([each.ids for each in begun], [each.params for each in begun])
        sequences, num_tokens = list(scheduler.running), sum(len(each.ids) for each in begun)
        num_decoding = len(sequences) - len(begun)
        details = SimpleNamespace(
            num_ctx_requests=len(begun),
            num_ctx_tokens=num_tokens,
            num_generation_requests=num_decoding,
            num_generation_tokens=num_decoding,
        )
        fixed_s, token_s, sequence_s = self._step_cost_s
        time.sleep(fixed_s + token_s * (num_tokens + num_decoding) + sequence_s * len(sequences))
        for each in sequences:
            if not self._is_call and each.output.metrics is not None:
                _note_time(each.output.metrics, is_first=each in begun)
        ended = scheduler.update_from_output()
        scheduler.kv_cache_manager.usage = 0.0  # one-token requests end in the step that schedules them
        stats = SimpleNamespace(iteration_details=details if self._details else None)
        for logger in self.llm_engine.logger_manager.stat_loggers:
            logger.record(stats, None)
        return [each.output for each in ended]


def _vllm_config(args, num_blocks, block_size, *, is_v2):
    return SimpleNamespace(
        use_v2_model_runner=is_v2,
        num_lookahead_tokens=0,
        max_concurrent_batches=1,
        cache_config=SimpleNamespace(
            num_gpu_blocks=num_blocks,
            block_size=block_size,
            enable_prefix_caching=args.enable_prefix_caching is not False,
        ),
        scheduler_config=SimpleNamespace(
            max_num_seqs=args.max_num_seqs or 256, max_num_batched_tokens=args.max_num_batched_tokens or 8192
        ),
        model_config=SimpleNamespace(max_model_len=args.max_model_len, dtype="float32"),
    )


def _note_time(metrics, is_first):
    """By the clock where prompts come and go; what is drawn for a call would lie in the future of those that follow."""
    now = time.monotonic()
    if is_first:
        metrics.scheduled_ts, metrics.first_token_ts = now, now
        metrics.first_token_latency = max(now - getattr(metrics, "queued_ts", now), 1e-6)
    metrics.last_token_ts = now
