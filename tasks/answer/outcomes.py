"""Reads a generation into the outcome of its window, by the decode mode that asked for it.

Places in the prompt become candidate indices again here. Knows nothing of queries, batches or tables.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tasks.answer.logprobs import order_by_logprobs, read_verdict
from tasks.answer.permutations import ParseStatus, parse_permutation, place_of_letter, place_of_number
from tasks.generate.generations import Generation
from tasks.prompt.prompts import Prompt, PromptBuilder
from tasks.schedule.windows import Outcome

MAX_ANSWER_CHARACTERS = 2_000


@dataclass(frozen=True, slots=True)
class Reading:
    """The outcome of a window, and what went wrong on the way."""

    outcome: Outcome
    parse_status: ParseStatus
    num_missing: int = 0  # of those that had to be named
    num_duplicate: int = 0
    num_out_of_range: int = 0
    id_mass: float | None = None  # one-token modes only
    answer: str | None = None  # the text, up to 2,000 characters, where parse_status is not ok


def read_generation(
    builder: PromptBuilder, prompt: Prompt, generation: Generation, prior: Sequence[float] | None = None
) -> Reading:
    """The outcome of the window that the prompt asked about; never fails on what the model wrote.

    Args:
        builder: the one that built the prompt.
        prompt: what was asked.
        generation: what came of it.
        prior: log-probabilities of the places in a content-free prompt, to be taken off; first_token only.
    """
    if prompt.decode_mode in ("first_token", "select"):
        return _read_letters(prompt, generation, prior)
    if prompt.decode_mode == "yes_no":
        return _read_verdict(builder, prompt, generation)
    if prompt.decode_mode == "query_likelihood":
        return _read_likelihood(prompt, generation)
    return _read_permutation(builder, prompt, generation)


def _read_letters(prompt: Prompt, generation: Generation, prior: Sequence[float] | None) -> Reading:
    docs = prompt.window.docs
    ordered = order_by_logprobs(generation.logprobs or (None,) * len(docs), prior)
    outcome = Outcome(tuple(docs[place] for place in ordered.order), ordered.num_listed, ordered.logprobs)
    return Reading(
        outcome=outcome,
        parse_status=ordered.status,
        num_missing=len(docs) - ordered.num_listed,
        id_mass=ordered.id_mass,
    )


def _read_verdict(builder: PromptBuilder, prompt: Prompt, generation: Generation) -> Reading:
    verdict = read_verdict(generation.logprobs or (), len(builder.answers.yes_ids))
    return Reading(
        outcome=_judged(prompt, verdict.logprob_yes, is_judged=verdict.status == "ok"),
        parse_status=verdict.status,
        num_missing=int(verdict.status != "ok"),
        id_mass=verdict.id_mass,
    )


def _read_likelihood(prompt: Prompt, generation: Generation) -> Reading:
    """The mean log-probability of a query token: one scale for queries of any length."""
    total = generation.scored_logprob
    is_judged = total is not None and math.isfinite(total)
    mean = (total or 0.0) / max(prompt.num_scored_tokens, 1)
    return Reading(
        outcome=_judged(prompt, float(np.float32(mean)) if is_judged else -math.inf, is_judged=is_judged),
        parse_status="ok" if is_judged else "refusal",
        num_missing=int(not is_judged),
    )


def _judged(prompt: Prompt, logprob: float, *, is_judged: bool) -> Outcome:
    return Outcome(prompt.window.docs, num_listed=int(is_judged), logprobs=(logprob,))


def _read_permutation(builder: PromptBuilder, prompt: Prompt, generation: Generation) -> Reading:
    window = prompt.window
    by_letter = builder.identifiers == "letters"
    parsed = parse_permutation(
        prompt.opened_answer + generation.text,
        len(window.docs),
        place_of_letter if by_letter else place_of_number,
        by_letter=by_letter,
        was_cut=generation.finish_reason == "length",
        num_asked=window.num_asked,
        pivot=None if window.pivot is None else window.docs.index(window.pivot),
    )
    return Reading(
        outcome=Outcome(tuple(window.docs[place] for place in parsed.order), parsed.num_listed),
        parse_status=parsed.status,
        num_missing=parsed.num_missing,
        num_duplicate=parsed.num_duplicate,
        num_out_of_range=parsed.num_out_of_range,
        answer=None if parsed.status == "ok" else generation.text[-MAX_ANSWER_CHARACTERS:],
    )
