"""Bare `LLM.generate` on recorded prompts, for the other benches: `python -m tests.benchmarks.bare KEYWORDS.json`.

Says that it is ready, then takes paths of CALLS.npz, one a line, and answers each with one line of JSON. Token ids and
sampling parameters are made beforehand: only the calls are timed.
"""

import json
import os
import sys
import time
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any


def main() -> None:
    from vllm import LLM

    keywords = json.loads(Path(sys.argv[1]).read_text())
    llm = LLM(**{"disable_log_stats": False, "use_tqdm_on_load": False, **keywords})
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        print(json.dumps(_time(llm, Path(line.strip()))), flush=True)
    os._exit(0)  # vLLM's own teardown takes seconds


def _time(llm: Any, path: Path) -> dict[str, dict[str, float]]:
    """Seconds and output tokens of each set of calls, after one call of another prompt."""
    import numpy as np
    from vllm import SamplingParams, TokensPrompt

    found = {}
    with np.load(path) as arrays:
        for number, spec in enumerate(json.loads(str(arrays["spec"]))):
            ids, offsets = arrays[f"ids{number}"], arrays[f"offsets{number}"]
            prompts = [TokensPrompt(prompt_token_ids=ids[start:end].tolist()) for start, end in pairwise(offsets)]
            params = [SamplingParams(**_sampling(form)) for form in spec["forms"]]
            if not number:
                warming = TokensPrompt(prompt_token_ids=ids[: offsets[1]][::-1].tolist())
                llm.generate([warming], params[:1], use_tqdm=False)
            llm.reset_prefix_cache()
            seconds, outputs = 0.0, []
            for group in spec["groups"]:
                asked = [prompts[place] for place in group], [params[place] for place in group]
                started = time.monotonic()
                outputs += llm.generate(*asked, use_tqdm=False)
                seconds += time.monotonic() - started
            output_tokens = sum(len(output.outputs[0].token_ids) for output in outputs)
            found[spec["name"]] = {"s": seconds, "output_tokens": output_tokens}
    return found


def _sampling(form: Mapping[str, Any]) -> dict[str, Any]:
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
