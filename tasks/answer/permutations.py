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

THINK_START = re.compile(r"<think(?:ing)?>", re.IGNORECASE)
THINK_END = re.compile(r"</think(?:ing)?>", re.IGNORECASE)
ANSWER_START = re.compile(r"<answer>", re.IGNORECASE)
ANSWER_END = re.compile(r"</answer>", re.IGNORECASE)
BLANK_ANSWER = re.compile(r"<answer>\s*</answer>", re.IGNORECASE)  # the prompt's form, repeated
NOT_ASCII = re.compile(r"[^\x00-\x7f]")
MINUS_SIGN = "\N{MINUS SIGN}"
KEYCAP_MARKS = "\N{VARIATION SELECTOR-16}\N{COMBINING ENCLOSING KEYCAP}"

# Every expression below is linear in any text: runs are possessive, or cannot overlap with what follows them.
LABEL = r"\b(?i:passage|document|doc|문서|지문)s?+[-_]?+"
GAP = r"[\s#:*\[(\"]"  # between a label and its identifier
NUMBER = r"-?\d++(?:(?=번(?!째))|(?!\.?\w))"  # 번: "No." in Korean; neither 2.5 nor 2nd
LETTER = r"[A-Za-z](?![\w'’])"
ITEM_END = r"(?:\W*|\W*?(?:[.):–—-]\**\s+(?=[^\d\s])|\().*)"  # nothing, or a remark; 3 - 1 - 2 has none
RANK = re.compile(r"[\s*#>-]*+(\d{1,4})(?:순?위)?[.):]\**+(?:\s+(?=\S)|(?=[^\W\d]))")  # "1. " or "1위: " before an item
MAX_DIGITS = 9  # a longer number names nothing


@dataclass(frozen=True, slots=True)
class _Forms:
    """The ways to write an identifier, which is each expression's only group."""

    bracketed: re.Pattern[str]  # as prompts ask; behind a bracket that the prompt opened, the closing one is enough
    labelled: re.Pattern[str]  # "Document 3"
    bare: re.Pattern[str]
    item: re.Pattern[str]  # a whole line of a list


NUMBERS = _Forms(
    bracketed=re.compile(r"(?:\[|\A)\s*(-?\d+)\s*\]"),
    labelled=re.compile(rf"{LABEL}{GAP}*?({NUMBER})"),
    # Neither COVID-19 nor "20 passages".
    bare=re.compile(rf"(?<![\w.])(?<![^\W\d]-)({NUMBER})(?!\s*+(?i:passages|documents)\b)"),
    item=re.compile(rf"\W*?(?:{LABEL}{GAP}*?)?({NUMBER})번?{ITEM_END}"),
)
LETTERS = _Forms(
    bracketed=re.compile(r"(?:\[|\A)\s*([A-Za-z])\s*\]"),
    labelled=re.compile(rf"{LABEL}{GAP}+?({LETTER})"),
    bare=re.compile(rf"(?<![\w'’])({LETTER})"),
    item=re.compile(rf"\W*?(?:{LABEL}{GAP}+?)?({LETTER}){ITEM_END}"),
)


@dataclass(frozen=True, slots=True)
class Permutation:
    """A complete order of a window's places."""

    order: tuple[int, ...]  # best first; the places that the text did not list follow in prompt order
    num_listed: int
    num_missing: int  # places that were asked for and not listed
    num_duplicate: int
    num_out_of_range: int
    status: ParseStatus


