"""The schedules of prefect.yaml against `[night]` of the settings that it deploys."""

import sys
from pathlib import Path

import yaml

from tasks.settings import load_settings
from tasks.system.environment import ROOT, checkout_path
from tasks.system.errors import ConfigError


def check_schedules(path: Path = ROOT / "prefect.yaml") -> None:
    """Whether each deployment starts when the settings say: a night's date is that of the last time in `[night]`.

    Raises:
        ConfigError: a deployment starts at other times or in another time zone; nights would get the wrong date.
    """
    for deployment in yaml.safe_load(path.read_text(encoding="utf-8"))["deployments"]:
        config = (deployment.get("parameters") or {}).get("config")
        if config is None:
            continue
        if not checkout_path(config).is_file():
            print(f"{path.name}: {config} is not on this machine: its schedule is not checked", file=sys.stderr)
            continue
        night = load_settings(checkout_path(config)).night
        for schedule in deployment.get("schedules") or ():
            cron, timezone = schedule.get("cron"), schedule.get("timezone", "UTC")
            if cron is not None and (night.cron or cron, night.timezone) != (cron, timezone):
                raise ConfigError(
                    f"{path}: deployment {deployment['name']} starts at cron = {cron!r}, timezone = {timezone!r}, but "
                    f"[night] of {config} has cron = {night.cron!r}, timezone = {night.timezone!r}: its nights would "
                    "get the wrong date. Write the same into both files."
                )
