"""How often Python looks for garbage.

Staging and ranking hold many lists and few cycles: looking for those every 700 new objects, as Python does, took 2.5 s
of a night of 3 x 10^5 candidates that takes 32 (docs/log.md).
"""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

RARELY = (20_000, 20, 20)  # new objects a collection, collections a generation


@contextmanager
def collected_rarely() -> Iterator[None]:
    """For work on many objects; also a decorator."""
    usual = gc.get_threshold()
    gc.set_threshold(*RARELY)
    try:
        yield
    finally:
        gc.set_threshold(*usual)
