"""Finds the files behind a path: a file, a folder, a glob or dated folders, local or any fsspec URL.

Of dated folders one night's is chosen. Knows nothing of what is in a file.
"""

import glob
import os
import posixpath
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date
from typing import Literal

import fsspec
from fsspec.implementations.local import LocalFileSystem

from tasks.inputs.lake_tables import TABLE_FOLDERS, may_be_inside_table, table_format
from tasks.inputs.partitions import NightFolders, choose_partition, days_of_files
from tasks.settings import InputName, InputSettings
from tasks.system.environment import checkout_path
from tasks.system.errors import InputError, InputNotReady, PackrankError, first_line
from tasks.system.redaction import hide_secrets

SUFFIXES = (".parquet", ".parq", ".pq")
TEXT_SUFFIXES = tuple(
    f".{kind}{packed}" for kind in ("csv", "tsv", "jsonl", "ndjson", "json", "trec", "run") for packed in ("", ".gz")
)


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which of an input's files are this night's, and when they count as whole."""

    night: date
    partition: str | None = None  # 'dt=2026-11-28'; else the newest dated one not after the night
    may_be_older: bool = True  # whether a partition before the night's own will do
    marker: str | None = None  # file that must lie beside the files: '_SUCCESS'


@dataclass(frozen=True, slots=True)
class Located:
    """The files found, in path order."""

    filesystem: fsspec.AbstractFileSystem
    root: str  # the folder that relative paths are seen from
    paths: tuple[str, ...]
    partition: str | None

    def relative(self, path: str) -> str:
        """The path seen from the root, without what a URL asks: signatures change, files do not."""
        return posixpath.relpath(without_query(path), self.root)


@dataclass(frozen=True, slots=True)
class _Found:
    """What lies behind a path."""

    filesystem: fsspec.AbstractFileSystem
    root: str  # the folder that relative paths are seen from
    kind: Literal["file", "folder", "glob"]
    files: list[str]  # all of them, hidden ones too


def wanted_files(settings: InputSettings, source: InputName, night: date) -> Wanted:
    """Which files of an input are the night's."""
    return Wanted(
        night=night,
        partition=settings.partition,
        may_be_older=settings.wait_s == 0 or source in settings.may_be_older,
        marker=getattr(settings.markers, source),
    )


def resolve_path(path: str) -> str:
    """A URL as it is, a relative path from the checkout."""
    return path if "://" in path else str(checkout_path(path))


def locate(source: str, path: str, wanted: Wanted) -> Located:
    """Finds the files of one input, and chooses the partition.

    Raises:
        InputNotReady: nothing there, no such partition, or its marker is missing.
        InputError: the path cannot be looked at, is a table of a lake format, or has sub-folders or dated files of
            which one night's cannot be told.
    """
    where = f"{source}: {hide_secrets(path)}"
    with file_errors(where):
        found = _find(source, path)
        _check_is_no_table(source, where, found)
    root = found.root
    paths = found.files if found.kind == "file" else _data_files(source, where, found)
    folders = {each: tuple(posixpath.relpath(without_query(each), root).split("/")[:-1]) for each in paths}
    asked = NightFolders(wanted.night, wanted.partition, wanted.may_be_older, is_glob=found.kind == "glob")
    chosen = choose_partition(where, folders, asked)
    if found.kind == "folder":
        _check_dated_files(where, list(chosen))
    first, partition = next(iter(chosen.items()))
    if wanted.marker is not None:
        inside = folders[first][: partition.end] if partition else ()
        _check_marker(source, found.filesystem, posixpath.join(root, *inside), wanted.marker)
    return Located(found.filesystem, root, tuple(chosen), partition.name if partition else None)


@contextmanager
def file_errors(where: str) -> Iterator[None]:
    """Whatever a file system raises as an InputError; without its cause, whose text may hold a URL's secrets."""
    try:
        yield
    except PackrankError:
        raise
    except FileNotFoundError as error:
        raise InputNotReady(f"{where}: cannot be read: {first_line(error)}") from None
    except Exception as error:  # drivers of object stores raise kinds of their own
        raise InputError(f"{where}: cannot be read: {type(error).__name__}: {first_line(error)}") from None


def without_query(path: str) -> str:
    """A URL as far as it names a file."""
    return re.split(r"[?#]", path, maxsplit=1)[0] if re.match(r"https?://", path) else path


def hive_keys(relative_path: str) -> dict[str, str]:
    """The keys and values of `key=value` folders."""
    folders = relative_path.split("/")[:-1]
    return dict(folder.split("=", 1) for folder in folders if "=" in folder)


def _find(source: str, path: str) -> _Found:
    filesystem, root = fsspec.core.url_to_fs(path)
    filesystem.invalidate_cache()  # a listing of before may lack what has come since
    root = root.rstrip("/") or "/"
    if filesystem.isfile(root):
        return _Found(filesystem, posixpath.dirname(without_query(root)), "file", [root])
    if filesystem.isdir(root):
        return _Found(filesystem, root, "folder", _files_below(filesystem, root))
    if any(mark in root for mark in "*?["):
        files = {file for each in _matches(filesystem, root) for file in _files_below(filesystem, each)}
        base = re.split(r"[*?\[]", root, maxsplit=1)[0].rpartition("/")[0]
        return _Found(filesystem, base, "glob", sorted(files))
    raise InputNotReady(f"{source}: {root}: no such file or folder. Check [inputs] {source}.")


