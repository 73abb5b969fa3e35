"""Records of other tools' JSON: each field is checked, and errors name file and line.

All functions raise InputError where a value is not what they return.
"""

import json
from collections.abc import Iterator, Mapping
from math import isfinite
from typing import Any

from tasks.inputs.qrels import numbered_lines
from tasks.system.errors import InputError, first_line


def json_lines(path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """The object of each line, with where it stands."""
    for number, line in numbered_lines(path):
        where = f"{path}, line {number}"
        try:
            found = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise InputError(f"{where}: not JSON: {first_line(error)}. Write the line again.") from error
        yield where, _as_object(where, found)


def json_array(path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """The objects of one JSON array, which is read at once."""
    try:
        found = json.loads("\n".join(line for _, line in numbered_lines(path)))
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: not JSON: {first_line(error)}. Write the file again.") from error
    for number, each in enumerate(found, 1):
        where = f"{path}, request {number}"
        yield where, _as_object(where, each)


def is_json_array(path: str) -> bool:
    """Whether the file is one array, and not an object a line."""
    first = next(numbered_lines(path), (0, ""))[1]
    return first.lstrip().startswith("[")


def _as_object(where: str, found: object) -> dict[str, Any]:
    if not isinstance(found, dict):
        raise InputError(f"{where}: {type(found).__name__}, wanted a JSON object.")
    return found


def id_field(where: str, found: Mapping[str, Any], key: str) -> str:
    """An id as text: numbers in decimal."""
    value = found.get(key)
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if isinstance(value, str) and value:
        return _encodable(where, key, value)
    raise InputError(f"{where}: {key!r} is {type(value).__name__}, wanted a text or a whole number.")


def text_field(where: str, found: Mapping[str, Any], key: str) -> str:
    """A text that can be written as UTF-8."""
    value = found.get(key)
    if not isinstance(value, str):
        raise InputError(f"{where}: {key!r} is {type(value).__name__}, wanted a text.")
    return _encodable(where, key, value)


def title_field(where: str, found: Mapping[str, Any]) -> str | None:
    """BEIR writes an empty title where there is none."""
    return text_field(where, found, "title") or None if found.get("title") is not None else None


def _encodable(where: str, key: str, value: str) -> str:
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise InputError(f"{where}: {key!r} holds half a character (a lone surrogate). Write it again.") from error
    return value


def finite_number(where: str, found: object) -> float:
    """A score: a number, or a text that is one."""
    try:
        value = float(found) if isinstance(found, str | int | float) else float("nan")
    except (ValueError, OverflowError):
        value = float("nan")
    if not isfinite(value):
        raise InputError(f"{where}: the score is {found!r}, wanted a number.")
    return value
