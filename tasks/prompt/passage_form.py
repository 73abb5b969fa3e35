r"""A template's `passage`: where text and fields stand, and how a field is written.

    "[{id}] {text}\n"              fields stand before the text, on a line of their own, if any are asked for
    "[{id}] {fields}\n{text}\n"    the same, said aloud
    "[{id}] {text}\n{fields}\n"    behind the text

Texts and fields are tokenised apart, once each, so a line break stands between them. What of a text may not be in a
prompt is taken out here, too. Knows nothing of token ids.
"""

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

PLAIN_FIELD = "{name}: {value}"
FIELD_SEPARATOR = " | "
FIELD_SOURCES = ("candidates", "documents")  # a field may be called by its input: 'documents.date'
TEXT_FIRST = re.compile(r"\{text\}\n\{fields\}(\n{0,2})")
FIELDS_FIRST = re.compile(r"(?:\{fields\}\n)?\{text\}(\n{0,2})")
IDENTIFIER = re.compile(r"[\[［]\s*(\d{1,4}|[A-Za-zＡ-Ｚａ-ｚ])\s*[\]］]")
VALUE = re.compile(r"\{value(?::\.(\d)f)?\}")


@dataclass(frozen=True, slots=True)
class PassageForm:
    """How a template writes a passage."""

    head: str  # with {id}, a space included
    tail: str  # the line breaks at its end
    text_first: bool  # fields stand behind the text

    @property
    def text_tail(self) -> str:
        """The line breaks behind the text."""
        return "\n" if self.text_first else self.tail

    @property
    def fields_tail(self) -> str:
        """The line breaks behind the fields."""
        return self.tail if self.text_first else "\n"


def read_passage_form(passage: str) -> PassageForm | None:
    """The form of a template's `passage`; None where it is none that can be tokenised once."""
    head = re.split(r"\{text\}|\{fields\}", passage, maxsplit=1)[0]
    rest = passage[len(head) :]
    if found := TEXT_FIRST.fullmatch(rest):
        return PassageForm(head, found[1], text_first=True)
    found = FIELDS_FIRST.fullmatch(rest)
    return None if found is None else PassageForm(head, found[1], text_first=False)


def split_field(field: str) -> tuple[str, tuple[str, ...]]:
    """The name of our column, and the inputs that it may be in.

    >>> split_field("documents.date"), split_field("score")
    (('date', ('documents',)), ('score', ('candidates', 'documents')))
    """
    source, _, name = field.partition(".")
    return (name, (source,)) if source in FIELD_SOURCES and name else (field, FIELD_SOURCES)


def own_name(field: str) -> str:
    """A field's name without that of its input.

    >>> own_name("documents.date"), own_name("meta.date")
    ('date', 'meta.date')
    """
    return split_field(field)[0]


def is_field_form(form: str) -> bool:
    """Whether it can be a template's `field`: one line with {value}, perhaps with decimals, and perhaps {name}."""
    words = VALUE.sub("", form, count=1).replace("{name}", "", 1)
    return words != form and VALUE.search(form) is not None and not re.search(r"[{}\n]", words)


def decimals_of(form: str) -> int | None:
    """How many decimals a template's `field` wants of numbers; None: as few as they need.

    >>> decimals_of("BM25 score: {value:.3f}"), decimals_of(PLAIN_FIELD)
    (3, None)
    """
    found = VALUE.search(form)
    return None if found is None or found[1] is None else int(found[1])


def fields_line(form: str, names: Sequence[str], values: Sequence[str | None]) -> str:
    """The fields that have a value, each in one line's words; '' where none has.

    >>> fields_line(PLAIN_FIELD, ["score", "documents.date", "price"], ["12.31", None, "19.90"])
    'score: 12.31 | price: 19.90'
    """
    line = _joined(form, names, values)
    if line.isprintable() and "  " not in line and not line.endswith(" "):  # most lines: values are single words
        return line
    return _joined(form, names, [value and one_line(value) for value in values])


def _joined(form: str, names: Sequence[str], values: Sequence[str | None]) -> str:
    pairs = zip(_words(form, tuple(names)), values, strict=True)
    return FIELD_SEPARATOR.join([f"{before}{value}{behind}" for (before, behind), value in pairs if value])


@lru_cache(maxsize=8)
def _words(form: str, names: tuple[str, ...]) -> list[tuple[str, str]]:
    """What stands before and behind each field's value."""
    before, behind = VALUE.sub("\n", form, count=1).split("\n")
    own = [one_line(own_name(name)) for name in names]
    return [(before.replace("{name}", name), behind.replace("{name}", name)) for name in own]


def one_line(text: str) -> str:
    r"""The text with every run of white space as one space.

    >>> one_line(" The moon\n\n pulls. ")
    'The moon pulls.'
    """
    is_line = text.isprintable() and "  " not in text and text == text.strip(" ")  # a third of splitting's time
    return text if is_line else " ".join(text.split())


def without_identifiers(text: str) -> str:
    """The text with round brackets where it has an identifier in square ones.

    >>> without_identifiers("[3] > [1], see [note]")
    '(3) > (1), see [note]'
    """
    if "[" not in text and "［" not in text:  # most passages: looking for the whole costs four times as much
        return text
    return IDENTIFIER.sub(lambda match: f"({unicodedata.normalize('NFKC', match[1])})", text)
