"""Settings as they are stored with a run: read again, and held against others."""

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from tasks.settings.complaints import complaints
from tasks.settings.input_section import InputName, InputSettings
from tasks.settings.loading import lay_over
from tasks.settings.models import Settings, StoreSettings
from tasks.system.errors import ConfigError
from tasks.system.redaction import MASK, hide_setting_secrets


def stored_inputs(run_id: str, run_settings: Mapping[str, Any], needed: Sequence[InputName]) -> InputSettings:
    """`[inputs]` of settings that are stored with a run, for reading those that are `needed` again.

    Raises:
        ConfigError: they are not this packrank's, or a needed one was a URL with secrets, which are not stored.
    """
    stored = run_settings.get("inputs", {})
    hidden = [name for name in needed if "://" in str(stored.get(name)) and MASK in str(stored.get(name))]
    if hidden:
        raise ConfigError(f"run {run_id}: [inputs] {', '.join(hidden)} had a URL with secrets, which are not stored.")
    try:
        return InputSettings.model_validate(stored)
    except ValidationError as error:
        told = "; ".join(complaints(error, ("inputs",)))
        raise ConfigError(f"run {run_id}: its stored [inputs] are not this packrank's ({told}).") from error


def differing_settings(settings: Settings, run_settings: Mapping[str, Any]) -> list[str]:
    """The settings, as `[section] key`, in which a run's stored ones would rank otherwise; judgments aside."""
    sections = {name: run_settings.get(name, {}) for name in ("inputs", "strategy", "prompt", "engine")}
    try:
        stored = Settings.model_validate({**sections, "night": {}})
    except ValidationError as error:
        return complaints(error)
    ours, theirs = (_ranking_leaves(each) for each in (settings, stored))
    return sorted(key for key in ours.keys() | theirs.keys() if ours.get(key) != theirs.get(key))


def _ranking_leaves(settings: Settings) -> dict[str, Any]:
    """`ranking_settings` without secrets and judgments, by `[section] key`."""
    ranking = hide_setting_secrets(settings.ranking_settings())
    assert isinstance(ranking, dict)
    ranking["inputs"].pop("qrels")
    ranking["inputs"]["columns"].pop("qrels")
    return {f"[{section}] {key}": value for section, values in ranking.items() for key, value in values.items()}


def store_settings(run_settings: Mapping[str, Any], overrides: Mapping[str, object]) -> StoreSettings:
    """`[store]` of settings that are stored with a run, `store.key` overrides laid over it.

    Raises:
        ConfigError: an override of another section, or a value that is not allowed.
    """
    document: dict[str, Any] = {"store": dict(run_settings.get("store", {}))}
    for dotted, value in overrides.items():
        if not dotted.startswith("store."):
            raise ConfigError(f"--set {dotted}: a finished run keeps its settings; expected store.KEY=VALUE.")
        lay_over(document, dotted, value)
    try:
        return StoreSettings.model_validate(document["store"])
    except ValidationError as error:
        raise ConfigError("; ".join(complaints(error, ("store",)))) from error
