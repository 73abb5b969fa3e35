"""vLLM's own scheduler and KV-cache manager, stepped without weights: what a sequence holds of each layout.

    python -m tests.engine.vllm_scheduler MODEL LAYOUT ...    # prints two JSON objects a layout

MODEL is any folder of a model: its config.json is read, its weights are not. A process of its own, since vLLM takes seconds to
import and changes the process that does.
"""

import json
import random
import sys
from dataclasses import dataclass

import torch
from vllm.config import CacheConfig, ModelConfig, SchedulerConfig, VllmConfig
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash, resolve_kv_cache_block_sizes
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import (
    ChunkedLocalAttentionSpec,
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    MambaSpec,
    MLAAttentionSpec,
    SlidingWindowMLASpec,
    SlidingWindowSpec,
)
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request
from vllm.v1.structured_output import StructuredOutputManager

from tasks.engine.child import cache_groups
from tasks.engine.kv_cache import KVCacheLimits, batch_budget

MAX_MODEL_LEN = 2048
MAX_PROMPT_TOKENS, MAX_TOKENS = 1000, 100
HEAD = {"num_kv_heads": 1, "head_size": 16, "dtype": torch.bfloat16}


def attention(block_size):
    return FullAttentionSpec(block_size=block_size, **HEAD)


def window(window_tokens):
    return SlidingWindowSpec(block_size=16, sliding_window=window_tokens, **HEAD)


def chunk(chunk_tokens):
    return ChunkedLocalAttentionSpec(block_size=16, attention_chunk_size=chunk_tokens, **HEAD)


def mamba(block_size, mode="align", checkpoints=0):
    return MambaSpec(
        block_size=block_size,
        shapes=((4,),),
        dtypes=(torch.float32,),
        mamba_cache_mode=mode,
        num_prefill_checkpoint_blocks=checkpoints,
        prefill_checkpoint_alignment=1 if checkpoints else None,
    )


@dataclass(frozen=True)
class Layout:
    """A model's cache groups, and what of its engine's settings they hang on."""

    specs: list
    caching: bool = True
    match_unit: int | None = None


LAYOUTS = {
    "full attention": Layout([attention(16)]),
    "MLA": Layout([MLAAttentionSpec(block_size=16, **HEAD)]),
    "window": Layout([window(256)]),
    "window MLA": Layout([SlidingWindowMLASpec(block_size=16, sliding_window=128, **HEAD), attention(16)]),
    "Gemma 3": Layout([window(256)] * 3 + [attention(16)]),
    "gpt-oss": Layout([window(128), attention(16)]),
    "Llama 4": Layout([chunk(512)] * 3 + [attention(16)]),
    "odd window and chunk": Layout([window(250), chunk(500), attention(16)]),
    "Qwen3-Next": Layout([mamba(64)] * 3 + [attention(64)]),
    "Qwen3-Next, no prefix cache": Layout([mamba(MAX_MODEL_LEN, "none")] * 3 + [attention(64)], caching=False),
    "Mamba 2 with checkpoints": Layout([mamba(64, checkpoints=1)] * 3 + [attention(64)]),
    "hits inside blocks": Layout([mamba(256)] * 3 + [attention(256)], match_unit=64),
}


