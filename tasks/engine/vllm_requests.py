"""Our prompts in vLLM's words, and its outputs in ours."""

from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from tasks.decode.answer import Generation, RequestTimes
from tasks.prompt.answer_forms import AnswerForm
from tasks.prompt.prompts import Prompt
from tasks.prompt.thoughts import closes_thought, in_known_marks
from tasks.system.errors import EngineError


@dataclass(frozen=True, slots=True)
class RequestOptions:
    """How every prompt of a run is asked."""

    lora: Any | None  # vLLM's LoRARequest
    scores_chosen_rows: bool  # of a prompt; else all its tokens go through the vocabulary


def require_same_prompt(request_id: str, asked: list[int], output: Any) -> None:
    """Raises EngineError where vLLM answered another prompt."""
    if list(output.prompt_token_ids) != asked:
        raise EngineError(f"the output for {request_id} belongs to another prompt")


def closing_request(request: Prompt, output: Any) -> Prompt:
    """The prompt with its cut thought and the words that close it."""
    close = request.form.close
    assert close is not None, request.request_id
    parts = [request.prompt_token_ids, output.outputs[0].token_ids, close.token_ids]
    return replace(
        request,
        request_id=f"{request.request_id}/closed",
        prompt_token_ids=np.concatenate([np.asarray(part, np.int32) for part in parts]),
        form=AnswerForm(close.max_tokens, sampling=request.form.sampling),
        num_scored_tokens=0,
    )


def is_cut_in_thought(request: Prompt, output: Any) -> bool:
    """Whether an answer ended at its budget before its think block did."""
    completion = output.outputs[0]
    close = request.form.close
    if close is None or completion.finish_reason != "length":
        return False
    return not closes_thought(in_known_marks(completion.text, close.marks))


def joined_answer(request: Prompt, answer: Generation, closed: Generation) -> Generation:
    """A thought and the answer behind its forced close as one answer, of one sequence as it ended."""
    close = request.form.close
    assert close is not None, request.request_id
    times = answer.times
    if times is not None and closed.times is not None:
        times = replace(times, last_token_ts=closed.times.last_token_ts)
    return replace(
        answer,
        text=answer.text + close.text + closed.text,
        finish_reason=closed.finish_reason,
        output_tokens=answer.output_tokens + len(close.token_ids) + closed.output_tokens,
        times=times,
        num_preemptions=answer.num_preemptions + closed.num_preemptions,
    )


def sampling_params(request: Prompt, options: RequestOptions) -> Any:
    """Everything explicit: vLLM's defaults are temperature 1.0 and 16 tokens, or the model's generation_config."""
    from vllm import SamplingParams

    form, sampling, num_scored = request.form, request.form.sampling, request.num_scored_tokens
    by_row = num_scored > 0 and options.scores_chosen_rows
    scored_ids = request.prompt_token_ids[len(request.prompt_token_ids) - num_scored :]
    return SamplingParams(
        n=1,
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=sampling.top_k,
        min_p=sampling.min_p,
        presence_penalty=sampling.presence_penalty,
        frequency_penalty=0.0,
        repetition_penalty=sampling.repetition_penalty,
        seed=sampling.seed_of(request.request_id),
        max_tokens=form.first_max_tokens,
        min_tokens=0,
        stop=list(form.stop),
        include_stop_str_in_output=True,
        logprob_token_ids=None if form.logprob_token_ids is None else list(form.logprob_token_ids),
        prompt_logprobs=0 if num_scored and not by_row else None,
        prompt_logprob_token_ids=scored_ids[:, np.newaxis] if by_row else None,
        prompt_logprob_start=len(request.prompt_token_ids) - num_scored - 1 if by_row else None,
        flat_logprobs=True,
        detokenize=form.logprob_token_ids is None and not num_scored,
        skip_special_tokens=False,  # a think block may begin and end with one, asked for or not
    )


def answer_of(request: Prompt, output: Any) -> Generation:
    """What the engine said of a request."""
    completion = output.outputs[0]
    logprobs = None
    if request.form.logprob_token_ids is not None:
        flat = completion.logprobs
        found = dict(zip(flat.token_ids, flat.logprobs, strict=True)) if flat is not None else {}
        logprobs = tuple(found.get(token_id) for token_id in request.form.logprob_token_ids)
    return Generation(
        request_id=request.request_id,
        text=completion.text,
        finish_reason=str(completion.finish_reason),
        output_tokens=len(completion.token_ids),
        cached_tokens=output.num_cached_tokens or 0,
        logprobs=logprobs,
        scored_logprob=_scored_logprob(request, output),
        times=_times(output.metrics),
        num_preemptions=getattr(output.metrics, "num_preemptions", 0),
    )


def _scored_logprob(request: Prompt, output: Any) -> float | None:
    """The sum over the prompt's last `num_scored_tokens` tokens; None where one is missing."""
    if not request.num_scored_tokens:
        return None
    if output.prompt_token_id_logprobs is not None:
        return float(output.prompt_token_id_logprobs.sum(dtype=np.float64))
    flat = output.prompt_logprobs
    if flat is None:
        return None
    total, ids = 0.0, request.prompt_token_ids
    for place in range(len(ids) - request.num_scored_tokens, len(ids)):
        span = slice(flat.start_indices[place], flat.end_indices[place])
        found = dict(zip(flat.token_ids[span], flat.logprobs[span], strict=True))
        if int(ids[place]) not in found:
            return None
        total += found[int(ids[place])]
    return total


def _times(metrics: Any) -> RequestTimes | None:
    """None where the engine gives no metrics, or not all of them (vllm#15394): never a lost batch."""
    names = [field.name for field in fields(RequestTimes)]
    values = [getattr(metrics, name, None) for name in names]
    known = [float(value) for value in values if value is not None]
    return RequestTimes(*known) if len(known) == len(names) else None
