"""Bare `LLM.generate` on recorded prompts, for the other benches: `python -m tests.bench.bare CALLS.npz KEYWORDS.json`.

Token ids and sampling parameters are made beforehand: only the calls are timed. Prints one line of JSON.
"""

import json
import os
import sys
import time
from itertools import pairwise
from pathlib import Path


def main() -> None:
    import numpy as np
    from vllm import LLM, SamplingParams, TokensPrompt

    calls_path, keywords_path = map(Path, sys.argv[1:3])
    llm = LLM(**{"disable_log_stats": False, "use_tqdm_on_load": False, **json.loads(keywords_path.read_text())})
    with np.load(calls_path) as arrays:
        specs = json.loads(str(arrays["spec"]))
        found = {}
        for number, spec in enumerate(specs):
            ids, offsets = arrays[f"ids{number}"], arrays[f"offsets{number}"]
            prompts = [TokensPrompt(prompt_token_ids=ids[start:end].tolist()) for start, end in pairwise(offsets)]
            params = [SamplingParams(**_sampling(form)) for form in spec["forms"]]
            if not number:  # warm: other prompts than those that are timed
                llm.generate(
                    [TokensPrompt(prompt_token_ids=ids[: offsets[1]][::-1].tolist())], params[:1], use_tqdm=False
                )
            llm.reset_prefix_cache()
            seconds, outputs = 0.0, []
            for group in spec["groups"]:
                asked = [prompts[place] for place in group], [params[place] for place in group]
                started = time.monotonic()
                outputs += llm.generate(*asked, use_tqdm=False)
                seconds += time.monotonic() - started
            output_tokens = sum(len(output.outputs[0].token_ids) for output in outputs)
            found[spec["name"]] = {"s": seconds, "output_tokens": output_tokens}
    print(json.dumps(found), flush=True)
    os._exit(0)  # vLLM's own teardown takes seconds


def _sampling(form: dict) -> dict:
    """What the engine child asks for, but for the length that a bench may force."""
    return {
        "temperature": 0.0,
        "max_tokens": form["max_tokens"],
        "min_tokens": form["min_tokens"],
        "stop": form["stop"],
        "include_stop_str_in_output": True,
        "logprob_token_ids": form["logprob_token_ids"],
        "flat_logprobs": True,
        "detokenize": form["logprob_token_ids"] is None,
    }


if __name__ == "__main__":
    main()
