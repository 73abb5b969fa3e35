"""Settings from a TOML file, its preset and overrides; the words of their errors.

A relative path is taken from the folder of the file that says it, or from where `--set` was typed. Loaded, one that
lies in the checkout is seen from there: a run's identity does not depend on where the checkout is.
"""

import os
import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from tasks.settings.complaints import complaints
from tasks.settings.engine_keys import CAPACITY, COMPUTED
from tasks.settings.models import Settings
from tasks.settings.night_section import SECRET_SETTING, NightSettings
from tasks.settings.reference import engine_key_hint, setting_keys
from tasks.system.environment import ROOT, checkout_path
from tasks.system.errors import ConfigError, first_line
from tasks.system.redaction import SECRET_NAME

PATH_SETTINGS = (
    "preset",
    "night.alert_url_file",
    "inputs.queries",
    "inputs.documents",
    "inputs.candidates",
    "inputs.nested",
    "inputs.qrels",
    "prompt.template",
    "prompt.cascade_template",
    "engine.model",
    "engine.lora",
    "store.database",
    "store.export",
    "store.spool",
)
NAMES = {  # of those, what is no path
    "preset": re.compile(r"[\w-]+"),  # one of PRESETS
    "engine.model": re.compile(r"\w[^/]*(/[^/]+)?"),  # on the hub, where no folder is called so
    "prompt.template": re.compile(r"\w+:\w+"),  # a package's
    "prompt.cascade_template": re.compile(r"\w+:\w+"),
}
NONE = "none"  # as an override: the key or table is left out, where it may be
PRESETS = checkout_path("configs/models")
HOMES = (ROOT, PRESETS.parent.parent)  # the project, and what comes with packrank: the same in a checkout
PRESET_SECTIONS = ("strategy", "prompt", "engine", "packing", "checks")


def load_settings(path: Path, overrides: Mapping[str, object] | None = None) -> Settings:
    """Reads the file and lays `overrides`, dotted paths to values, over it.

    Raises:
        ConfigError: naming file, section, key, the value found and what is allowed.
    """
    for dotted in overrides or {}:
        if dotted == SECRET_SETTING or SECRET_NAME.search(dotted.rpartition(".")[2]):
            raise ConfigError(f"override {dotted}: Prefect would store the secret; put it into {path}.")
    given = {dotted: _from_folder(ROOT, dotted, value) for dotted, value in (overrides or {}).items()}
    document = _over_preset(path, given.get("preset"))
    for dotted, value in given.items():
        lay_over(document, dotted, value)
    night = document.setdefault("night", {})
    if isinstance(night, dict) and not night.get("name"):
        night["name"] = path.stem
    try:
        settings = Settings.model_validate(document)
    except ValidationError as error:
        raise ConfigError(f"{path}: {'; '.join(complaints(error))}") from error
    if unknown := (settings.engine.model_extra or {}).keys() - COMPUTED - CAPACITY:
        told = (f"[engine] {key}: vLLM has no such setting. {engine_key_hint(key)}" for key in sorted(unknown))
        raise ConfigError(f"{path}: {'; '.join(told)}")
    return settings


def alert_settings(path: Path) -> NightSettings:
    """`[night]` of a settings file whatever is wrong elsewhere in it, or in `[night]` beside its alert_url.

    Raises:
        ConfigError: the file cannot be read, or alert_url is no URL.
    """
    section = _read_settings(path).get("night", {})
    section = section if isinstance(section, dict) else {}
    name = {} if section.get("name") else {"name": path.stem}
    try:
        return NightSettings.model_validate(section | name)
    except ValidationError:
        pass
    try:
        return NightSettings.model_validate(name | {key: section.get(key) for key in ("alert_url", "alert_url_file")})
    except ValidationError as error:
        raise ConfigError(f"{path}: [night] alert_url: expected an http:// or https:// URL") from error


def parse_override(text: str) -> tuple[str, object]:
    """`section.key=value` as a dotted path and a TOML value; a value that is no TOML is text.

    >>> parse_override("strategy.window_size=10"), parse_override("night.name=trial")
    (('strategy.window_size', 10), ('night.name', 'trial'))
    """
    dotted, sign, value = text.partition("=")
    if not sign or ("." not in dotted and dotted != "preset"):
        raise ConfigError(f"--set {text}: expected section.key=value, such as strategy.window_size=10")
    try:
        return dotted.strip(), tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        return dotted.strip(), value


