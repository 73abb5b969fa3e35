"""Files that are complete or absent, and durable once the call returns."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from tasks.system.errors import PackrankError, StoreError, first_line


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


@contextmanager
def whole_file(output: Path) -> Iterator[BinaryIO]:
    """A file beside the output that takes its name at the end, and is removed if there is no end.

    An output that exists and is not a file, such as a pipe or /dev/stdout, is written to directly.

    Raises:
        PackrankError: it cannot be written.
    """
    is_special = output.exists() and not output.is_file() and not output.is_dir()
    aside = output if is_special else output.with_name(f".{output.name}.{os.getpid()}.part")
    try:
        with aside.open("wb") as stream:
            yield stream
            stream.flush()
            if not is_special:
                os.fsync(stream.fileno())
        if not is_special:
            aside.replace(output)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise PackrankError(f"{output}: cannot be written: {first_line(error)}") from error
    finally:
        if not is_special:
            aside.unlink(missing_ok=True)


@contextmanager
def whole_folder(folder: Path) -> Iterator[Path]:
    """As `whole_file`, for a new or empty folder.

    Raises:
        PackrankError: it cannot be written.
    """
    aside = folder.absolute().with_name(f".{folder.absolute().name}.{os.getpid()}.part")
    try:
        aside.mkdir(parents=True)
        yield aside
        aside.replace(folder)
    except OSError as error:
        raise PackrankError(f"{folder}: cannot be written: {first_line(error)}") from error
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def sync(path: Path) -> None:
    """Waits until a file or a folder's entries are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
