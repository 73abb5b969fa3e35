"""What is wrong with settings, in words: where, what was found, what is allowed, and what was perhaps meant."""

from difflib import get_close_matches
from typing import Any

from pydantic import BaseModel, ValidationError

from tasks.settings.night_section import SECRET_SETTING
from tasks.settings.reference import KeyPath, SettingKey, setting_keys, unknown_key_hint
from tasks.settings.strategy_section import OWN_TABLE
from tasks.system.redaction import hide_setting_secrets

UNWRITTEN = ("int", "literal['auto']", "constrained-int", OWN_TABLE)  # of an error's place: no user wrote them
UNKNOWN = ("extra_forbidden", "unexpected_keyword_argument")


def complaints(error: ValidationError, section: KeyPath = ()) -> list[str]:
    """A sentence for each key or table that was refused; `section` is the table that was read alone."""
    by_place: dict[KeyPath, str] = {}
    for detail in error.errors():
        place = (*section, *(str(part) for part in detail["loc"] if part not in UNWRITTEN))
        by_place.setdefault(place, _complaint(detail, place))
    return list(by_place.values())


def _complaint(detail: Any, place: KeyPath) -> str:
    table, *rest = place
    where = f"[{table}]" + (f" {'.'.join(rest)}" if rest else "")
    if detail["type"] in UNKNOWN:
        return f"{where}: unknown key. {unknown_key_hint(place)}"
    key = _known_key(place)
    if detail["type"] == "missing":
        return f"{where}: missing" + ("" if key is None or key.is_table else f", expected {key.allowed}")
    given = detail["input"]
    is_shown = ".".join(place) != SECRET_SETTING and not isinstance(given, dict | BaseModel)
    found = f" = {hide_setting_secrets(given, place[-1])!r}" if is_shown else ""
    if key is None or key.is_table or detail["type"] == "value_error":
        return f"{where}{found}: {detail['msg'].removeprefix('Value error, ')}"
    return f"{where}{found}: expected {key.allowed}{_hint(key, given)}"


def _known_key(place: KeyPath) -> SettingKey | None:
    """The key at a place, or the one that a list's or a table's entry belongs to."""
    ends = (setting_keys().get(place[:length]) for length in range(len(place), 0, -1))
    return next((key for key in ends if key is not None), None)


def _hint(key: SettingKey, given: object) -> str:
    if not isinstance(given, str):
        return ""
    if "number" in key.allowed and given.replace(".", "", 1).lstrip("-").isdigit():
        return ", without quotes"
    near = get_close_matches(repr(given), key.allowed.replace(",", "").split(), n=1)
    return f". Is it {near[0]}?" if near else ""
