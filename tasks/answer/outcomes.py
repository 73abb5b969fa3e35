"""Reads a generation into the outcome of its window, by the decode mode that asked for it.

Places in the prompt become candidate indices again here. Knows nothing of queries, batches or tables.
"""

from dataclasses import dataclass

from tasks.answer.logprobs import order_by_logprobs
from tasks.answer.permutations import ParseStatus, parse_permutation, place_of_letter, place_of_number
from tasks.generate.generations import Generation
from tasks.prompt.prompts import Prompt
from tasks.schedule.windows import Outcome

MAX_ANSWER_CHARACTERS = 2_000


@dataclass(frozen=True, slots=True)
class Reading:
    """The outcome of a window, and what went wrong on the way."""

    outcome: Outcome
    parse_status: ParseStatus
    num_missing: int
    num_duplicate: int
    num_out_of_range: int
    id_mass: float | None  # first_token only
    answer: str | None  # the text, up to 2,000 characters, where parse_status is not ok


def read_generation(prompt: Prompt, generation: Generation, *, by_letter: bool) -> Reading:
    """The outcome of the window that the prompt asked about; never fails on what the model wrote."""
    if prompt.logprob_token_ids is not None:
        return _read_first_token(prompt, generation)
    return _read_permutation(prompt, generation, by_letter=by_letter)


def _read_first_token(prompt: Prompt, generation: Generation) -> Reading:
    docs = prompt.window.docs
    ordered = order_by_logprobs(generation.logprobs or (None,) * len(docs))
    outcome = Outcome(tuple(docs[place] for place in ordered.order), ordered.num_listed, ordered.logprobs)
    return Reading(
        outcome=outcome,
        parse_status=ordered.status,
        num_missing=len(docs) - ordered.num_listed,
        num_duplicate=0,
        num_out_of_range=0,
        id_mass=ordered.id_mass,
        answer=None,
    )


def _read_permutation(prompt: Prompt, generation: Generation, *, by_letter: bool) -> Reading:
    docs = prompt.window.docs
    parsed = parse_permutation(
        generation.text,
        len(docs),
        place_of_letter if by_letter else place_of_number,
        by_letter=by_letter,
        was_cut=generation.finish_reason == "length",
    )
    return Reading(
        outcome=Outcome(tuple(docs[place] for place in parsed.order), parsed.num_listed),
        parse_status=parsed.status,
        num_missing=parsed.num_missing,
        num_duplicate=parsed.num_duplicate,
        num_out_of_range=parsed.num_out_of_range,
        id_mass=None,
        answer=None if parsed.status == "ok" else generation.text[:MAX_ANSWER_CHARACTERS],
    )