def overrides_from(texts: Sequence[str], folder: Path) -> dict[str, object]:
    """Several `section.key=value`; a relative path is taken from `folder`, where it was typed.

    Raises:
        ConfigError: one is not of that form.
    """
    overrides = dict(parse_override(text) for text in texts)
    return {dotted: _from_folder(folder, dotted, value) for dotted, value in overrides.items()}


def _read_settings(path: Path) -> dict[str, Any]:
    """A settings file or preset; its paths as `_from_folder` gives them."""
    document = _read_toml(path)
    folder = path.absolute().parent.resolve()
    for dotted in PATH_SETTINGS:
        section, _, key = dotted.rpartition(".")
        table = document.get(section) if section else document
        if isinstance(table, dict) and key in table:
            table[key] = _from_folder(folder, dotted, table[key])
    return document


def _from_folder(folder: Path, dotted: str, value: object) -> object:
    """A path that is relative to `folder`, or begins with `~`: from the checkout if it lies there, else absolute.

    URLs, names, and what is no path setting stay as they are.
    """
    if dotted not in PATH_SETTINGS or not isinstance(value, str) or not value or "://" in value or value[0] in "/$":
        return value
    if (
        dotted in NAMES
        and NAMES[dotted].fullmatch(value)
        and not (dotted == "engine.model" and (folder / value).exists())
    ):
        return value
    path = Path(os.path.normpath(folder / os.path.expanduser(value)))
    home = next((each for each in HOMES if path.is_relative_to(each)), None)
    return str(path if home is None else path.relative_to(home))


def _read_toml(path: Path) -> dict[str, Any]:
    if path.suffix != ".toml":  # a flow run names the file: nothing is told of others, nor read without end
        raise ConfigError(f"{path}: not a settings file. Give a TOML file, named *.toml.")
    try:
        return tomllib.loads(path.read_text(encoding="utf-8-sig"))  # Windows' editors begin a file with a mark
    except FileNotFoundError as error:
        raise ConfigError(f"{path.absolute()}: no such settings file. Give a TOML file as in configs/.") from error
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"{path}: not readable as TOML: {first_line(error)}") from error


def _over_preset(settings: Path, override: object) -> dict[str, Any]:
    """A settings file's values over those of the preset that it names: section by section, key by key."""
    document = _read_settings(settings)
    preset = override or document.get("preset")
    if not isinstance(preset, str):
        return document
    path = PRESETS / f"{preset}.toml" if NAMES["preset"].fullmatch(preset) else checkout_path(preset)
    if not path.is_file():
        shipped = ", ".join(sorted(each.stem for each in PRESETS.glob("*.toml")))
        raise ConfigError(
            f"{settings}: preset = {preset!r}: no such file ({path}). Give a path, or a shipped preset: {shipped}."
        )
    under = _read_settings(path)
    for section in under:
        if section not in PRESET_SECTIONS:
            raise ConfigError(
                f"{preset}: {section}: a preset has the sections {', '.join(PRESET_SECTIONS)} only; a night's own go "
                "into its settings file."
            )
    return _merged(under, document)


def _merged(under: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(under)
    for key, value in over.items():
        both = isinstance(value, Mapping) and isinstance(under.get(key), Mapping)
        merged[key] = _merged(under[key], value) if both else value
    return merged


def lay_over(document: dict[str, Any], dotted: str, value: object) -> None:
    """Puts a value into a document; sections that are not there are made.

    Raises:
        ConfigError: a section is a value there.
    """
    *sections, key = dotted.split(".")
    table = document
    for section in sections:
        table = table.setdefault(section, {})
        if not isinstance(table, dict):
            raise ConfigError(f"override {dotted}: {section} is a value, not a table")
    setting = setting_keys().get((*sections, key)) if value == NONE else None
    if setting is not None and setting.may_be_left_out:
        table.pop(key, None)
    else:
        table[key] = value
