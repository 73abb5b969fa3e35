"""Text files of other tools, possibly compressed: lines, and columns between blanks. Errors name file and line.

Ids stay what they are: nothing is taken for a quote, a comment, a number or nothing.
"""

from collections import deque
from collections.abc import Iterator
from csv import QUOTE_NONE
from sys import float_info
from typing import TYPE_CHECKING
from warnings import catch_warnings

import fsspec

from tasks.inputs.locations import file_errors
from tasks.system.errors import InputError

if TYPE_CHECKING:
    import pandas as pd

MAX_COLUMNS = 10  # of a line that are counted: a TREC run has 6
FLOAT_MAX = float_info.max


def read_columns(path: str) -> "pd.DataFrame":
    """The columns of a text file as text, by line from 1, without blank ones; "" where a line has no more columns.

    Blanks and tabs separate columns. The file may be compressed (.gz).

    Raises:
        InputError: it cannot be read, or a line, which is named, is not UTF-8 or has more than MAX_COLUMNS.
    """
    import pandas as pd  # takes half a second, which a night without judgments saves

    how = {"dtype": str, "na_filter": False, "quoting": QUOTE_NONE, "encoding": "utf-8-sig"}
    places = {"names": range(MAX_COLUMNS), "index_col": False, "skip_blank_lines": False}
    with file_errors(path), fsspec.open(path, "rb", compression="infer") as stream, catch_warnings(action="ignore"):
        try:
            rows = pd.read_csv(stream, sep=r"\s+", **how, **places)
        except UnicodeDecodeError:
            deque(numbered_lines(path), maxlen=0)  # names the line
            raise
    rows.index += 1
    return rows[rows[0] != ""]


def named_columns(path: str, rows: "pd.DataFrame", names: str) -> "pd.DataFrame":
    """The columns of `read_columns` under their names.

    Raises:
        InputError: naming the first line that has more or fewer.
    """
    wanted = names.split()
    counts = (rows != "").sum(axis=1)
    for line, count in counts[counts != len(wanted)][:1].items():
        raise InputError(
            f"{path}, line {line}: {count} columns, expected {len(wanted)} ({names}). Ids must not hold white space."
        )
    return rows.iloc[:, : len(wanted)].set_axis(wanted, axis=1)


def numbers(
    path: str, column: "pd.Series", pattern: str, wanted: str, limits: tuple[float, float] = (-FLOAT_MAX, FLOAT_MAX)
) -> "pd.Series":
    """A column of `read_columns` as numbers.

    Raises:
        InputError: naming the first line that is not of the pattern, or not within the limits.
    """
    import pandas as pd

    values = pd.to_numeric(column.where(column.str.fullmatch(pattern)), errors="coerce")
    for line, text in column[~values.between(*limits)][:1].items():
        raise InputError(f"{path}, line {line}: the {column.name} is {text!r}, expected {wanted}. Rewrite the line.")
    return values


def numbered_lines(path: str) -> Iterator[tuple[int, str]]:
    """The lines that are not blank, from 1, of a file that may be compressed (.gz).

    Raises:
        InputError: it cannot be read, or a line, which is named, is not UTF-8.
    """
    with file_errors(path), fsspec.open(path, "rb", compression="infer") as stream:
        for number, line in enumerate(stream, 1):
            try:
                text = line.decode("utf-8-sig" if number == 1 else "utf-8")
            except UnicodeDecodeError as error:
                raise InputError(f"{path}, line {number}: not UTF-8: {error}. Write the file again.") from error
            if text.strip():
                yield number, text.rstrip("\r\n")
