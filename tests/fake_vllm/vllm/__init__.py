"""A vLLM without a model: the same calls, answered at once and always the same way.

Put on PYTHONPATH before the real one, so that the engine child, its pipe and its death are the real code. An answer
depends on the prompt's token ids only, as a real model's would in float32. What else it does stands in FAKE_VLLM, a
JSON object in the environment:

    log            file to which every prompt is appended, one JSON line a request
    batch_s        seconds that a call takes
    start_error    what is raised while the model loads; each try adds a line to `log`.starts
    step_cost_s    [a, b, c]: every step takes a + b * tokens + c * sequences seconds, decoding steps included
    die_at         batch number (from 0, over all starts; counted in `log`.count) in which the process ends
    hang_at        batch number in which the call never returns
    die_on         the process ends when a prompt of a call has this text in it
    hang_on        the call never returns then
    fail_on        the call raises then
    metrics        false: RequestOutput.metrics is None; 'partial': it lacks a time
    metrics_log    file to which every request's metrics and gaps are appended, one JSON line each
    outputs        'reversed', 'short', 'long': what generate() returns
    answers        list of texts, by prompt number in turn, in place of the computed permutations
    thoughts       how many words of a think block come before an answer in a prompt that opened one
    max_concurrency, num_gpu_blocks, block_size

A batch is a call of `generate`; for those who use `add_request` and `step`, a step that begins new prompts.

Both run in steps, as vLLM's do: each gives every sequence that decodes its next token, then begins waiting prompts as far
as max_num_seqs, max_num_batched_tokens and the blocks allow, all of one prompt at once, and tells the stat loggers if the
engine was asked for iteration details. A sequence keeps the blocks of its prompt and whole answer from the start, so
nothing is ever preempted.
"""

import hashlib
import json
import os
import re
import time
from array import array
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

from tokenizers import Tokenizer

from vllm.engine.arg_utils import EngineArgs


@dataclass
class SamplingParams:
    n: int = 1
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    max_tokens: int | None = 16
    min_tokens: int = 0
    logprob_token_ids: list[int] | None = None
    flat_logprobs: bool = False
    detokenize: bool = True
    stop: list[str] | None = None
    include_stop_str_in_output: bool = False
    prompt_logprobs: int | None = None
    skip_special_tokens: bool = True
    output_kind: object = None


def TokensPrompt(prompt_token_ids):
    return {"prompt_token_ids": prompt_token_ids}


@dataclass
class _StatLoggers:
    stat_loggers: list = field(default_factory=list)


@dataclass(eq=False)
class _Sequence:
    request_id: str
    ids: list
    params: SamplingParams
    output: object = None  # what it will have said
    tokens_left: int = 1
    num_blocks: int = 0


class _Scheduler:
    def __init__(self, args, num_blocks, block_size):
        self.waiting = deque()
        self.running = []
        self.kv_cache_manager = SimpleNamespace(usage=0.0)
        self._max_num_seqs = args.max_num_seqs or 256
        self._max_tokens = args.max_num_batched_tokens or 8192
        self._usable, self._block_size = num_blocks - 1, block_size

    def schedule(self):
        """The sequences that begin in this step."""
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
            begun.append(self.waiting.popleft())
        self.kv_cache_manager.usage = used / self._usable
        return begun

    def get_request_counts(self):
        return len(self.running), len(self.waiting)


