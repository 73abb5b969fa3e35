"""What goes wrong in the fake engine, and the log of what it was asked."""

import json
import os
import time
from pathlib import Path

import numpy as np

from vllm.answers import tokenizer_of


class Faults:
    """Ends, hangs or fails the engine where FAKE_VLLM says so.

    Args:
        told: FAKE_VLLM.
        model: the model's folder.
    """

    def __init__(self, told, model):
        self._told, self._model = told, model

    def start(self):
        """Fails while the model loads."""
        if "start_error" in self._told:
            with open(self._told["log"] + ".starts", "a", encoding="utf-8") as stream:
                stream.write("tried\n")
            raise RuntimeError(self._told["start_error"])
        if self._told.get("damaged_caches") == os.environ["VLLM_CACHE_ROOT"]:
            raise RuntimeError("bad magic number in 'graph'")

    def begin_batch(self, prompts, sampling_params):
        """Meets what is set for this batch or for one of its prompts, and logs those that go on."""
        batch_no = self._count_batch()
        if batch_no is not None and self._told.get("die_at") == batch_no:
            os._exit(9)
        if batch_no is not None and self._told.get("hang_at") == batch_no:
            time.sleep(3600)
        self._meet_poison(prompts)
        if "batch_s" in self._told:
            time.sleep(self._told["batch_s"])
        self._log(prompts, sampling_params, batch_no)

    def disturbed(self, outputs):
        """What a call returns."""
        return {"reversed": outputs[::-1], "short": outputs[:-1], "long": [*outputs, outputs[-1]]}.get(
            self._told.get("outputs"), outputs
        )

    def _meet_poison(self, prompts):
        kinds = [kind for kind in ("die_on", "hang_on", "fail_on") if kind in self._told]
        texts = [tokenizer_of(self._model).decode(ids) for ids in prompts] if kinds else []
        for kind in kinds:
            if any(self._told[kind] in text for text in texts):
                if kind == "die_on":
                    os._exit(9)
                if kind == "hang_on":
                    time.sleep(3600)
                raise RuntimeError("a kernel failed")

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
                for ids, params in zip(prompts, sampling_params, strict=True):
                    line = {"batch": batch_no, "ids": ids, "params": vars(params)}
                    stream.write(json.dumps(line, default=np.ndarray.tolist) + "\n")
