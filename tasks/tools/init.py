"""Writes a settings file for a folder of somebody's data: configs/own.toml with the inputs that were found there."""

import json
import re
import shlex
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tasks.inputs.missing_columns import UNKNOWN
from tasks.system.atomic_files import write_whole
from tasks.system.environment import checkout_path
from tasks.system.errors import ConfigError, InputError
from tasks.tools.data_folder import FoundInput, find_inputs

TEMPLATE = checkout_path("configs/own.toml")
FILE = "packrank.toml"
FLAT = ("queries", "documents", "candidates")
ORDER = ("nested", *FLAT, "qrels")
FEW_QUERIES = 50  # are ranked at once; of more a trial comes first
HEAD = """\
# Settings for the data of this folder, written by `packrank init`. Relative paths are taken from here. All keys, with
# their defaults and meanings, are listed by `packrank settings`.
"""


@dataclass(frozen=True, slots=True)
class Written:
    """A settings file, and what to tell of it."""

    path: Path
    lines: list[str]


def write_settings(folder: Path, *, force: bool) -> Written:
    """Looks at the files of a folder and writes `packrank.toml` into it.

    Raises:
        ConfigError: there is one, and not `force`.
        InputError: what is missing, as TOML to put into the file, which is written.
    """
    path = folder / FILE
    if path.exists() and not force:
        raise ConfigError(f"{path}: already exists. Give --force to overwrite it.")
    found, others = find_inputs(folder)
    found.sort(key=lambda each: ORDER.index(each.source))
    if not found:
        raise InputError(
            "; ".join([f"{folder}: nothing that can be an input (Parquet, CSV, JSON Lines, *.run)", *others])
        )
    has_gpu = shutil.which("nvidia-smi") is not None
    write_whole(path, _settings_text(folder, found, has_gpu=has_gpu).encode())
    lines = [*map(_told, found), *others, f"written: {path}"]
    missing = _missing(found)
    if missing:
        raise InputError(f"{'; '.join(lines)}; fill in each {UNKNOWN!r} under [inputs]: {missing}")
    return Written(path, [*lines, f"next: {_next(path, found, has_gpu=has_gpu)}"])


def _told(found: FoundInput) -> str:
    names = ", ".join(f"{ours} = {theirs}" for ours, theirs in found.names.items())
    return f"{found.source}: {found.path}, {found.num_rows:,} rows{f' ({names})' if names else ''}"


def _next(path: Path, found: Sequence[FoundInput], *, has_gpu: bool) -> str:
    on_path = shutil.which("packrank") is not None
    command = "packrank" if on_path else shlex.quote(str(Path(sys.executable).with_name("packrank")))
    if has_gpu:
        return f"choose a preset and a model at the head of {path}, then: {command} doctor {shlex.quote(str(path))}"
    few = any(each.num_rows <= FEW_QUERIES for each in found if each.source in ("queries", "nested"))
    return f"{command} run {shlex.quote(str(path))} {'--publish' if few else '--limit-queries 20'}"


def _missing(found: Sequence[FoundInput]) -> str:
    """The lines of TOML that their owner has to complete, in one."""
    lines = [f'{source} = "{UNKNOWN}"' for source in _missing_inputs(found)]
    for each in found:
        names = [f'{_key(ours)} = "{UNKNOWN}"' for ours, theirs in each.names.items() if theirs == UNKNOWN]
        if names:
            lines.append(f"columns.{each.source} = {{ {', '.join(names)} }}")
    return ", ".join(lines)


def _missing_inputs(found: Sequence[FoundInput]) -> list[str]:
    there = {each.source for each in found}
    return [] if "nested" in there else [source for source in FLAT if source not in there]


def _settings_text(folder: Path, found: Sequence[FoundInput], *, has_gpu: bool) -> str:
    """The template with a head, a name, inputs and columns of its own; with a GPU its preset is left to be chosen."""
    text = TEMPLATE.read_text(encoding="utf-8")
    text = HEAD + text[text.index("\n\n") + 1 :]
    text = re.sub(r"\n\[store\]\n(?:.+\n)+", "", text)  # the checkout's database, which every command takes
    if has_gpu:
        text = re.sub(r"^(?=preset = )", "# ", text, flags=re.M)
    name = re.sub(r"[^A-Za-z0-9_-]+", "-", folder.resolve().name).strip("-") or "own"
    text = re.sub(
        r"^\[night\].*\n",
        f"[night]\nname = {json.dumps(name)}".ljust(40) + "# of the series in latest_scores\n",
        text,
        flags=re.M,
    )
    inputs = [f"{each.source} = {json.dumps(each.path, ensure_ascii=False)}" for each in found]
    inputs += [f'{source} = "{UNKNOWN}"' for source in _missing_inputs(found)]
    inputs += ["rank_base = 0                   # the first stage's best rank"] * any(
        each.rank_base == 0 for each in found
    )
    tables = "".join(
        f"\n[inputs.columns.{each.source}]   # ours = theirs\n"
        + "".join(f"{_key(ours)} = {json.dumps(theirs, ensure_ascii=False)}\n" for ours, theirs in each.names.items())
        for each in found
        if each.names
    )
    text = re.sub(r"^(?:queries|documents|candidates|qrels) = .*\n", "", text, flags=re.M)
    text = re.sub(r"^(\[inputs\].*\n)", lambda match: match[1] + "\n".join(inputs) + "\n", text, flags=re.M)
    return re.sub(r"\n# \[inputs\.columns.*\n(?:#.*\n)*", lambda match: tables or match[0], text)


def _key(name: str) -> str:
    return json.dumps(name) if "." in name else name