class Engine:
    """A scheduler, its cache, and a model that says 7."""

    def __init__(self, model, layout, num_blocks, max_num_batched_tokens, *, is_async):
        config = VllmConfig(
            model_config=ModelConfig(model=model, dtype="bfloat16", max_model_len=MAX_MODEL_LEN),
            cache_config=CacheConfig(
                block_size=max(spec.block_size for spec in layout.specs),
                enable_prefix_caching=layout.caching,
                **({"prefix_match_unit": layout.match_unit} if layout.match_unit else {}),
            ),
            scheduler_config=SchedulerConfig(
                max_num_batched_tokens=max_num_batched_tokens,
                max_num_seqs=16,
                max_model_len=MAX_MODEL_LEN,
                is_encoder_decoder=False,
            ),
        )
        config.scheduler_config.async_scheduling = is_async  # a CPU's platform takes it away
        modes = [spec.mamba_cache_mode for spec in layout.specs if isinstance(spec, MambaSpec)]
        config.cache_config.mamba_cache_mode = modes[0] if modes else "none"
        config.cache_config.num_gpu_blocks = num_blocks
        groups = [KVCacheGroupSpec([f"layer {number}"], spec) for number, spec in enumerate(layout.specs)]
        caches = KVCacheConfig(num_blocks=num_blocks, kv_cache_tensors=[], kv_cache_groups=groups)
        block_size, hash_block_size = resolve_kv_cache_block_sizes(caches, config)
        self.scheduler = (AsyncScheduler if is_async else Scheduler)(
            vllm_config=config,
            kv_cache_config=caches,
            structured_output_manager=StructuredOutputManager(config),
            block_size=block_size,
            hash_block_size=hash_block_size,
            log_stats=True,
        )
        init_none_hash(sha256)
        self._hasher = get_request_block_hasher(hash_block_size, sha256) if layout.caching else None
        self.limits = KVCacheLimits(
            num_gpu_blocks=num_blocks,
            block_size=config.cache_config.block_size,
            max_num_seqs=16,
            max_num_batched_tokens=max_num_batched_tokens,
            max_model_len=MAX_MODEL_LEN,
            groups=cache_groups(self.scheduler.kv_cache_manager.coordinator),
            max_concurrent_batches=config.max_concurrent_batches,
        )
        self._under_way = []
        self.most_held, self.num_preemptions = {}, 0

    def add(self, request_id, ids, max_tokens):
        params = SamplingParams(max_tokens=max_tokens, ignore_eos=True)
        self.scheduler.add_request(Request(request_id, ids, params, None, block_hasher=self._hasher))

    def step(self):
        """Schedules a step, and settles the oldest under way when there are as many as there may be."""
        chosen = self.scheduler.schedule()
        self.num_preemptions += len(chosen.preempted_req_ids or ())
        self._note_held()
        if chosen.total_num_scheduled_tokens:
            self._under_way.append(chosen)
        is_full = len(self._under_way) == self.limits.max_concurrent_batches
        if self._under_way and (is_full or not chosen.total_num_scheduled_tokens):
            self._settle(self._under_way.pop(0))

    def is_open(self, request_id):
        return request_id in self.scheduler.requests

    def _note_held(self):
        managers = self.scheduler.kv_cache_manager.coordinator.single_type_managers
        for request in self.scheduler.running:
            blocks = [block for manager in managers for block in manager.req_to_blocks.get(request.request_id, ())]
            held = sum(not block.is_null for block in blocks)
            self.most_held[request.request_id] = max(self.most_held.get(request.request_id, 0), held)

    def _settle(self, chosen):
        computed = {each.req_id: each.num_computed_tokens for each in chosen.scheduled_new_reqs}
        cached = chosen.scheduled_cached_reqs
        computed |= dict(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
        names = list(chosen.num_scheduled_tokens)
        sampled = [
            [7] if self._is_read(name, computed[name] + chosen.num_scheduled_tokens[name]) else [] for name in names
        ]
        places = {name: place for place, name in enumerate(names)}
        output = ModelRunnerOutput(names, places, sampled, logprobs=None, prompt_logprobs_dict={}, pooler_output=[])
        self.scheduler.update_from_output(chosen, output)

    def _is_read(self, request_id, num_tokens):
        request = self.scheduler.requests.get(request_id)
        return request is not None and num_tokens >= request.num_prompt_tokens


def alone(model, layout, *, is_async):
    """Sequences one after another, each read in one step: blocks predicted, and the most that were held."""
    engine, rng = Engine(model, layout, 4_000, MAX_MODEL_LEN, is_async=is_async), random.Random(1)
    predicted = {}
    for number in range(30):
        num_tokens, max_tokens = rng.randint(1, MAX_PROMPT_TOKENS), rng.choice([1, rng.randint(2, MAX_TOKENS)])
        name = f"r{number}"
        predicted[name] = engine.limits.needed_blocks(num_tokens, max_tokens)
        engine.add(name, [rng.randint(0, 9_999) for _ in range(num_tokens)], max_tokens)
        while engine.is_open(name):
            engine.step()
    ratios = [predicted[name] / held for name, held in engine.most_held.items()]
    return {
        "ratio": sum(predicted.values()) / sum(engine.most_held.values()),
        "least": min(ratios),
        "most": max(ratios),
    }


def pressed(model, layout, max_num_batched_tokens, *, is_async, one_token):
    """Many sequences with common beginnings in the smallest cache that fits the largest, and in twice that."""
    most_tokens = 1 if one_token else MAX_TOKENS
    rng = random.Random(2)
    beginnings = [[rng.randint(0, 9_999) for _ in range(MAX_PROMPT_TOKENS)] for _ in range(3)]
    roomy = Engine(model, layout, 4_000, max_num_batched_tokens, is_async=is_async).limits
    smallest = roomy.needed_blocks(MAX_PROMPT_TOKENS, most_tokens)
    num_preemptions = num_over = 0
    for num_blocks in (smallest, 2 * smallest):
        engine = Engine(model, layout, 1 + num_blocks, max_num_batched_tokens, is_async=is_async)
        budget = batch_budget(engine.limits, 0.0, one_token_answers=one_token, batch_loads=4)
        needed, waiting = {}, list(range(20))
        while waiting or needed:
            while waiting:
                num_tokens = rng.randint(MAX_PROMPT_TOKENS // 3, MAX_PROMPT_TOKENS)
                shared = rng.choice([0, rng.randint(1, num_tokens)])
                max_tokens = 1 if one_token else rng.choice([2, MAX_TOKENS])
                needs = engine.limits.needed_blocks(num_tokens, max_tokens)
                is_full = sum(needed.values()) + needs > budget.max_blocks or len(needed) == budget.max_prompts
                if needed and is_full:
                    break
                name = f"r{waiting.pop()}"
                needed[name] = needs
                own = [rng.randint(0, 9_999) for _ in range(num_tokens - shared)]
                engine.add(name, rng.choice(beginnings)[:shared] + own, max_tokens)
            engine.step()
            ended = [name for name in needed if not engine.is_open(name)]
            num_over += sum(engine.most_held[name] > needed[name] for name in ended)
            needed = {name: needs for name, needs in needed.items() if name not in ended}
        num_preemptions += engine.num_preemptions
    return {"num_preemptions": num_preemptions, "num_over": num_over}


def main(model, *names):
    """Two lines a layout, without and with asynchronous scheduling."""
    for name in names:
        layout = LAYOUTS[name]
        for is_async in (False, True):
            told = {"layout": name, "is_async": is_async, "alone": alone(model, layout, is_async=is_async)}
            told["pressed"] = [
                pressed(model, layout, num_tokens, is_async=is_async, one_token=one_token)
                for num_tokens in (MAX_MODEL_LEN, 300)
                for one_token in (True, False)
            ]
            print(json.dumps(told), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