def parse_permutation(
    text: str,
    num_passages: int,
    place_of: Callable[[str], int],
    *,
    by_letter: bool,
    was_cut: bool,
    num_asked: int | None = None,
    pivot: int | None = None,
) -> Permutation:
    """Reads the order that a model wrote.

    Args:
        text: the answer, whatever it is.
        num_passages: how many places there are.
        place_of: an identifier's place from 0, or a place out of range.
        by_letter: identifiers are letters, else numbers.
        was_cut: the answer ended at `max_tokens`.
        num_asked: how many identifiers complete the answer, those behind them count as well; None: all.
        pivot: the place that completes the answer, however many were asked for; None: there is none.

    >>> parse_permutation("[2] > [3]", 4, place_of_number, by_letter=False, was_cut=True, num_asked=2)
    Permutation(order=(1, 2, 0, 3), num_listed=2, num_missing=0, num_duplicate=0, num_out_of_range=0, status='ok')
    """
    num_wanted = num_passages if num_asked is None else min(num_asked, num_passages)
    answer = _plain(_answer_part(text))
    if was_cut:
        answer = _without_torn_tail(answer)
    names, is_asked_form = _identifiers(answer, by_letter=by_letter, is_one_enough=num_wanted == 1)
    places = [place_of(name) if len(name) <= MAX_DIGITS else -1 for name in names]
    in_range = [place for place in places if 0 <= place < num_passages]
    listed = dict.fromkeys(in_range)
    if pivot is not None:
        num_wanted = len(listed) if pivot in listed else num_passages
    num_missing = max(num_wanted - len(listed), 0)
    num_duplicate = len(in_range) - len(listed)
    num_out_of_range = len(places) - len(in_range)
    return Permutation(
        order=(*listed, *(place for place in range(num_passages) if place not in listed)),
        num_listed=len(listed),
        num_missing=num_missing,
        num_duplicate=num_duplicate,
        num_out_of_range=num_out_of_range,
        status=_status(
            num_missing=num_missing,
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
    """What follows the last think block, and there the last answer block; an unclosed block thinks to the end."""
    unthought = THINK_START.split(_behind_last(THINK_END, text), maxsplit=1)[0]
    answer = _behind_last(ANSWER_START, BLANK_ANSWER.sub("", unthought))
    return ANSWER_END.split(answer, maxsplit=1)[0]


def _behind_last(tag: re.Pattern[str], text: str) -> str:
    return tag.split(text)[-1]


def _plain(text: str) -> str:
    """Digits of other scripts, circled and raised ones and full-width characters as ASCII; unseen ones as spaces."""
    return NOT_ASCII.sub(lambda match: _plain_character(match[0]), text)


def _plain_character(character: str) -> str:
    if "！" <= character <= "～":  # full-width forms stand in ASCII's order
        return chr(ord(character) - ord("！") + ord("!"))
    category = unicodedata.category(character)
    if category == "Cf" or character in KEYCAP_MARKS:
        return " "
    if category in ("Nd", "No"):
        return _plain_digit(character)
    return "-" if character == MINUS_SIGN else character


def _plain_digit(character: str) -> str:
    """Digits of a script and raised ones join into numbers; a circled one is a number by itself: ③① is 3 and 1."""
    value = unicodedata.numeric(character, -1.0)
    if value < 0 or value != int(value):
        return character
    joins = unicodedata.category(character) == "Nd" or unicodedata.decomposition(character).startswith(("<sup", "<sub"))
    return str(int(value)) if joins else f" {int(value)} "


def _without_torn_tail(answer: str) -> str:
    """Drops a last identifier that may have lost its end: '[1] > [7] > [1' may have become [12]."""
    end = len(answer.rstrip())
    while end and (answer[end - 1].isalnum() or answer[end - 1] in "-\N{REPLACEMENT CHARACTER}"):
        end -= 1
    return answer[:end]


def _identifiers(answer: str, *, by_letter: bool, is_one_enough: bool) -> tuple[list[str], bool]:
    """The identifiers in the order of the text, and whether they stood in the form that was asked for.

    A single one in brackets may stand in prose: where more were asked for, a longer list without brackets is taken.
    """
    forms = LETTERS if by_letter else NUMBERS
    names = forms.bracketed.findall(answer)
    if len(names) >= (1 if is_one_enough else 2):
        return names, True
    others = _identifiers_without_brackets(answer, forms)
    return (others, False) if len(others) > len(names) else (names, bool(names))


def _identifiers_without_brackets(answer: str, forms: _Forms) -> list[str]:
    """The longest of: the last line of labelled identifiers, each other line, the list that has one in a line.

    Never those of the whole text, where 'the 20 passages: [3] > [1]' would read as 20, 3, 1.
    """
    lines = _without_ranks(answer.splitlines())
    items = [forms.item.fullmatch(line) for line in lines]
    column = [item[1] for item in items if item]
    labelled: list[str] = []
    found: list[list[str]] = []
    for line, item in zip(lines, items, strict=True):
        if item and len(column) >= 2:
            continue  # what else such a line names is its remark's
        part = _list_part(line, forms)
        names = forms.labelled.findall(part)
        if len(names) >= 2:
            labelled = names
        elif forms is NUMBERS or _is_mostly_letters(part):
            found.append(forms.bare.findall(part))
    return max([labelled, *found, column], key=len)


def _without_ranks(lines: list[str]) -> list[str]:
    """A list that counts 1, 2, 3 numbers its ranks: '1. Passage 3'. Where nothing else is named, nothing was said."""
    ranks = [int(match[1]) for line in lines if (match := RANK.match(line))]
    if len(ranks) < 2 or ranks != list(range(1, len(ranks) + 1)):
        return lines
    return [line[match.end() :] if (match := RANK.match(line)) else line for line in lines]


def _list_part(line: str, forms: _Forms) -> str:
    """What follows the last colon, if it names more than what stands before: 'The best of the 20: 3, 1'."""
    head, _, tail = line.rpartition(":")
    num_named = len(forms.bare.findall(tail))
    return tail if num_named >= 2 and num_named > len(forms.bare.findall(head)) else line


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
    if not is_asked_form:
        return "wrong_format" if num_listed else "refusal"  # numbers that name nothing are prose: "since 1999"
    if num_duplicate:
        return "repetition"
    if num_out_of_range:
        return "out_of_range"
    return "missing" if num_missing else "ok"
