"""Chooses the folders of one night among dated ones, in the forms that writers give them.

The date is in one folder (`dt=2026-11-29`, `ts=2026-11-29 03%3A00%3A00`, `20261129`, `candidates_2026-11-29`) or in
several (`year=2026/month=11/day=29`, `2026/11/29`), above or below folders of other keys. Folders that are neither a
date nor a part of one data set are refused: read together, several nights become one. Knows nothing of files.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import date
from urllib.parse import unquote

from tasks.system.errors import InputError, InputNotReady

Folders = tuple[str, ...]  # the names between an input's folder and a file

NULL_PARTITION = "__HIVE_DEFAULT_PARTITION__"  # rows whose key is null: of no night
DATE_KEYS = (("year", "yyyy", "yr", "y"), ("month", "mm", "m"), ("day", "dd", "d"))
HOUR_KEYS = ("hour", "hh", "h", "")  # of a day: its parts
TIME_KEY = re.compile(
    r"(.*_)?(dt|ds|date|day|night|time|timestamp|datetime|ts|hour|minute|week|month|snapshot|version|run|batch|epoch)(_.*)?"
)
MOMENT = re.compile(
    r"""(?P<year>(?:19|20|21)\d\d) (?P<sign>[-_./]?) (?P<month>\d\d|(?<=[-_./])\d)
    (?: (?P=sign) (?P<day>\d\d|(?<=[-_./])\d)
    (?: [T_ .-]? (?P<hour>\d\d) (?: [:_.-]? (?P<minute>\d\d) (?: [:_.-]? (?P<second>\d\d) (?:[.,]\d+)? )? )?
    \s? (?:Z|UTC|[+-]\d\d:?\d\d)? )? )?""",
    re.VERBOSE,
)
NAMED_MOMENT = re.compile(r"(?P<name>[^\W\d_][\w-]*?[-_.])(?P<moment>\d.*)")
PART = re.compile(r"(part|shard|bucket|chunk|split)s?[-_.=]?\w{0,8}|.*\.parq(uet)?", re.IGNORECASE)
FILE_SUFFIX = re.compile(r"[-_.](snappy|zstd|gz|gzip|lz4|brotli|part|c?\d{1,5})$")
LIKE_A_DATE = re.compile(
    r"\d{1,4}[-._/ ]\d{1,2}[-._/ ]\d{1,4}.*|\d{4}-?W\d\d|1\d{9}(\d{3})?|"
    r"(\d+[-_. ]?)?(jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]*[-_. ]?\d+.*",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Partition:
    """The folders of a path that say one date, or those that the settings name."""

    name: str  # 'dt=2026-11-29', 'year=2026/month=11/day=29'
    key: str  # 'dt', 'year/month/day'; what stands before the date in a plain folder's name
    start: int  # folders of the path above these
    end: int  # folders of the path up to and with these
    moment: tuple[int, ...]  # year, month, day, hour, ... as far as they are said

    @property
    def days(self) -> tuple[int, ...]:
        """The moment as far as a night is told by it."""
        return self.moment[:3]


@dataclass(frozen=True, slots=True)
class NightFolders:
    """Which night's folders are wanted."""

    night: date
    partition: str | None  # as the settings name it
    may_be_older: bool
    is_glob: bool  # the folders were named one by one: what is not understood is meant


def choose_partition(where: str, paths: Mapping[str, Folders], asked: NightFolders) -> dict[str, Partition | None]:
    """The paths to read, each with its chosen folders: the given ones, else the newest date not after the night.

    Args:
        where: opens the messages.
        paths: each path's folders.
        asked: what is wanted.

    Raises:
        InputNotReady: no such partition.
        InputError: folders that are not understood.
    """
    if asked.partition is not None:
        given = _given(where, paths, asked.partition)
        if given:
            return given
    dated = {path: {each.key: each for each in _dated(folders)} for path, folders in paths.items()}
    key = _night_key(list(dated.values()))
    if key is not None:
        paths = {path: folders for path, folders in paths.items() if f"{key}={NULL_PARTITION}" not in folders}
    undated = [path for path in paths if key is not None and key not in dated[path]]
    if undated and not asked.is_glob:
        raise InputError(
            f"{where}: {len(undated)} of {len(paths)} files are not in a folder with a date, as the others are "
            f"({undated[0]}). Move them, or select the files with a glob."
        )
    if key is None or undated:
        if not asked.is_glob:
            _check_understood(where, paths.values())
        return dict.fromkeys(paths)
    newest = _newest(where, key, [dated[path][key] for path in paths], asked)
    chosen: dict[str, Partition | None] = {
        path: dated[path][key] for path in paths if dated[path][key].moment == newest.moment
    }
    names = sorted({each.name for each in chosen.values() if each})
    if len(names) > 1:
        raise InputError(f"{where}: {' and '.join(names)} are the same night. Keep one.")
    if not asked.is_glob:
        others = [paths[path][: each.start] + paths[path][each.end :] for path, each in chosen.items() if each]
        _check_understood(where, others, is_of_one_day=True)
    return chosen


