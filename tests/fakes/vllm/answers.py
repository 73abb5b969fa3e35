"""What the fake model says: texts, log-probabilities and clocks that depend on the prompt's token ids alone."""

import functools
import hashlib
import json
import re
import time
from array import array
from pathlib import Path
from types import SimpleNamespace

import numpy as np


@functools.cache
def tokenizer_of(model):
    """Read when it is first needed: one token is answered without."""
    from tokenizers import Tokenizer

    return Tokenizer.from_file(str(Path(model) / "tokenizer.json"))


class Answers:
    """Makes outputs as vLLM has them.

    Args:
        told: FAKE_VLLM.
        model: the model's folder.
        stat_loggers: those of the engine, which are told each answer's gaps between tokens.
    """

    def __init__(self, told, model, stat_loggers):
        self._told, self._model, self._stat_loggers = told, model, stat_loggers
        self._last_ts = self._latest_ts = 0.0

    def begin_call(self):
        """What comes is later than all that was answered."""
        self._last_ts = self._latest_ts

    def output(self, ids, params, lora):
        """The whole output of a prompt, which the engine hands out when its steps are through."""
        seed = _seed(ids)
        if lora is not None:
            seed += (Path(lora.lora_path) / "adapter_model.safetensors").read_bytes()
        completion, gaps = SimpleNamespace(text="", token_ids=[0], finish_reason="length", logprobs=None), []
        if params.logprob_token_ids is not None:
            completion.logprobs = SimpleNamespace(
                token_ids=[0, *params.logprob_token_ids],
                logprobs=[-0.1, *(-1.0 - 8.0 * _draw(seed, token_id) for token_id in params.logprob_token_ids)],
            )
        elif params.max_tokens > 1:
            self._write(completion, self._stopped(self._permutation(ids, seed), params.stop or []), params.max_tokens)
            gaps = [0.002 + 0.02 * _draw(seed, f"gap{number}") for number in range(len(completion.token_ids) - 1)]
            for logger in self._stat_loggers:
                logger.record(None, SimpleNamespace(inter_token_latencies_iter=gaps))
        metrics = self._metrics(seed, gaps)
        if self._told.get("metrics") == "partial":
            del metrics.queued_ts
        return SimpleNamespace(
            prompt_token_ids=ids,
            outputs=[completion],
            prompt_logprobs=None if params.prompt_logprobs is None else _prompt_logprobs(ids, seed),
            prompt_token_id_logprobs=self._chosen_logprobs(ids, seed, params),
            metrics=metrics if self._told.get("metrics", True) else None,
            num_cached_tokens=0,
        )

    def _write(self, completion, text, max_tokens):
        tokenizer = tokenizer_of(self._model)
        tokens = tokenizer.encode(text, add_special_tokens=False).ids
        completion.token_ids = tokens[:max_tokens]
        completion.text = tokenizer.decode(completion.token_ids, skip_special_tokens=False)
        completion.finish_reason = "length" if len(tokens) > max_tokens else "stop"

    def _permutation(self, ids, seed):
        if "answers" in self._told:
            answers = self._told["answers"]
            return answers[int(_draw(seed, 0) * len(answers))]
        prompt = tokenizer_of(self._model).decode(ids, skip_special_tokens=False)
        names = re.findall(r"^\[(\w+)\] ", prompt, re.MULTILINE)
        order = " > ".join(f"[{name}]" for name in sorted(names, key=lambda name: _draw(seed, name)))
        if prompt.rfind("<think>") <= prompt.rfind("</think>"):
            return order
        return " hmm" * self._told.get("thoughts", 3) + f"</think><answer>{order}</answer>"

    def _stopped(self, text, stop):
        ends = [text.index(each) + len(each) for each in stop if each in text]
        return text[: min(ends)] if ends else text

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

    def _chosen_logprobs(self, ids, seed, params):
        """The value of each row's token, as the V2 model runner has them: row i predicts token start + i + 1."""
        rows = params.prompt_logprob_token_ids
        if rows is None:
            return None
        if not self._told.get("v2"):
            raise ValueError("prompt_logprob_token_ids requires the V2 model runner (VLLM_USE_V2_MODEL_RUNNER=1).")
        places = range(params.prompt_logprob_start + 1, len(ids))
        if len(rows) != len(places) or [row[0] for row in rows] != [ids[place] for place in places]:
            raise ValueError("prompt_logprob_token_ids has other rows than the prompt")
        return np.array([[-8.0 * _draw(seed, place)] for place in places], np.float32)


def _prompt_logprobs(ids, seed):
    """One value a token, as vLLM's FlatLogprobs has them; the first has none."""
    places = range(len(ids))
    return SimpleNamespace(
        start_indices=[max(place - 1, 0) for place in places],
        end_indices=list(places),
        token_ids=list(ids[1:]),
        logprobs=[-8.0 * _draw(seed, place) for place in places[1:]],
    )


def _seed(ids):
    """Stands for the prompt: its ids are many, and drawn from often."""
    return hashlib.blake2b(array("q", ids).tobytes(), digest_size=16).digest()


def _draw(seed, salt):
    """A number in [0, 1) that depends on the prompt and the salt alone."""
    drawn = hashlib.blake2b(seed + f"|{salt}".encode(), digest_size=6)
    return int.from_bytes(drawn.digest(), "big") / 2**48
