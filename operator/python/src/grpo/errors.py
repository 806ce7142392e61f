"""The errors of this package. Each message says what failed, the cause, and the next step."""

from __future__ import annotations

from pydantic import ValidationError


class GrpoError(Exception):
    """Base class of all errors of this package."""


class ProgramMissing(GrpoError):
    """`kubectl-grpo` or `kubectl` was not found."""


class ViewerError(GrpoError):
    """The viewer that reads the records did not start, died, or gave a malformed answer."""


class RecordsError(GrpoError):
    """The viewer runs and could not read records."""


class NotFound(RecordsError):
    """The store has no such iteration, evaluation, group or episode."""


class ManifestError(GrpoError):
    """A manifest is malformed, or its schema refuses it."""


class CommandFailed(GrpoError):
    """A command ended with another exit status than 0."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status
        """The exit status of the command."""


class RunFailed(CommandFailed):
    """The run that `wait` waited for has failed."""


class RunNotEnded(CommandFailed):
    """The run that `wait` waited for has not ended within the timeout."""


def faults(error: ValidationError) -> str:
    """The faults of a value, each with its path, on a line of its own."""
    lines = []
    for fault in error.errors():
        path = ".".join(str(part) for part in fault["loc"]) or "(the whole)"
        unknown = fault["type"] == "extra_forbidden"
        lines.append(f"  {path}: {'this field does not exist' if unknown else fault['msg']}")
    return "\n".join(lines)
