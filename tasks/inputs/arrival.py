"""Waits a bounded time for an input that is late or half-written. Knows nothing of what is in it."""

import logging
import time
from datetime import date

from tasks.inputs.fields import NOTHING_WANTED, WantedFields
from tasks.inputs.qrels import read_qrels
from tasks.inputs.staging import NightInput, open_night_input
from tasks.settings import InputSettings
from tasks.system.errors import InputNotReady

logger = logging.getLogger(__name__)

LOOK_EVERY_S = 5.0


def await_night_input(
    settings: InputSettings, night: date, wait_s: int, fields: WantedFields = NOTHING_WANTED
) -> NightInput:
    """`open_night_input` and `read_qrels`, again and again for up to `wait_s` seconds while something is not ready.

    Nothing is held meanwhile; a signal ends the wait at once.

    Raises:
        InputNotReady: it still is not; what is missing, and how long was waited.
        InputError: what waiting cannot mend, at once.
    """
    started = time.monotonic()
    missing = ""
    while True:
        try:
            found = open_night_input(settings, night, fields)
            if settings.qrels is not None:
                read_qrels(settings, night)  # a night must not find out after it has ranked
        except InputNotReady as error:
            waited_s = time.monotonic() - started
            if wait_s == 0:
                raise
            if waited_s >= wait_s:
                raise InputNotReady(f"{error} Waited {waited_s:.0f} s ([inputs] wait_s = {wait_s}).") from error
            if str(error) != missing:
                missing = str(error)
                logger.warning("waiting for input wait_s=%d waited_s=%.0f missing=%s", wait_s, waited_s, missing)
            time.sleep(min(LOOK_EVERY_S, wait_s - waited_s))
        else:
            if missing:
                logger.warning("input is there waited_s=%.0f", time.monotonic() - started)
            return found
