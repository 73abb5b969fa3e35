"""Which night a moment belongs to, in any time zone; held against the moments at which Prefect starts the schedule."""

from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from itertools import pairwise
from zoneinfo import ZoneInfo, available_timezones

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.settings import NightSettings

HOUR, DAY = timedelta(hours=1), timedelta(days=1)


def night_settings(zone: str, cron: str) -> NightSettings:
    return NightSettings(name="n", cron=cron, timezone=zone)


@pytest.mark.fault(81)
@pytest.mark.parametrize(
    ("zone", "cron", "first_night", "fires"),  # fires: as Prefect 3.7.7 has them, UTC, one a day
    [
        ("Europe/Berlin", "30 2 * * *", date(2027, 3, 27), ["03-27T01:30", "03-28T00:30", "03-29T00:30"]),
        ("Europe/Berlin", "30 2 * * *", date(2027, 10, 30), ["10-30T00:30", "10-31T00:30", "11-01T01:30"]),
        ("Africa/Cairo", "30 0 * * *", date(2027, 4, 29), ["04-28T22:30", "04-29T21:30", "04-30T21:30"]),
        ("Africa/Cairo", "30 23 * * *", date(2027, 10, 27), ["10-27T20:30", "10-28T20:30", "10-29T21:30"]),
        ("America/Havana", "0 0 * * *", date(2027, 3, 13), ["03-13T05:00", "03-14T04:00", "03-15T04:00"]),
        ("Antarctica/Troll", "0 1 * * *", date(2027, 3, 27), ["03-27T01:00", "03-27T23:00", "03-28T23:00"]),
        ("Australia/Lord_Howe", "15 2 * * *", date(2027, 10, 2), ["10-01T15:45", "10-02T15:15", "10-03T15:15"]),
    ],
)
def test_a_night_whose_hour_the_clocks_skip_or_repeat_is_its_own_night(zone, cron, first_night, fires):
    night = night_settings(zone, cron)
    moments = [datetime.fromisoformat(f"2027-{fire}+00:00") for fire in fires]

    assert [night.night_at(moment) for moment in moments] == [first_night + day * DAY for day in range(3)]
    assert night.night_at(moments[0] - timedelta(seconds=1)) == first_night - DAY
    assert night.night_at(moments[1] - timedelta(seconds=1)) == first_night
    assert night.night_at(moments[1] + 2 * HOUR) == first_night + DAY  # by hand, also in the repeated hour


ZONES = ("Europe/Berlin", "Africa/Cairo", "America/Havana", "Antarctica/Troll", "Australia/Lord_Howe")


@settings(max_examples=25)
@given(
    zone=st.sampled_from(ZONES),
    no=st.integers(0, 3),
    cron=st.builds("{} {} * * *".format, st.integers(0, 59), st.sampled_from([0, 1, 2, 3, 22, 23])),
    hours=st.integers(-40, -20),
)
def test_nights_follow_one_another_and_none_is_left_out(zone, no, cron, hours):
    change = list(clock_changes(ZoneInfo(zone), datetime(2027, 1, 1, tzinfo=UTC), 2 * 366))[no]
    night = night_settings(zone, cron)

    nights = [night.night_at(change + (hours + hour) * HOUR) for hour in range(60)]

    assert {later - earlier for earlier, later in pairwise(nights)} == {0 * DAY, DAY}


@pytest.mark.parametrize(
    ("now", "cron", "newest"),
    [
        ("2026-11-30T12:00", "30 1 * * *", date(2026, 11, 30)),
        ("2026-11-30T14:59", "30 1 * * *", date(2026, 12, 1)),  # 23:59 in Seoul: a clock that is a little behind
        ("2026-11-30T15:01", "30 1 * * *", date(2026, 12, 1)),  # before its fire time: whoever cannot wait
        ("2026-11-30T12:00", None, date(2026, 11, 30)),
    ],
)
def test_the_newest_night_that_may_be_asked_for_is_todays(now, cron, newest):
    night = NightSettings(name="n", cron=cron, timezone="Asia/Seoul")

    assert night.newest_night(datetime.fromisoformat(f"{now}+00:00")) == newest


def test_the_newest_night_may_be_the_schedules_where_its_hour_is_skipped():
    night = night_settings("Africa/Cairo", "30 0 * * *")

    assert night.newest_night(datetime(2027, 4, 29, 21, 30, tzinfo=UTC)) == date(2027, 4, 30)  # 23:30 on 29 April


@pytest.mark.parametrize(
    "cron", ["0 30 1 * * *", "30 1 * *", "0 2 1 * */2", "0 2 */2 * 1-5", "0 2 1-31 * 5#1", "0 2 1 * 5L"]
)
def test_a_cron_line_that_prefect_reads_otherwise_is_refused(cron):
    with pytest.raises(ValueError, match="cron"):
        night_settings("UTC", cron)


@pytest.mark.parametrize("cron", ["0 2 */2 * *", "0 2 * * 1-5", "0 2 1,15 * 1", "0 2 L * *", "0 2 * * 5#1"])
def test_a_cron_line_that_both_read_alike_is_taken(cron):
    assert night_settings("UTC", cron).cron == cron


@pytest.mark.soak
@pytest.mark.fault(81)
def test_each_time_that_prefect_starts_a_night_is_a_night_of_its_own_in_every_zone_whose_clocks_change():
    """In all zones of the tz database, around all clock changes of the next two years."""
    from prefect.server.schemas.schedules import CronSchedule  # takes 2 s

    seen = set()
    wrong = []
    for zone in sorted(available_timezones()):
        changes = tuple(clock_changes(ZoneInfo(zone), datetime.now(UTC), 2 * 366))
        is_alias = changes in seen
        seen.add(changes)
        for change in changes[:2] if is_alias else changes:
            first_after = change.astimezone(ZoneInfo(zone))
            is_gap = first_after.utcoffset() > (change - HOUR).astimezone(ZoneInfo(zone)).utcoffset()
            amidst = [-HOUR / 2 if is_gap else HOUR / 2]
            for offset in amidst if is_alias else [halves * HOUR / 2 for halves in range(-2, 3)]:
                cron = f"{(first_after + offset).minute} {(first_after + offset).hour} * * *"
                schedule = CronSchedule(cron=cron, timezone=zone)
                fires = list(schedule._get_dates_generator(n=3, start=change - 1.5 * DAY))
                nights = [night_settings(zone, cron).night_at(fire) for fire in fires]
                if nights != [nights[0], nights[0] + DAY, nights[0] + 2 * DAY]:
                    wrong.append((zone, cron, fires, nights))
    assert len(seen) > 10
    assert wrong == []


def clock_changes(zone: ZoneInfo, start: datetime, num_days: int) -> Iterator[datetime]:
    """The moments, to the minute, at which the zone's offset to UTC changes."""
    for day in range(num_days):
        before, after = start + day * DAY, start + (day + 1) * DAY
        if before.astimezone(zone).utcoffset() == after.astimezone(zone).utcoffset():
            continue
        while after - before > timedelta(minutes=1):
            middle = before + (after - before) / 2
            if middle.astimezone(zone).utcoffset() == before.astimezone(zone).utcoffset():
                before = middle
            else:
                after = middle
        yield after.replace(second=0, microsecond=0)
