"""Reads an order out of any text: always a complete permutation, with what went wrong as counts and a status.

Never raises, never guesses a torn identifier, never wraps a number around to another document. Knows nothing of
windows: places count from 0 in prompt order.
"""

import re
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

from tasks.decode.answer import ParseStatus
from tasks.prompt.thoughts import behind_thoughts

ANSWER_START = re.compile(r"<answer>", re.IGNORECASE)
ANSWER_END = re.compile(r"</answer>", re.IGNORECASE)
END_OF_TURN = re.compile(r"(?:<\|[^\s|<>]{1,40}\|>|</s>)\s*+\Z")  # a model's own end, which may hold a letter
BLANK_ANSWER = re.compile(r"<answer>\s*</answer>", re.IGNORECASE)  # the prompt's form, repeated
NOT_ASCII = re.compile(r"[^\x00-\x7f]")
MINUS_SIGN = "\N{MINUS SIGN}"
KEYCAP_MARKS = "\N{VARIATION SELECTOR-16}\N{COMBINING ENCLOSING KEYCAP}"

# Every expression below is linear in any text: runs are possessive, or cannot overlap with what follows them.
LABEL = r"\b(?i:passage|document|doc|문서|지문)s?+[-_]?+"
GAP = r"[\s#:*\[(\"]"  # between a label and its identifier
NUMBER = r"-?\d++(?:(?=번(?!째))|(?!\.?\w))"  # 번: "No." in Korean; neither 2.5 nor 2nd
LETTER = r"[A-Za-z](?![\w'’])"
BETTER = r"[^\w\[\].:;>≥≫→=]*+[>≥≫→=][^\w\[\].:;-]*+"  # between two of a ranking, over lines and emphasis
BESIDE = r"[^\w\[\].:;]*+"  # between two of a list
KEY = r"[\"'](?i:[a-z]{1,20}_)?(?i:passage|document|doc|identifier|id)(?i:_?(?:id|number))?[\"']\s*+:\s*+[\"'\[]?"
SCORED = r"(?:[\"']?\s*+:\s*+[\"']?|\s*+\()(-?\d++)(?:\.\d++)?"  # what follows an identifier in "3: 2" and in "3 (2)"
# Nothing, a remark, a score, or the further cells of a table's row; "3 - 1 - 2" has none of them.
ITEM_END = r"(?:\W*|\W*?(?:[.):–—-]\**\s+(?=[^\d\s])|\().*|\s*+:\s*+-?\d++(?:[./]\d++)?\W*|\s*+\|.*)"
# "1. ", "1위: " or "| 1 | " before an item
RANK = re.compile(r"[\s*#>|-]*+(\d{1,4})(?:순?위)?(?:[.):]|\s*+\|)\**+(?:\s+(?=\S)|(?=[^\W\d]))")
MAX_DIGITS = 9  # a longer number names nothing


@dataclass(frozen=True, slots=True)
class _Forms:
    """The ways to write an identifier, which is each expression's first group, and rankings of them."""

    name: re.Pattern[str]  # in a ranking, where nothing else has its form
    ranking: re.Pattern[str]  # [3] > [1] > [2], as prompts ask; a bracket may hold several: [3, 1] > [2]
    listing: re.Pattern[str]  # [3], [1] [2]
    bare_ranking: re.Pattern[str]  # 3 > 1 > 2, and with labels
    bracketed: re.Pattern[str]  # anywhere; behind a bracket that the prompt opened, the closing one is enough
    labelled: re.Pattern[str]  # "Document 3"
    keyed: re.Pattern[str]  # "passage": 3
    bare: re.Pattern[str]
    scored: re.Pattern[str]  # 3: 2
    item: re.Pattern[str]  # a whole line of a list


def _forms(name: str, word: str, *, gap: str, before: str, behind: str) -> _Forms:
    """Of an identifier inside brackets, and of one that stands alone."""
    bracket = rf"(?:\[|\A)\s*+{name}(?:\s*+,\s*+{name})*+\s*+\]"
    bare = rf"(?:{LABEL}{GAP}{gap})?{word}"
    return _Forms(
        name=re.compile(rf"(?<![^\W\d_]){name}(?![^\W\d_])" if name != r"-?\d++" else name),
        ranking=re.compile(rf"{bracket}(?:{BETTER}{bracket})+"),
        listing=re.compile(rf"{bracket}(?:{BESIDE}{bracket})+"),
        bare_ranking=re.compile(rf"{before}{bare}(?:번?{BETTER}{bare})+"),
        bracketed=re.compile(rf"(?:\[|\A)\s*({name})\s*\]"),
        labelled=re.compile(rf"{LABEL}{GAP}{gap}({word})"),
        keyed=re.compile(rf"{KEY}({word})"),
        bare=re.compile(rf"{before}({word}){behind}"),
        scored=re.compile(rf"{before}({word}){SCORED}"),
        item=re.compile(rf"\W*?(?:{LABEL}{GAP}{gap})?({word})번?{ITEM_END}"),
    )


NUMBERS = _forms(
    r"-?\d++",
    NUMBER,
    gap="*?",
    before=r"(?<![\w.])(?<![^\W\d]-)",  # neither COVID-19
    behind=r"(?!\s*+(?i:passages|documents)\b)",  # nor "20 passages"
)
LETTERS = _forms("[A-Za-z]", LETTER, gap="+?", before=r"(?<![\w'’])", behind="")


