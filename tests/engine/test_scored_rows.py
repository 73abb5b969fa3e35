"""Which rows of a prompt are scored, by the arithmetic of vLLM's V2 model runner: it runs on a GPU, this part of it anywhere."""

import subprocess
import sys

from tests.makers import ROOT

PROGRAM = """
from types import SimpleNamespace
import numpy as np, torch
from vllm.v1.worker.gpu.sample.prompt_logprob import PromptLogprobsWorker
from tasks.engine.vllm_requests import RequestOptions, sampling_params
from tasks.prompt.answer_forms import AnswerForm
from tasks.prompt.prompts import Prompt
from tasks.schedule.windows import Window

ids = np.array([3, 1, 4, 1, 5, 9, 2, 6, 5, 3], np.int32)
prompt = Prompt("q", Window((0,)), "query_likelihood", ids, AnswerForm(1), 4, "", 0, 0)
params = sampling_params(prompt, RequestOptions(None, scores_chosen_rows=True))
logprobs = torch.randn(len(ids), 10).log_softmax(-1)  # row i: what comes after token i
worker = PromptLogprobsWorker(1, torch.device("cpu"), "raw_logits")  # given log-probabilities, it only gathers
worker.add_request("q", 0, params)
asked, found = [], {}
for start, end in ((0, 4), (4, 7), (7, 10)):  # chunks of a prefill
    batch = SimpleNamespace(
        req_ids=["q"], idx_mapping_np=np.array([0]), num_computed_prefill_tokens_np=np.array([start]),
        num_scheduled_tokens=np.array([end - start]), prefill_len_np=np.array([10]), query_start_loc_np=np.array([0]),
    )
    rows = lambda hidden: asked.extend(hidden[:, 0].int().tolist()) or logprobs[hidden[:, 0].int()]
    found |= worker.compute_prompt_token_id_logprobs(rows, torch.arange(start, end).float()[:, None], batch, np.array([10]))
wanted = sum(float(logprobs[place - 1, ids[place]]) for place in range(6, 10))  # as all rows are read
print(asked, abs(float(found["q"].sum()) - wanted) < 1e-5)
"""


def test_the_rows_of_the_query_alone_are_computed_and_hold_its_tokens():
    answer = subprocess.run([sys.executable, "-c", PROGRAM], cwd=ROOT, capture_output=True, text=True, check=False)

    assert answer.returncode == 0, answer.stderr
    assert answer.stdout.splitlines()[-1] == "[5, 6, 7, 8] True"
