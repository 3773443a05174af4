"""Errors that a user can mend. Core code raises them; only the command line prints them, as one line."""

from __future__ import annotations


class KerncheckError(Exception):
    """Something that stops the run. ``hint`` says what to do next; exit code 2."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class UsageError(KerncheckError):
    """A wrong option, an unknown name or an unreadable input file."""


class MatrixError(KerncheckError):
    """A file of ``matrices/`` that cannot be read or breaks a rule. The message names the file and the row."""
