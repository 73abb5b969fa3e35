"""`[night]`: the run's name, when it starts, which calendar night that is, and who is told."""

import os
from collections.abc import Iterator
from datetime import UTC, date, datetime, time, timedelta
from typing import Self
from urllib.parse import urlsplit
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from cronsim import CronSim, CronSimError
from pydantic import (
    Field,
    SecretStr,
    field_validator,
    model_validator,
)

from tasks.settings.section import Section
from tasks.system.environment import checkout_path
from tasks.system.errors import ConfigError

SECRET_SETTING = "night.alert_url"  # Prefect stores a flow run's parameters, and with them its overrides


class NightSettings(Section):
    """Which night this is, and when it starts."""

    name: str = Field(  # of the published series; the file's stem if empty. It names folders, so no dot comes first
        default="", pattern=r"^([A-Za-z0-9_-][A-Za-z0-9_.-]*)?$", examples=["products-ko"]
    )
    cron: str | None = None  # nights start then, as in '30 1 * * *'; a night has the date of the last such time
    timezone: str = "UTC"  # of cron, finish_by and the night's date: an IANA name such as 'Asia/Seoul'
    finish_by: str = Field(
        default="", pattern=r"^(([01]\d|2[0-3]):[0-5]\d)?$", examples=["06:30"]
    )  # wall time after which no more windows are asked; no limit if empty
    alert_url: SecretStr | None = None  # gets a POST with one JSON document if a night of a deployment fails or crashes
    alert_url_file: str | None = None  # or a file with only that URL; $VARIABLES in the path are expanded

    @field_validator("alert_url")
    @classmethod
    def _web_address(cls, value: SecretStr | None) -> SecretStr | None:
        if value is not None and not _is_web_address(value.get_secret_value()):
            raise ValueError("expected an http:// or https:// URL; its value is a secret, so it is not shown")
        return value

    @model_validator(mode="after")
    def _one_alert_url(self) -> Self:
        if self.alert_url is not None and self.alert_url_file is not None:
            raise ValueError("give either alert_url or alert_url_file")
        return self

    def find_alert_url(self) -> str | None:
        """Where alerts go; None if nowhere. A file is read now, so that a secret that was renewed is taken.

        Raises:
            ConfigError: alert_url_file cannot be read, or holds something else.
        """
        if self.alert_url is not None:
            return self.alert_url.get_secret_value()
        if self.alert_url_file is None:
            return None
        path = checkout_path(os.path.expandvars(self.alert_url_file))
        try:
            url = path.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"[night] alert_url_file: {path}: cannot be read: {type(error).__name__}") from error
        if not _is_web_address(url):
            raise ConfigError(
                f"[night] alert_url_file: {path}: expected only an http:// or https:// URL; its content is a "
                "secret, so it is not shown"
            )
        return url

    @field_validator("timezone")
    @classmethod
    def _known_timezone(cls, value: str) -> str:
        try:
            ZoneInfo(value)
        except (ZoneInfoNotFoundError, ValueError) as error:
            raise ValueError(f"{value!r} is not an IANA time zone such as 'Asia/Seoul'") from error
        return value

    @field_validator("cron")
    @classmethod
    def _known_cron(cls, value: str | None) -> str | None:
        if value is None:
            return None
        fields = value.split()
        try:
            CronSim(value, datetime(2026, 1, 1))
        except CronSimError as error:
            raise ValueError(f"{value!r} is not a cron line of five fields ({error})") from error
        if len(fields) != 5:
            raise ValueError(f"{value!r} has {len(fields)} fields; a cron line has five")
        days = (fields[2], fields[4])
        if "*" not in days and any(mark in field for field in days for mark in "*#L"):
            raise ValueError(
                f"{value!r}: Prefect starts it on other days than cron would, where both day fields are given and one "
                "of them has '*', '#' or 'L'. Give one of the two as '*', or both as plain numbers"
            )
        return value

    def night_at(self, moment: datetime) -> date:
        """The date that the schedule's last fire time not after `moment` (aware) has on the wall clock.

        As in Prefect 3.7.7, a wall time that a clock change skips fires at the offset after the change, so before the
        change, and one that comes twice fires the first time. A skipped 00:30 therefore fires on the evening before
        its date: the cron line is read in wall time, and each wall time has one date.
        """
        zone, moment = ZoneInfo(self.timezone), datetime.fromtimestamp(moment.timestamp(), UTC)  # no subclass of it
        if self.cron is None:
            return moment.astimezone(zone).date()
        ahead = moment.astimezone(zone).replace(tzinfo=None) + timedelta(days=1)  # no clock change is longer
        walls: Iterator[datetime] = CronSim(self.cron, ahead, reverse=True)
        return next(wall.date() for wall in walls if min(_readings(wall, zone)) <= moment)

    def newest_night(self, now: datetime) -> date:
        """The newest night that may be asked for by name: today's, or the schedule's where that is ahead of it.

        The next hour counts as now: a shard's host whose clock is a little behind does not refuse tonight.
        """
        soon = now + timedelta(hours=1)
        return max(soon.astimezone(ZoneInfo(self.timezone)).date(), self.night_at(soon))

    def ends_at(self, start: datetime) -> datetime | None:
        """The first `finish_by` after `start` (aware), in the night's own time zone; None without one."""
        if not self.finish_by:
            return None
        zone, finish_by = ZoneInfo(self.timezone), time.fromisoformat(self.finish_by)
        today = datetime.combine(start.astimezone(zone), finish_by)
        moments = [*_readings(today, zone), *_readings(today + timedelta(days=1), zone)]
        return next(moment for moment in moments if moment > start).astimezone(zone)


def _readings(wall: datetime, zone: ZoneInfo) -> tuple[datetime, datetime]:
    """When clocks show a wall time, UTC: both times where it comes twice, else the same twice.

    Where a clock change skips it: by the offset before the change, and by that after it, which is the earlier moment.
    """
    first, second = (wall.replace(tzinfo=zone, fold=fold).astimezone(UTC) for fold in (0, 1))
    return first, second


def _is_web_address(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and url.isprintable() and " " not in url
    except ValueError:
        return False
