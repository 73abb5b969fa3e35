"""`packrank settings`, and docs/settings.md, which `python -m tasks.tools.settings_page` writes: every key there is."""

import re
from collections.abc import Iterable

from tasks.engine.child import VLLM_SERIES
from tasks.report.summary_tables import SummaryTable, Worded
from tasks.report.table_formats import to_markdown
from tasks.settings import (
    CAPACITY,
    COMPUTED,
    REFUSED,
    SettingKey,
    keys_of,
    setting_tables,
    table_name,
    unknown_key_hint,
)
from tasks.system.environment import ROOT
from tasks.system.errors import ConfigError

PAGE = ROOT / "docs" / "settings.md"
HEAD = """# Settings

Every key of a settings file, made by `make settings` from the models in `tasks/settings/`. `packrank settings strategy`
prints one section. `--set section.key=value` lays a value over the file, `--set section.key=none` takes one back where
it may be left out. A preset may have the sections strategy, prompt, engine, packing and checks.
"""
COLUMNS = ("key", "default", "what it may be", "what it means")


def settings_tables(section: str | None = None) -> list[SummaryTable]:
    """A table for each section, or for one with the tables inside it.

    Raises:
        ConfigError: there is no such section.
    """
    top = [_table("A settings file", "A TOML file.", keys_of(()))] if section is None else []
    found = [table for table in setting_tables() if section is None or table.path[0] == section.strip("[]")]
    if section is not None and not found:
        raise ConfigError(f"settings: no section {section!r}. {unknown_key_hint((section.strip('[]'),))}")
    tables = [_table(table_name(table.path), table.meaning, keys_of(table.path)) for table in found]
    return [each for each in top + tables if each.rows] + (_engine_tables() if section in (None, "engine") else [])


def settings_page() -> str:
    """The text of docs/settings.md."""
    written = to_markdown(settings_tables())
    return f"{HEAD}\n{re.sub(' {2,}(?=[|])|-{3}-+', lambda found: ' ' if ' ' in found[0] else '---', written)}"


def _table(title: str, meaning: str, keys: Iterable[SettingKey]) -> SummaryTable:
    rows = tuple((key.path[-1], _default(key), key.allowed, key.meaning) for key in keys)
    return SummaryTable(title, COLUMNS, rows, meaning, wraps=True)


def _default(key: SettingKey) -> Worded:
    if key.is_required:
        return Worded(None, "has to be given")
    if key.default is None:
        return Worded(None, "-")
    return Worded(key.default, str(key.default).lower() if isinstance(key.default, bool) else repr(key.default))


def _engine_tables() -> list[SummaryTable]:
    """vLLM's other settings, by what they do to a run."""
    refused = tuple((key, why.why) for key, why in sorted(REFUSED.items()))
    return [
        SummaryTable(
            f"[engine]: other settings of vLLM {VLLM_SERIES} by their own names",
            ("what they change", "settings"),
            (
                ("what is computed: another value is another run", ", ".join(sorted(COMPUTED))),
                ("speed, memory and logs: a run keeps its id", ", ".join(sorted(CAPACITY))),
            ),
            wraps=True,
            name="engine_other",
        ),
        SummaryTable(
            "[engine]: refused, but for values that change nothing",
            ("setting", "why"),
            refused,
            wraps=True,
            name="engine_refused",
        ),
    ]


if __name__ == "__main__":
    PAGE.write_text(settings_page(), encoding="utf-8")
