"""Finds the Parquet files behind a path: a file, a folder, a glob or a Hive folder, local or any fsspec URL.

Of dated Hive folders one is chosen. Knows nothing of what is in a file.
"""

import posixpath
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date

import fsspec
import fsspec.utils

from tasks.errors import InputError, InputNotReady, PackrankError, first_line
from tasks.redaction import hide_secrets

SUFFIXES = (".parquet", ".parq")


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


def locate(source: str, path: str, wanted: Wanted) -> Located:
    """Finds the files of one input, and chooses the partition.

    Raises:
        InputNotReady: nothing there, no such partition, or its marker is missing.
        InputError: the path cannot be looked at.
    """
    filesystem, root, paths = _find(source, path)
    chosen, partition = _choose_partition(source, path, root, paths, wanted)
    if wanted.marker is not None:
        _check_marker(source, filesystem, _marker_folder(root, chosen, partition), wanted.marker)
    return Located(filesystem, root, tuple(chosen), partition)


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


def _find(source: str, path: str) -> tuple[fsspec.AbstractFileSystem, str, list[str]]:
    where = f"{source}: {hide_secrets(path)}"
    with file_errors(where):
        filesystem, root = fsspec.core.url_to_fs(path)
        filesystem.invalidate_cache()  # a listing of before may lack what has come since
        root = root.rstrip("/") or "/"
        if filesystem.isfile(root):
            return filesystem, posixpath.dirname(without_query(root)), [root]
        if filesystem.isdir(root):
            found = filesystem.find(root)
        elif any(mark in root for mark in "*?["):
            found = [each for each in filesystem.glob(root) if filesystem.isfile(each)]
            root = re.split(r"[*?\[]", root, maxsplit=1)[0].rpartition("/")[0]
        else:
            raise InputNotReady(f"{source}: {root}: no such file or folder. Check [inputs] {source}.")
    paths = sorted(each for each in found if each.endswith(SUFFIXES) and not _is_hidden(root, each))
    if not paths:
        raise InputNotReady(f"{where}: no Parquet file there (*.parquet). Check [inputs] {source}.")
    return filesystem, root, paths


def _is_hidden(root: str, path: str) -> bool:
    parts = posixpath.relpath(path, root).split("/")
    return any(part.startswith((".", "_")) for part in parts)


def _choose_partition(
    source: str, given_path: str, root: str, paths: list[str], wanted: Wanted
) -> tuple[list[str], str | None]:
    """One Hive partition: the given one, else the newest dated one not after the night."""
    keys = {path: hive_keys(posixpath.relpath(without_query(path), root)) for path in paths}
    if wanted.partition is not None:
        key, value = wanted.partition.split("=", 1)
        if not any(key in found for found in keys.values()):
            return paths, None  # this input has no such partitioning
    else:
        dated = [key for key in keys[paths[0]] if all(_is_date(found.get(key)) for found in keys.values())]
        if not dated:
            return paths, None
        key = dated[0]
        value = _newest(source, given_path, key, [found[key] for found in keys.values()], wanted)
    chosen = [path for path in paths if keys[path].get(key) == value]
    if not chosen:
        there = sorted({found[key] for found in keys.values() if key in found})
        raise InputNotReady(f"{source}: {given_path}: no partition {key}={value} (found: {', '.join(there[-5:])}).")
    return chosen, f"{key}={value}"


def _newest(source: str, given_path: str, key: str, dates: list[str], wanted: Wanted) -> str:
    night = wanted.night.isoformat()
    before = [each for each in dates if each <= night]
    if not before:
        raise InputNotReady(
            f"{source}: {given_path}: no partition {key} up to the night {night} (the oldest is {min(dates)})."
        )
    if not wanted.may_be_older and max(before) != night:
        raise InputNotReady(
            f"{source}: {given_path}: no partition {key}={night} (the newest before it is {max(before)}). "
            f"Name {source} in [inputs] may_be_older if that one will do."
        )
    return max(before)


def _is_date(value: str | None) -> bool:
    return value is not None and re.fullmatch(r"\d{4}-\d{2}-\d{2}", value) is not None


def _marker_folder(root: str, paths: list[str], partition: str | None) -> str:
    """The chosen partition's folder, else the input's."""
    if partition is None:
        return root
    parts = posixpath.relpath(without_query(paths[0]), root).split("/")
    return posixpath.join(root, *parts[: parts.index(partition) + 1])


def _check_marker(source: str, filesystem: fsspec.AbstractFileSystem, folder: str, marker: str) -> None:
    path = f"{folder}/{marker}"
    with file_errors(f"{source}: {path}"):
        is_there = filesystem.exists(path)
    if not is_there:
        raise InputNotReady(
            f"{source}: {path}: the marker [inputs.markers] {source} is not there, so the input is not whole yet."
        )
