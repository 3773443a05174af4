"""KC209 to KC211: imports that end or block the process. A child was the victim, so the run went on."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from typing import TYPE_CHECKING

from kerncheck.checks import imports_words as words
from kerncheck.checks.imports_verdicts import verdicts
from kerncheck.checks.registry import Case, check
from kerncheck.model.outcome import Outcome, Say

if TYPE_CHECKING:
    from kerncheck.checks.imports_causes import Cause


@check("KC209", "No import is killed by a signal", needs=("imports",))
def survives(case: Case, say: Say) -> Iterator[Outcome]:
    """Killed by a signal.

    What it checks
        Importing a package ended the child with a signal: a segmentation fault, an abort, an illegal instruction.
        The innermost Python frames are shown. SIGKILL is not judged here: it comes from outside, most often from the
        kernel when memory runs out.

    Why it matters
        No try and except protects a training process from it, and no message is left behind.

    Example
        import causal_conv1d is killed by SIGSEGV in the initialisation of its extension.

    How to fix
        Build the package for this torch, compiler and processor; SIGILL means that it was built for a newer processor.
    """
    yield from verdicts(case, say, "no import is killed", signal_finding)


def signal_finding(case: Case, say: Say, cause: Cause) -> Outcome:
    """Say which signal ended the child, and where."""
    number = cause.broken.signal or 0
    return say.failed(
        cause.subject,
        f"importing {cause.attempt.module} kills the process with {signal_name(number)}. No exception is raised, so "
        "no library can fall back: the training process dies as well",
        found=words.joined((cause.broken.message, words.stack(cause.broken))),
        wanted="an import that returns",
        remedy=f"build the package for this torch and this machine: {words.rebuild(case, cause.package)}",
    )


def signal_name(number: int) -> str:
    """Return a signal's name, or its number where it has none."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


@check("KC210", "No import stands still", needs=("imports",))
def returns(case: Case, say: Say) -> Iterator[Outcome]:
    """Stood still.

    What it checks
        Importing a package did not return within the limit, and the child used no processor time and read and wrote
        nothing: it waits for something that does not come. Its stack is shown. An import that is merely slow (a cold
        file system, a compilation) is not judged, whatever the limit.

    Why it matters
        A job hangs at its start without a message and holds its GPUs.

    Example
        import fla waits for a lock file that a killed process left behind.

    How to fix
        Look at the last frame of the stack: a stale lock file, a server that does not answer, a deadlock.
    """
    yield from verdicts(case, say, "no import stands still", still_finding)


def still_finding(_case: Case, say: Say, cause: Cause) -> Outcome:
    """Say how long nothing happened, and where."""
    return say.failed(
        cause.subject,
        f"importing {cause.attempt.module} does not return: {cause.broken.message}",
        found=words.stack(cause.broken) or words.last_words(cause.broken) or cause.broken.message,
        wanted="an import that returns",
        remedy="remove what the innermost frame waits for (a stale lock file, an absent server), then run again",
    )


@check("KC211", "No import ends the process", needs=("imports",))
def does_not_exit(case: Case, say: Say) -> Iterator[Outcome]:
    """Exited.

    What it checks
        Importing a package ended the process, by sys.exit or by os._exit. Exit code 0 is a finding too: the import
        did not return.

    Why it matters
        A job ends at once, and with code 0 its scheduler even counts it as done.

    Example
        A package that finds no licence calls os._exit(0) while it is imported.

    How to fix
        Read its last output, meet the condition that it names, or use another version of the package.
    """
    yield from verdicts(case, say, "no import exits", exit_finding)


def exit_finding(case: Case, say: Say, cause: Cause) -> Outcome:
    """Say with which code the process ended, and where if it is known."""
    where = words.place(cause.broken)
    return say.failed(
        cause.subject,
        f"importing {cause.attempt.module} ends the process with exit code {cause.broken.exit_code}{where}. No "
        "exception reaches a library that would fall back: the training process ends as well",
        found=words.joined((cause.broken.message, "" if where else words.last_words(cause.broken))),
        wanted="an import that returns",
        remedy="meet the condition that its output names, or install the package anew: "
        + words.rebuild(case, cause.package),
    )