def is_same_partition(found: str, given: str) -> bool:
    """Whether folders are those that were named, with or without what URLs escape."""
    return unquote(found) == unquote(given)


def is_same_value(folder_value: str, value: str) -> bool:
    """Whether a column's value is what its folder says: 1 is 01, and a time of day is within its date."""
    said = unquote(folder_value)
    if value == said:
        return True
    if value.isdecimal() and said.isdecimal() and int(value) == int(said):
        return True
    moment = _moment(said)
    return moment is not None and (_moment(value) or ())[: len(moment)] == moment


def day_of(partition: str) -> date | None:
    """The day that a partition's folders say; None where they say none, or several.

    >>> day_of("dt=2026-11-28"), day_of("year=2026/month=11/day=28"), day_of("year=2026")
    (datetime.date(2026, 11, 28), datetime.date(2026, 11, 28), None)
    """
    days = {each.days for each in _dated(tuple(partition.split("/")))}
    return date(*days.pop()) if len(days) == 1 and len(next(iter(days))) == 3 else None


def days_of_files(stems: Iterable[str]) -> set[tuple[int, ...]]:
    """The dates of files whose names are dates, 'candidates_2026-11-29'; parts may be numbered."""
    found = set()
    for stem in stems:
        while not (dated := _dated((stem,))) and (suffix := FILE_SUFFIX.search(stem)):
            stem = stem[: suffix.start()]
        found |= {each.days for each in dated}
    return found


def _given(where: str, paths: Mapping[str, Folders], partition: str) -> dict[str, Partition | None]:
    """The paths in the given partition; none where this input has no such partitioning."""
    wanted = [unquote(each) for each in partition.split("/")]
    keys = [_key_and_value(each)[0] for each in wanted]
    chosen: dict[str, Partition | None] = {}
    others = set()
    for path, folders in paths.items():
        for start in range(len(folders) - len(wanted) + 1):
            found = folders[start : start + len(wanted)]
            if [unquote(each) for each in found] == wanted:
                chosen[path] = Partition("/".join(found), partition, start, start + len(wanted), ())
            elif [_key_and_value(each)[0] for each in found] == keys:
                others.add("/".join(found))
    is_dated = bool(_dated(tuple(wanted))) and any(_dated(tuple(each.split("/"))) for each in others)
    if not chosen and others and ("" not in keys or is_dated):
        raise InputNotReady(f"{where}: no partition {partition} (found: {', '.join(sorted(others)[-5:])}).")
    return chosen


def _dated(folders: Folders) -> list[Partition]:
    """Every date that the folders of a path say; of two by one key the finer is last."""
    found = []
    for level, folder in enumerate(folders):
        key, value = _key_and_value(folder)
        moment = _moment(unquote(value))
        named = NAMED_MOMENT.fullmatch(folder) if moment is None and not key else None
        if named:
            key, moment = named["name"], _moment(named["moment"])
            moment = None if moment is not None and len(moment) < 3 else moment  # part-200012 is a number
        if moment is not None:
            found.append(Partition(folder, key, level, level + 1, moment))
        else:
            found.extend(_in_steps(folders, level))
    return sorted(found, key=lambda each: len(each.days))


