"""Reads an order out of any text: always a complete permutation, with what went wrong as counts and a status.

Never raises, never guesses a torn identifier, never wraps a number around to another document. Knows nothing of
windows: places count from 0 in prompt order.
"""

import re
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

ParseStatus = Literal[
    "ok", "missing", "repetition", "out_of_range", "wrong_format", "truncated", "refusal", "engine_error"
]

THINK_END = "</think>"
ANSWER_TAG = re.compile(r"<answer>(.*?)(?:</answer>|$)", re.DOTALL | re.IGNORECASE)
BRACKETED_NUMBER = re.compile(r"\[\s*(-?\d+)\s*\]")
BARE_NUMBER = re.compile(r"(?<![\w.])-?\d++(?![\w.]*\w)")  # possessive: linear in any text
BRACKETED_LETTER = re.compile(r"\[\s*([A-Za-z])\s*\]")
BARE_LETTER = re.compile(r"(?<![\w'’])[A-Za-z](?![\w'’])")
MAX_DIGITS = 9  # a longer number names nothing


@dataclass(frozen=True, slots=True)
class Permutation:
    """A complete order of a window's places."""

    order: tuple[int, ...]  # best first; the places that the text did not list follow in prompt order
    num_listed: int
    num_duplicate: int
    num_out_of_range: int
    status: ParseStatus

    @property
    def num_missing(self) -> int:
        """Places that the text did not list."""
        return len(self.order) - self.num_listed


def parse_permutation(
    text: str, num_passages: int, place_of: Callable[[str], int], *, by_letter: bool, was_cut: bool
) -> Permutation:
    """Reads the order that a model wrote.

    Args:
        text: the answer, whatever it is.
        num_passages: how many places there are.
        place_of: an identifier's place from 0, or a place out of range.
        by_letter: identifiers are letters, else numbers.
        was_cut: the answer ended at `max_tokens`.

    >>> parse_permutation("[2] > [3] > [2]", 3, lambda name: int(name) - 1, by_letter=False, was_cut=False)
    Permutation(order=(1, 2, 0), num_listed=2, num_duplicate=1, num_out_of_range=0, status='repetition')
    """
    answer = _answer_part(text)
    if was_cut:
        answer = _without_torn_tail(answer)
    names, is_asked_form = _identifiers(_ascii_digits(answer), by_letter=by_letter)
    places = [place_of(name) if len(name) <= MAX_DIGITS else -1 for name in names]
    in_range = [place for place in places if 0 <= place < num_passages]
    listed = list(dict.fromkeys(in_range))
    order = (*listed, *(place for place in range(num_passages) if place not in set(listed)))
    num_duplicate = len(in_range) - len(listed)
    num_out_of_range = len(places) - len(in_range)
    return Permutation(
        order=order,
        num_listed=len(listed),
        num_duplicate=num_duplicate,
        num_out_of_range=num_out_of_range,
        status=_status(
            num_missing=num_passages - len(listed),
            num_listed=len(listed),
            num_duplicate=num_duplicate,
            num_out_of_range=num_out_of_range,
            is_asked_form=is_asked_form,
            was_cut=was_cut,
        ),
    )


def place_of_number(name: str) -> int:
    """The place of a passage numbered from 1; 0 and below name nothing."""
    return int(name) - 1


def place_of_letter(name: str) -> int:
    """The place of a passage lettered A-Z, a-z."""
    return ord(name) - ord("A") if name.isupper() else ord(name) - ord("a") + 26


def _answer_part(text: str) -> str:
    """What follows the last think block, and there the last answer block; an unclosed think block answers nothing."""
    _, end, tail = text.rpartition(THINK_END)
    answer = tail if end else ("" if "<think>" in text.lower() else text)
    tagged = ANSWER_TAG.findall(answer)
    return str(tagged[-1]) if tagged else answer


def _without_torn_tail(answer: str) -> str:
    """Drops a last identifier that may have lost its end: '[1] > [7] > [1' may have become [12]."""
    end = len(answer.rstrip())
    while end and (answer[end - 1].isalnum() or answer[end - 1] == "-"):
        end -= 1
    return answer[:end]


def _ascii_digits(text: str) -> str:
    """Digits of other scripts, circled and raised ones, and full-width brackets as ASCII."""
    if text.isascii():
        return text
    return "".join(_ascii_digit(character) for character in text)


def _ascii_digit(character: str) -> str:
    if character in "［］":
        return "[" if character == "［" else "]"
    if unicodedata.category(character) not in ("Nd", "No"):
        return character
    value = unicodedata.numeric(character, -1.0)
    return str(int(value)) if value >= 0 and value == int(value) else character


def _identifiers(answer: str, *, by_letter: bool) -> tuple[list[str], bool]:
    """The identifiers in the order of the text, and whether they stood in the form that was asked for.

    With fewer than two in brackets, the bare ones of the line that has most are taken: never those of the whole text,
    where 'the 20 passages: [3] > [1]' would read as 20, 3, 1.
    """
    bracketed, bare = (BRACKETED_LETTER, BARE_LETTER) if by_letter else (BRACKETED_NUMBER, BARE_NUMBER)
    names = bracketed.findall(answer)
    if len(names) >= 2:
        return names, True
    lines = [line for line in answer.splitlines() if not by_letter or _is_mostly_letters(line)]
    by_line = [bare.findall(line) for line in lines]
    most = max(by_line, key=len, default=[])
    return (most, False) if len(most) > len(names) else (names, bool(names))


def _is_mostly_letters(line: str) -> bool:
    """Prose holds the words 'A' and 'I'."""
    words = re.findall(r"\w+", line)
    return 2 * sum(len(word) == 1 for word in words) > len(words)


def _status(
    *,
    num_missing: int,
    num_listed: int,
    num_duplicate: int,
    num_out_of_range: int,
    is_asked_form: bool,
    was_cut: bool,
) -> ParseStatus:
    """One word for what went wrong; the counts say the rest. The cause comes before its consequence."""
    if was_cut and num_missing:
        return "truncated"
    if num_listed == 0:
        return "refusal"
    if not is_asked_form:
        return "wrong_format"
    if num_duplicate:
        return "repetition"
    if num_out_of_range:
        return "out_of_range"
    return "missing" if num_missing else "ok"