@dataclass(frozen=True, slots=True)
class ParsedOrder:
    """A complete order of a window's places."""

    order: tuple[int, ...]  # best first; the places that the text did not list follow in prompt order
    num_listed: int
    num_missing: int  # places that were asked for and not listed
    num_duplicate: int
    num_out_of_range: int
    status: ParseStatus


def parse_permutation(  # noqa: PLR0913  all that is known of the answer, each by name
    text: str,
    num_passages: int,
    place_of: Callable[[str], int],
    *,
    by_letter: bool,
    was_cut: bool,
    num_asked: int | None = None,
    pivot: int | None = None,
) -> ParsedOrder:
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
    ParsedOrder(order=(1, 2, 0, 3), num_listed=2, num_missing=0, num_duplicate=0, num_out_of_range=0, status='ok')
    """
    num_wanted = num_passages if num_asked is None else min(num_asked, num_passages)
    answer = _plain(_answer_part(text))
    if was_cut:
        answer = _without_torn_tail(answer)
    names, is_asked_form = _identifiers(answer, LETTERS if by_letter else NUMBERS, num_wanted)
    places = [place_of(name) if len(name) <= MAX_DIGITS else -1 for name in names]
    in_range = [place for place in places if 0 <= place < num_passages]
    listed = dict.fromkeys(in_range)
    if pivot is not None:
        num_wanted = len(listed) if pivot in listed else num_passages
    num_missing = max(num_wanted - len(listed), 0)
    num_duplicate = len(in_range) - len(listed)
    num_out_of_range = len(places) - len(in_range)
    return ParsedOrder(
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
    """What follows the last think block, and there the last answer block."""
    unthought = BLANK_ANSWER.sub("", behind_thoughts(text))
    answer = ANSWER_END.split(_behind_last(ANSWER_START, unthought), maxsplit=1)[0]
    return END_OF_TURN.sub("", answer)


def _behind_last(tag: re.Pattern[str], text: str) -> str:
    return tag.split(text)[-1]


def _plain(text: str) -> str:
    """Digits of other scripts, circled and raised ones and full-width characters as ASCII; unseen ones as spaces."""
    return NOT_ASCII.sub(lambda match: _plain_character(match[0]), text)


@lru_cache(maxsize=1_024)
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


def _identifiers(answer: str, forms: _Forms, num_wanted: int) -> tuple[list[str], bool]:
    """The identifiers in the order of the text, and whether they stood in the form that was asked for.

    A draft, or passages and instruction repeated, come before the ranking: the last one that is whole is taken, then
    the last of three or more. Without one, what is named first ranks first. A single identifier in brackets may stand
    in prose: where more were asked for, a longer list without brackets is taken.
    """
    names = forms.bracketed.findall(answer)
    enough = max(num_wanted, 2)
    ranking = _last_ranking(answer, forms, forms.ranking, enough, 3) or _last_ranking(
        answer, forms, forms.listing, enough
    )
    if not ranking and len(set(names)) < len(names):
        ranking = _last_ranking(answer, forms, forms.ranking, 2)
    if ranking:
        return ranking, True
    if len(names) >= min(num_wanted, 2):
        return names, True
    others = _last_ranking(answer, forms, forms.bare_ranking, enough, 3) or _identifiers_without_brackets(answer, forms)
    return (others, False) if len(others) > len(names) else (names, bool(names))


def _last_ranking(answer: str, forms: _Forms, ranking: re.Pattern[str], *enough: int) -> list[str]:
    """The last one with as many names as is enough, which is tried in turn; none if there is none."""
    found = [forms.name.findall(match[0]) for match in ranking.finditer(answer)]
    for num_names in enough:
        whole = [names for names in found if len(set(names)) >= num_names]
        if whole:
            return whole[-1]
    return []


def _identifiers_without_brackets(answer: str, forms: _Forms) -> list[str]:
    """Those behind keys of JSON; else the longest of several lists, the last of equal lines.

    The lists: the last line of labelled identifiers, each other line, and the column with one in each line. Never those
    of the whole text, where 'the 20 passages: [3] > [1]' would read as 20, 3, 1.
    """
    keyed = forms.keyed.findall(answer)
    if len(keyed) >= 2:
        return keyed
    lines = _without_ranks(answer.splitlines())
    items = [forms.item.fullmatch(line) for line in lines]
    column = [item[1] for item in items if item]
    labelled: list[str] = []
    found: list[list[str]] = []
    for line, item in zip(lines, items, strict=True):
        if item and len(column) >= 2:
            continue  # what else such a line names is its remark's
        part = _list_part(_without_scores(line, forms), forms)
        names = forms.labelled.findall(part)
        if len(names) >= 2:
            labelled = names
        elif forms is NUMBERS or _is_mostly_letters(part):
            found.append(forms.bare.findall(part))
    return max([labelled, *reversed(found), column], key=len)


def _without_scores(line: str, forms: _Forms) -> str:
    """The identifiers of '3: 2, 1: 5' and '3 (2), 1 (5)' alone; where they count 1, 2, 3 they are ranks."""
    pairs = forms.scored.findall(line)
    if len(pairs) < 2:
        return line
    names, values = zip(*pairs, strict=True)
    counts = [str(number) for number in range(1, len(pairs) + 1)]
    return ", ".join(values if list(names) == counts else names)


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


def _status(  # noqa: PLR0913  counts, each by name
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