def _in_steps(folders: Folders, level: int) -> Iterator[Partition]:
    """A date in folders of its own for year, month and day; a year alone is no date of a night."""
    numbers: list[int] = []
    keys = []
    for names, folder in zip(DATE_KEYS, folders[level : level + 3], strict=False):
        key, value = _key_and_value(folder)
        digits = 4 if not numbers else 2
        if not value.isdecimal() or len(value) > digits or (key and key.lower().rpartition("_")[2] not in names):
            break
        if not numbers and not 1900 <= int(value) < 2200:
            break
        numbers.append(int(value))
        keys.append(key)
    if len(numbers) > 1 and _is_moment(numbers):
        end = level + len(numbers)
        yield Partition("/".join(folders[level:end]), "/".join(keys).strip("/"), level, end, tuple(numbers))


def _key_and_value(folder: str) -> tuple[str, str]:
    """Of `key=value`; a plain folder has no key."""
    key, sign, value = folder.partition("=")
    return (key, value) if sign else ("", folder)


def _moment(text: str) -> tuple[int, ...] | None:
    """Year, month, day, hour, ... as far as the text says them; None for one that is no date."""
    match = MOMENT.fullmatch(text)
    if match is None:
        return None
    numbers = [int(match[part]) for part in ("year", "month", "day", "hour", "minute", "second") if match[part]]
    return tuple(numbers) if _is_moment(numbers) else None


def _is_moment(numbers: list[int]) -> bool:
    try:
        date(numbers[0], numbers[1], numbers[2] if len(numbers) > 2 else 1)
    except ValueError:
        return False
    return all(number < limit for number, limit in zip(numbers[3:], (24, 60, 61), strict=False))


def _night_key(dated: list[dict[str, Partition]]) -> str | None:
    """The key by which most paths are dated, of those to the day; the finest, then the first of several."""
    keys = list(dict.fromkeys(key for each in dated for key in each))
    if not keys:
        return None

    def rank(key: str) -> tuple[int, int]:
        found = [each[key] for each in dated if key in each]
        return len(found), min(len(each.days) for each in found)

    return max(keys, key=rank)


def _newest(where: str, key: str, dated: list[Partition], asked: NightFolders) -> Partition:
    night = (asked.night.year, asked.night.month, asked.night.day)
    before = [each for each in dated if each.days <= night[: len(each.days)]]
    by = f" {key}" if key else ""
    if not before:
        oldest = _said(min(dated, key=lambda each: each.moment))
        raise InputNotReady(f"{where}: no partition{by} up to the night {asked.night} (the oldest is {oldest}).")
    newest = max(before, key=lambda each: each.moment)
    if not asked.may_be_older and newest.days != night[: len(newest.days)]:
        own = f"{key}={asked.night}" if newest.name.startswith(f"{key}=") else str(asked.night)
        source = where.partition(":")[0]
        raise InputNotReady(
            f"{where}: no partition {own} (the newest before it is {_said(newest)}). "
            f"Name {source} in [inputs] may_be_older to accept that one."
        )
    return newest


def _said(partition: Partition) -> str:
    day = "-".join(f"{number:02d}" for number in partition.days)
    time = ":".join(f"{number:02d}" for number in partition.moment[3:])
    return f"{day} {time}" if time else day


def _check_understood(where: str, paths: Iterable[Folders], *, is_of_one_day: bool = False) -> None:
    """Raises InputError unless the folders in which paths differ are parts, or keys that are no date."""
    different = set(paths)
    unknown: set[str] = set()
    for level in range(max((len(each) for each in different), default=0)):
        names = {each[level] if level < len(each) else "" for each in different}
        if len(names) > 1:
            unknown |= {name for name in names if name and not _is_understood(name, is_of_one_day=is_of_one_day)}
    if unknown:
        shown = sorted(unknown)
        told = ", ".join(shown if len(shown) < 4 else [*shown[:2], "...", shown[-1]])
        raise InputError(
            f"{where}: {len(shown)} sub-folders whose names are no date in a known form ({told}), so they may be "
            f"several nights. Set [inputs] partition = {shown[-1]!r} to read one, or name all that are meant by a glob "
            "(*/*.parquet)."
        )


def _is_understood(folder: str, *, is_of_one_day: bool) -> bool:
    key, value = _key_and_value(folder)
    value = unquote(value)
    if is_of_one_day and value.isdecimal() and len(value) <= 2 and key.lower().rpartition("_")[2] in HOUR_KEYS:
        return True
    if _dated((folder,)) or LIKE_A_DATE.fullmatch(value):
        return False
    return TIME_KEY.fullmatch(key.lower()) is None if key else PART.fullmatch(folder) is not None