def _matches(filesystem: fsspec.AbstractFileSystem, pattern: str) -> list[str]:
    if isinstance(filesystem, LocalFileSystem):  # fsspec's own does not look into folders that are links
        return glob.glob(pattern, recursive=True)
    matches: list[str] = filesystem.glob(pattern)
    return matches


def _files_below(filesystem: fsspec.AbstractFileSystem, path: str) -> list[str]:
    """The file itself, or all files in the folder; folders that are links are looked into.

    Raises:
        InputNotReady: a link that leads nowhere.
        InputError: links in a circle.
    """
    if filesystem.isfile(path):
        return [path]
    if not isinstance(filesystem, LocalFileSystem):
        below: list[str] = filesystem.find(path)
        return below
    found = []
    for folder, folders, files in os.walk(path, onerror=_raise, followlinks=True):
        links = {name: posixpath.join(folder, name) for name in folders if os.path.islink(posixpath.join(folder, name))}
        for name, link in links.items():
            _check_is_no_circle(path, folder, link)
            if _is_second_name(path, link, [posixpath.join(folder, each) for each in folders]):
                folders.remove(name)
        found += [posixpath.join(folder, name) for name in files]
    for file in found:
        if not os.path.exists(file) and not _is_hidden(path, file):
            raise InputNotReady(f"{file}: a broken link ({os.path.realpath(file)} does not exist).")
    return sorted(found)


def _check_is_no_circle(path: str, folder: str, link: str) -> None:
    target = os.path.realpath(link)
    while len(folder) >= len(path):
        if f"{os.path.realpath(folder)}/".startswith(f"{target}/"):
            raise InputError(f"{link}: a link to a folder that contains it ({target}). Remove it.")
        folder = posixpath.dirname(folder)


def _is_second_name(path: str, link: str, beside: list[str]) -> bool:
    """Whether a link without a number, `latest`, leads to a folder that is looked into anyway."""
    target, base = os.path.realpath(link), os.path.realpath(path)
    if re.search(r"\d", posixpath.basename(link)):
        return False
    numbered = [each for each in beside if re.search(r"\d", posixpath.basename(each))]
    is_inside = target.startswith(f"{base}/") and not _is_hidden(base, target)
    return is_inside or target in map(os.path.realpath, numbered)


def _raise(error: OSError) -> None:
    raise error


def _data_files(source: str, where: str, found: _Found) -> list[str]:
    """The Parquet files; where there is none, the text files of one kind."""
    shown = sorted(each for each in found.files if not _is_hidden(found.root, each))
    paths = [each for each in shown if each.lower().endswith(SUFFIXES)]
    paths = paths or [each for each in shown if each.lower().endswith(TEXT_SUFFIXES)]
    if not paths:
        raise InputNotReady(f"{where}: no Parquet, CSV or JSON Lines file there. Check [inputs] {source}.")
    kinds = {
        each.lower().removesuffix(".gz").rpartition(".")[2] for each in paths if each.lower().endswith(TEXT_SUFFIXES)
    }
    if len(kinds) > 1:
        raise InputError(
            f"{where}: files of several kinds (*.{', *.'.join(sorted(kinds))}). Select one kind with a glob."
        )
    return paths


def _is_hidden(root: str, path: str) -> bool:
    parts = posixpath.relpath(path, root).split("/")
    return any(part.startswith(".") or (part.startswith("_") and "=" not in part) for part in parts)


def _check_is_no_table(source: str, where: str, found: _Found) -> None:
    """Raises InputError for files of a Delta, Iceberg, Hudi or other table."""
    table, told = found.root, table_format(posixpath.relpath(each, found.root) for each in found.files)
    if told is None and (isinstance(found.filesystem, LocalFileSystem) or found.kind != "file"):
        for table in may_be_inside_table(found.root)[found.kind == "folder" :]:
            beside = _files_in(found.filesystem, [posixpath.join(table, name) for name in TABLE_FOLDERS])
            told = table_format(posixpath.relpath(each, table) for each in beside)
            if told is not None:
                break
    if told is not None:
        raise InputError(
            f"{where}: {told[0]}. Its log, which packrank does not read, says which files count: deleted rows would "
            f"come back. Write its rows as plain Parquet: {told[1].format(path=table, source=source)}"
        )


def _files_in(filesystem: fsspec.AbstractFileSystem, folders: list[str]) -> list[str]:
    return [each for folder in folders if filesystem.isdir(folder) for each in filesystem.ls(folder, detail=False)]


def _check_dated_files(where: str, paths: list[str]) -> None:
    """Raises InputError for files of several dates in one folder."""
    stems: dict[str, set[str]] = {}
    for path in paths:
        folder, name = posixpath.split(path)
        stems.setdefault(folder, set()).add(name.rpartition(".")[0])
    for folder, names in stems.items():
        days = sorted(days_of_files(names))
        if len(days) > 1:
            told = " to ".join("-".join(f"{number:02d}" for number in day) for day in (days[0], days[-1]))
            raise InputError(
                f"{where}: the files in {folder} are named after {len(days)} dates ({told}), so they may be several "
                "nights. Put each date into a folder (dt=YYYY-MM-DD), or select the files with a glob."
            )


def _check_marker(source: str, filesystem: fsspec.AbstractFileSystem, folder: str, marker: str) -> None:
    path = f"{folder}/{marker}"
    with file_errors(f"{source}: {path}"):
        is_there = filesystem.exists(path)
    if not is_there:
        raise InputNotReady(
            f"{source}: {path}: the marker [inputs.markers] {source} is missing, so the input is not complete yet."
        )
