"""Texts of queries, passages and fields as they may stand in a prompt. Knows nothing of token ids."""

import re
import unicodedata

IDENTIFIER = re.compile(r"[\[［]\s*(\d{1,4}|[A-Za-zＡ-Ｚａ-ｚ])\s*[\]］]")


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
