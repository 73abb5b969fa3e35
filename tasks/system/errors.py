"""The one family of foreseen failures, each with the exit code of the command that meets it.

Form of a message: where, what was found, what is allowed, what to do; one line. A malformed model answer is not
here: it is data. A message never contains texts of queries and passages, secrets of URLs or control
characters, wherever it goes. Knows nothing of who raises or prints.
"""

from tasks.system.redaction import hide_url_secrets, printable


class PackrankError(Exception):
    """Any failure that packrank foresees; `exit_code` is the command's."""

    exit_code = 1

    def __init__(self, message: str) -> None:
        super().__init__(hide_url_secrets(printable(message)))


class ConfigError(PackrankError):
    """A setting, parameter or prompt template that cannot work: whoever edits configs/ acts."""

    exit_code = 2


class PromptTooLong(ConfigError):
    """The resolved sizes cannot fit a prompt: whoever sets window_size or the token limits acts."""


class InputError(PackrankError):
    """Queries, documents, candidates or qrels that cannot be a night's input: their owner acts."""

    exit_code = 3


class InputNotReady(InputError):
    """An input that is not there yet, half-written, or changing: it may be whole a little later."""


class CheckFailed(PackrankError):
    """The scores are stored but not published: the person on call has to look."""

    exit_code = 4


class FollowUpFailed(PackrankError):
    """The scores are published, but a follow-up step failed: the owner of its folder or disk has to act."""


class AlreadyRunning(PackrankError):
    """Another run holds the database's run lock."""

    exit_code = 5


class AlreadyInProgress(AlreadyRunning):
    """The very run that was asked for holds it: nothing is lost, and nobody has to act."""


class EngineError(PackrankError):
    """The engine refused its settings, died, hung, or answered something other than it was asked."""


class EngineLost(EngineError):
    """An engine that had started could not answer a batch, even when it was retried: parts of it may be retried."""


class CanaryFailed(PackrankError):
    """The model misorders pairs whose order is known: whoever chose model, template or decode mode has to act."""


class DeadlinePassed(PackrankError):
    """A run stopped because `[night] finish_by` had passed: whoever schedules the engine's hours has to act."""


class StoreError(PackrankError):
    """The database or the spool cannot be read or written; nothing committed is lost."""


class DatabaseLocked(StoreError):
    """Another process has the database open: its holder has to act; a later try may succeed."""


class OutOfMemory(StoreError):
    """DuckDB needs more than `[store] memory_limit`, also after it spilled to the disk."""


class LogUnreadable(StoreError):
    """DuckDB cannot replay the write-ahead log: it was torn, or belongs to another copy of the file."""


def first_line(error: BaseException) -> str:
    """The first line of a driver's message, for messages of ours, which are one line long."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
