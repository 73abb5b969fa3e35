"""How a command of `packrank` ends: its exit code, and one line on stderr where something went wrong."""

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import date
from typing import NoReturn, TextIO

from cyclopts import CoercionError, CycloptsError

from tasks.system.errors import PackrankError

USAGE_EXIT, INTERRUPTED_EXIT, PIPE_EXIT, TERMINATED_EXIT = 2, 130, 141, 143  # the others: tasks.system.errors


@contextmanager
def exit_codes() -> Iterator[None]:
    """Turns whatever ends a command into its exit code and its line."""
    signal.signal(signal.SIGTERM, _terminate)
    try:
        yield
        sys.stdout.flush()  # here a reader that left is no traceback
    except BrokenPipeError:  # `| head`: nobody reads on, and nothing is wrong
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(PIPE_EXIT) from None
    except CycloptsError as error:
        _fail(_usage_text(error), USAGE_EXIT)
    except PackrankError as error:
        _fail(str(error), error.exit_code)
    except KeyboardInterrupt:
        _fail("interrupted; committed work is kept, and the same command continues from there.", INTERRUPTED_EXIT)
    except SystemExit as end:
        _leave_without_prefect(end.code if isinstance(end.code, int) else 1)
        raise
    _leave_without_prefect(0)


def say(text: str, stream: TextIO | None = None) -> None:
    """One line for people, whatever data or paths put into it."""
    from tasks.system.redaction import hide_url_secrets, printable

    print(hide_url_secrets(printable(text)), file=stream)


def _terminate(number: int, frame: object) -> None:
    """SIGTERM ends the command as Ctrl-C does, so that the run's row says so."""
    raise SystemExit(TERMINATED_EXIT)


def _usage_text(error: CycloptsError) -> str:
    wanted = " Expected YYYY-MM-DD." if isinstance(error, CoercionError) and error.target_type is date else ""
    command = " ".join(("packrank", *(error.command_chain or ())))
    return f"{' '.join(str(error).split())}{wanted} See {command} --help."


def _fail(message: str, code: int) -> NoReturn:
    say(f"packrank: {message}", sys.stderr)
    _leave_without_prefect(code)
    raise SystemExit(code)


def _leave_without_prefect(code: int) -> None:
    """Ends the process at once where its Prefect server is gone, and says that it was not told."""
    if "flows.messenger" in sys.modules:
        from flows.messenger import leave, prefect_is_gone

        if prefect_is_gone():
            say("packrank: Prefect was not notified of the outcome: its server does not answer.", sys.stderr)
            leave(code)
