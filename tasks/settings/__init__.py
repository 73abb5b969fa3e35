"""One TOML file and `section.key = value` overrides make one frozen `Settings`: unknown keys are refused.

Defaults live in the sections, never at the point of use. `[engine]` keys are vLLM's own names and pass through
unrenamed; one that vLLM 0.32 does not have is refused. Relative paths are taken from the folder of the file that says
them. Knows nothing of what the settings are used for.
"""

from tasks.settings.engine_keys import CAPACITY, COMPUTED, REFUSED
from tasks.settings.input_section import InputName, InputSettings
from tasks.settings.loading import (
    PATH_SETTINGS,
    alert_settings,
    load_settings,
    overrides_from,
    parse_override,
)
from tasks.settings.models import (
    CheckSettings,
    OutcomeSettings,
    PackingSettings,
    Settings,
    StoreSettings,
    StudySettings,
)
from tasks.settings.night_section import NightSettings
from tasks.settings.reference import SettingKey, keys_of, setting_tables, table_name, unknown_key_hint
from tasks.settings.section import Section
from tasks.settings.stored_settings import differing_settings, store_settings, stored_inputs
from tasks.settings.strategy_section import StrategySettings

__all__ = [
    "CAPACITY",
    "COMPUTED",
    "PATH_SETTINGS",
    "REFUSED",
    "CheckSettings",
    "InputName",
    "InputSettings",
    "NightSettings",
    "OutcomeSettings",
    "PackingSettings",
    "Section",
    "SettingKey",
    "Settings",
    "StoreSettings",
    "StrategySettings",
    "StudySettings",
    "alert_settings",
    "differing_settings",
    "keys_of",
    "load_settings",
    "overrides_from",
    "parse_override",
    "setting_tables",
    "store_settings",
    "stored_inputs",
    "table_name",
    "unknown_key_hint",
]
