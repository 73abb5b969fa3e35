"""Files that are whole or not there, and on the disk once that is said."""

import os
from pathlib import Path

from tasks.errors import StoreError, first_line


def write_whole(path: Path, content: bytes) -> None:
    """A file that is there whole or not at all, and durable once this returns.

    Raises:
        StoreError: it could not be written.
    """
    aside = path.with_name(f".{path.name}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with aside.open("wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        aside.rename(path)
        sync(path.parent)
    except OSError as error:
        raise StoreError(
            f"{path}: cannot write it: {first_line(error)}. Free the disk and run the command again."
        ) from error


def sync(path: Path) -> None:
    """Waits until a file or a folder's entries are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
