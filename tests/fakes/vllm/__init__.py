"""A vLLM without a model: the same calls, answered at once and always the same way.

Put on PYTHONPATH before the real one, so that the engine child, its pipe and its death are the real code. An answer
depends on the prompt's token ids only, as a real model's would in float32. What else it does is set by FAKE_VLLM, a JSON
object in the environment:

    log            file to which every prompt is appended, one JSON line a request
    batch_s        seconds that a call takes
    start_error    what is raised while the model loads; each try adds a line to `log`.starts
    damaged_caches the folder of vLLM's caches with which no start succeeds
    version        that it says it is
    v2             whether it runs the V2 model runner, which scores chosen rows of a prompt
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
    cache_manager  class of vLLM's that manages the KV cache; FullAttentionManager
    num_gpu_blocks, block_size

A batch is a call of `generate`; for those who use `add_request` and `step`, a step that begins new prompts.
"""

import json
import os

from vllm.llm import LLM
from vllm.sampling_params import SamplingParams

__all__ = ["LLM", "SamplingParams", "TokensPrompt"]
__version__ = json.loads(os.environ.get("FAKE_VLLM", "{}")).get("version", "0.32.0")


def TokensPrompt(prompt_token_ids):
    return {"prompt_token_ids": prompt_token_ids}
