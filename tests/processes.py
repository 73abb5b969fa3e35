"""The processes of a night, and waiting for them."""

import time
from pathlib import Path


def engines_of(parent_pid):
    """Engine children that name the process as their parent on their command line."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().split(b"\0")
        except OSError:
            continue
        if b"tasks.engine.child" in words and str(parent_pid).encode() in words:
            found.append(int(path.parent.name))
    return found


def wait_for(what, seconds=600.0, every_s=0.01):
    """Returns when `what()` is true; a server that is asked shares two cores with what is waited for."""
    deadline = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(every_s)


def is_alive(pid):
    return Path(f"/proc/{pid}").exists()