class LLM:
    def __init__(self, **keywords):
        args = EngineArgs(**keywords)
        self._told = json.loads(os.environ.get("FAKE_VLLM", "{}"))
        if "start_error" in self._told:
            with open(self._told["log"] + ".starts", "a", encoding="utf-8") as stream:
                stream.write("tried\n")
            raise RuntimeError(self._told["start_error"])
        if not (Path(args.model) / "config.json").exists():
            raise ValueError(f"no model in {args.model}")
        self._tokenizer = Tokenizer.from_file(str(Path(args.model) / "tokenizer.json"))
        self._max_model_len = args.max_model_len
        block_size = self._told.get("block_size", args.block_size or 16)
        num_blocks = self._told.get("num_gpu_blocks", 4_000) * args.tensor_parallel_size
        concurrency = num_blocks / -(-args.max_model_len // block_size)
        self._last_ts = self._latest_ts = 0.0
        self._is_call = False
        self._scheduler = _Scheduler(args, num_blocks, block_size)
        self._details = args.enable_logging_iteration_details
        self.llm_engine = SimpleNamespace(
            logger_manager=_StatLoggers(),
            engine_core=SimpleNamespace(engine_core=SimpleNamespace(scheduler=self._scheduler)),
            step=self._stream_step,
            add_request=self._add_request,
            vllm_config=SimpleNamespace(
                num_lookahead_tokens=0,
                cache_config=SimpleNamespace(
                    num_gpu_blocks=num_blocks,
                    block_size=block_size,
                    kv_cache_max_concurrency=self._told.get("max_concurrency", concurrency),
                    enable_prefix_caching=args.enable_prefix_caching is not False,
                ),
                scheduler_config=SimpleNamespace(
                    max_num_seqs=args.max_num_seqs or 256, max_num_batched_tokens=args.max_num_batched_tokens or 8192
                ),
                model_config=SimpleNamespace(max_model_len=args.max_model_len, dtype="float32"),
            ),
        )

    def generate(self, prompts, sampling_params, use_tqdm=True):
        for prompt, params in zip(prompts, sampling_params, strict=True):
            self._check_length(prompt, params)
        self._begin_batch(prompts, sampling_params)
        self._last_ts = self._latest_ts
        self._is_call = True
        for number, (prompt, params) in enumerate(zip(prompts, sampling_params, strict=True)):
            self._enqueue(_Sequence(str(number), prompt["prompt_token_ids"], params))
        finished = {}
        while self._scheduler.waiting or self._scheduler.running:
            finished |= {each.request_id: each for each in self.llm_engine.step()}
        self._is_call = False
        return self._disturbed([finished[str(number)] for number in range(len(prompts))])

    def _add_request(self, request_id, prompt, params):
        self._check_length(prompt, params)
        self._enqueue(_Sequence(request_id, prompt["prompt_token_ids"], params))

    def _enqueue(self, sequence):
        sequence.output = self._output(sequence.ids, sequence.params)
        sequence.output.request_id, sequence.output.finished = sequence.request_id, True
        sequence.tokens_left = len(sequence.output.outputs[0].token_ids)
        self._scheduler.waiting.append(sequence)

    def _check_length(self, prompt, params):
        length = len(prompt["prompt_token_ids"])
        if length + params.max_tokens > self._max_model_len:
            raise ValueError(f"prompt of {length} tokens is longer than max_model_len {self._max_model_len}")

    def _begin_batch(self, prompts, sampling_params):
        batch_no = self._count_batch()
        if batch_no is not None and self._told.get("die_at") == batch_no:
            os._exit(9)
        if batch_no is not None and self._told.get("hang_at") == batch_no:
            time.sleep(3600)
        self._meet_poison(prompts)
        if "batch_s" in self._told:
            time.sleep(self._told["batch_s"])
        self._log(prompts, sampling_params, batch_no)

    def _meet_poison(self, prompts):
        kinds = [kind for kind in ("die_on", "hang_on", "fail_on") if kind in self._told]
        texts = [self._tokenizer.decode(prompt["prompt_token_ids"]) for prompt in prompts] if kinds else []
        for kind in kinds:
            if any(self._told[kind] in text for text in texts):
                if kind == "die_on":
                    os._exit(9)
                if kind == "hang_on":
                    time.sleep(3600)
                raise RuntimeError("a kernel failed")

    def reset_prefix_cache(self):
        return True

    def _stream_step(self):
        """The requests that end in this step."""
        scheduler = self._scheduler
        begun = scheduler.schedule()
        if begun and not self._is_call:
            self._begin_batch([{"prompt_token_ids": each.ids} for each in begun], [each.params for each in begun])
        decoding, num_tokens = scheduler.running, sum(len(each.ids) for each in begun)
        details = SimpleNamespace(
            num_ctx_requests=len(begun),
            num_ctx_tokens=num_tokens,
            num_generation_requests=len(decoding),
            num_generation_tokens=len(decoding),
        )
        fixed_s, token_s, sequence_s = self._told.get("step_cost_s", (0.0, 0.0, 0.0))
        sequences = decoding + begun
        time.sleep(fixed_s + token_s * (num_tokens + len(decoding)) + sequence_s * len(sequences))
        for each in sequences:
            each.tokens_left -= 1
            if not self._is_call and each.output.metrics is not None:
                self._note_time(each.output.metrics, is_first=each in begun)
        scheduler.running = [each for each in sequences if each.tokens_left > 0]
        scheduler.kv_cache_manager.usage = 0.0  # one-token requests end in the step that schedules them
        stats = SimpleNamespace(iteration_details=details if self._details else None)
        for logger in self.llm_engine.logger_manager.stat_loggers:
            logger.record(stats, None)
        return [each.output for each in sequences if each.tokens_left <= 0]

    def _output(self, ids, params):
        text, logprobs, num_tokens, token_ids, gaps = "", None, 1, None, []
        seed = _seed(ids)
        if params.logprob_token_ids is not None:
            logprobs = SimpleNamespace(
                token_ids=[0, *params.logprob_token_ids],
                logprobs=[-0.1, *(-1.0 - 8.0 * _draw(seed, token_id) for token_id in params.logprob_token_ids)],
            )
        elif params.max_tokens > 1:
            text = self._stopped(self._permutation(ids, seed), params.stop or [])
            tokens = self._tokenizer.encode(text, add_special_tokens=False).ids
            is_cut = len(tokens) > params.max_tokens
            token_ids = tokens[: params.max_tokens]
            text, num_tokens = self._tokenizer.decode(token_ids, skip_special_tokens=False), len(token_ids)
            gaps = [0.002 + 0.02 * _draw(seed, f"gap{number}") for number in range(num_tokens - 1)]
            for logger in self.llm_engine.logger_manager.stat_loggers:
                logger.record(None, SimpleNamespace(inter_token_latencies_iter=gaps))
        metrics = self._metrics(seed, gaps)
        if self._told.get("metrics") == "partial":
            del metrics.queued_ts
        return SimpleNamespace(
            prompt_token_ids=ids,
            outputs=[
                SimpleNamespace(
                    text=text,
                    token_ids=[0] if token_ids is None else token_ids,
                    finish_reason="length" if token_ids is None or is_cut else "stop",
                    logprobs=logprobs,
                )
            ],
            prompt_logprobs=None if params.prompt_logprobs is None else self._prompt_logprobs(ids, seed),
            metrics=metrics if self._told.get("metrics", True) else None,
            num_cached_tokens=0,
        )

    def _permutation(self, ids, seed):
        if "answers" in self._told:
            answers = self._told["answers"]
            return answers[int(_draw(seed, 0) * len(answers))]
        prompt = self._tokenizer.decode(ids, skip_special_tokens=False)
        names = re.findall(r"^\[(\w+)\] ", prompt, re.MULTILINE)
        order = " > ".join(f"[{name}]" for name in sorted(names, key=lambda name: _draw(seed, name)))
        if prompt.rfind("<think>") <= prompt.rfind("</think>"):
            return order
        return " hmm" * self._told.get("thoughts", 3) + f"</think><answer>{order}</answer>"

    def _metrics(self, seed, gaps):
        """Vllm's clocks of one request: `*_ts` monotonic, the first token's latency by wall clock."""
        queued = max(time.monotonic(), self._last_ts)  # requests of a later call come later
        scheduled = queued + 0.1 * _draw(seed, "queue")
        first = scheduled + 0.3 * _draw(seed, "prefill")
        metrics = {
            "queued_ts": queued,
            "scheduled_ts": scheduled,
            "first_token_ts": first,
            "last_token_ts": first + sum(gaps),
            "first_token_latency": first - queued + 0.01,
            "num_preemptions": 0,
        }
        self._latest_ts = max(self._latest_ts, metrics["last_token_ts"])
        if "metrics_log" in self._told:
            with open(self._told["metrics_log"], "a", encoding="utf-8") as stream:
                stream.write(json.dumps(metrics | {"num_tokens": len(gaps) + 1, "gaps": gaps}) + "\n")
        return SimpleNamespace(**metrics)

    def _note_time(self, metrics, is_first):
        """By the clock where prompts come and go; what is drawn for a call would lie in the future of those that follow."""
        now = time.monotonic()
        if is_first:
            metrics.scheduled_ts, metrics.first_token_ts = now, now
            metrics.first_token_latency = max(now - getattr(metrics, "queued_ts", now), 1e-6)
        metrics.last_token_ts = now

    def _stopped(self, text, stop):
        ends = [text.index(each) + len(each) for each in stop if each in text]
        return text[: min(ends)] if ends else text

    def _prompt_logprobs(self, ids, seed):
        """One value a token, as vLLM's FlatLogprobs has them; the first has none."""
        places = range(len(ids))
        return SimpleNamespace(
            start_indices=[max(place - 1, 0) for place in places],
            end_indices=list(places),
            token_ids=list(ids[1:]),
            logprobs=[-8.0 * _draw(seed, place) for place in places[1:]],
        )

    def _count_batch(self):
        if "log" not in self._told:
            return None
        path = Path(self._told["log"] + ".count")
        number = int(path.read_text()) if path.exists() else 0
        aside = path.with_suffix(".part")
        aside.write_text(str(number + 1))
        aside.replace(path)  # whole at any moment: soak tests kill this process
        return number

    def _log(self, prompts, sampling_params, batch_no):
        if "log" in self._told:
            with open(self._told["log"], "a", encoding="utf-8") as stream:
                for prompt, params in zip(prompts, sampling_params, strict=True):
                    line = {"batch": batch_no, "ids": prompt["prompt_token_ids"], "params": vars(params)}
                    stream.write(json.dumps(line) + "\n")

    def _disturbed(self, outputs):
        return {
            "reversed": outputs[::-1],
            "short": outputs[:-1],
            "long": [*outputs, outputs[-1]],
        }.get(self._told.get("outputs"), outputs)


def _seed(ids):
    """Stands for the prompt: its ids are many, and drawn from often."""
    return hashlib.blake2b(array("q", ids).tobytes(), digest_size=16).digest()


def _draw(seed, salt):
    """A number in [0, 1) that depends on the prompt and the salt alone."""
    drawn = hashlib.blake2b(seed + f"|{salt}".encode(), digest_size=6)
    return int.from_bytes(drawn.digest(), "big") / 2**48
