"""KC230, KC238, KC239: whether each compiled file is for this processor, can be read, and is what was installed."""

from __future__ import annotations

from collections.abc import Iterator

from kerncheck.checks.binaries_common import (
    NEEDS,
    Subject,
    binaries,
    clean,
    nothing,
    rebuild,
    subjects,
    verdicts,
)
from kerncheck.checks.registry import Case, check
from kerncheck.model.base import Missing, seen
from kerncheck.model.binaries import BinaryFile, Package, Record
from kerncheck.model.environment import Environment
from kerncheck.model.outcome import Outcome, Say

ALSO = ("imports",)


@check("KC230", "every compiled file is for this processor", needs=NEEDS, also=ALSO)
def processors(case: Case, say: Say) -> Iterator[Outcome]:
    """Compiled for another processor.

    What it checks
    Word size and processor in the header of each compiled file of a required package, against those of the
    interpreter.

    Why it matters
    A wheel for x86-64 in an image for aarch64 (GH200, GB200) installs where the platform check was bypassed, and then
    cannot be loaded.

    Example
    causal_conv1d_cuda is 64-bit AArch64, the interpreter 64-bit x86-64.

    How to fix
    Build the package on this kind of machine, or install the wheel made for it.
    """
    if not binaries(case).header:
        yield say.not_judged("interpreter", "the interpreter's own program could not be read", required=False)
        return
    yield from verdicts(case, say, f"built for {binaries(case).header}, as the interpreter", other_processor)


def is_foreign(case: Case, file: BinaryFile) -> bool:
    """Tell whether a file is for another processor than the interpreter's."""
    own = binaries(case).header
    return bool(own and file.header and file.header != own)


def other_processor(case: Case, say: Say, subject: Subject) -> Iterator[Outcome]:
    """Say that a file is for another processor."""
    if is_foreign(case, subject.file):
        own = binaries(case).header
        yield say.failed(
            subject.name,
            f"{subject.name} is a {subject.file.header} file, the interpreter is {own}",
            found=f"{subject.file.path}: {subject.file.header}",
            wanted=own,
            remedy=f"build the package on this machine: {rebuild(case, subject.package)}",
            severity=subject.severity,
        )


@check("KC238", "every compiled file can be read", needs=NEEDS, also=ALSO)
def readable(case: Case, say: Say) -> Iterator[Outcome]:
    """A file that cannot be read.

    What it checks
    Each compiled file of torch and of a required package, the libraries that it needs, and the GPU code inside it can
    be read to their ends: the file is no pointer of Git LFS, not cut off, not damaged.

    Why it matters
    What cannot be read cannot be judged, and is most often broken: an interrupted copy, a full disk, a checkout
    without LFS.

    Example
    causal_conv1d_cuda.so: truncated: 4,096 bytes, its program header wants 51,168.

    How to fix
    Install the package again without the cache. If its GPU code alone cannot be read, a packer may have changed it.
    """
    yield from verdicts(case, say, "every file can be read to its end", unreadable)


def unreadable(case: Case, say: Say, subject: Subject) -> Iterator[Outcome]:
    """Say which file cannot be read, and why."""
    file = subject.file
    device = file.device.problem if not isinstance(file.device, Missing) else ""
    reasons = [(file.path, file.problem)] if file.problem else [(file.path, device)] if device else []
    for path, reason in (*reasons, *file.unread.items()):
        yield say.failed(
            subject.name,
            f"{subject.name}: {path.rpartition('/')[2]} cannot be read: {reason}",
            found=f"{path}: {reason}",
            wanted="a whole file",
            remedy=f"install the package again, not from the cache: {rebuild(case, subject.package)}",
            severity=subject.severity,
        )


@check("KC239", "every compiled file is the one that was installed", needs=NEEDS)
def as_installed(case: Case, say: Say) -> Iterator[Outcome]:
    """A file that something overwrote.

    What it checks
    Size, and for files up to 8 MiB also sha256, of each compiled file of a required package, of torch and of the
    libraries that they load, against the RECORD of the distribution that installed it. A file that two distributions
    claim with different content is left to KC115.

    Why it matters
    The last writer wins and the metadata keeps quiet: the version that pip shows is then not the one that runs.

    Example
    nvidia/nccl/lib/libnccl.so.2 has 251,616,632 bytes, nvidia-nccl-cu12 2.27.3 installed 343,766,584.

    How to fix
    Install the distribution again with --force-reinstall --no-deps. A file that was stripped on purpose also differs.
    """
    changed = [outcome for subject in subjects(case) for outcome in overwritten(case, say, subject)]
    yield from changed
    told = {outcome.subject for outcome in changed}
    for package in (Package(package="torch", files=binaries(case).torch), *binaries(case).packages):
        recorded = tuple(file for file in package.files if file.records)
        if recorded and not any(file.path in told for file in package.files):
            yield from clean(say, Package(package=package.package, files=recorded), "as its RECORD says")
    if not changed and not any(subject.file.records for subject in subjects(case)):
        yield say.not_applicable("compiled files", "no file that a RECORD lists" if any_file(case) else nothing(case))


def any_file(case: Case) -> bool:
    """Tell whether any file was looked at."""
    return any(True for _ in subjects(case))


def overwritten(case: Case, say: Say, subject: Subject) -> Iterator[Outcome]:
    """Say that a file is not the one which its distribution installed."""
    file = subject.file
    if len({(record.size, record.sha256) for record in file.records}) != 1 or shared(case, file):
        return
    record = file.records[0]
    difference = differs(file, record)
    if difference:
        yield say.failed(
            file.path,
            f"{file.path.rpartition('/')[2]} is not the file that {record.distribution} {record.version} installed: "
            f"{difference}",
            found=f"{file.path}: {difference}",
            wanted=f"the file of {record.distribution} {record.version}, as its RECORD says",
            remedy="find out what wrote it; then pip install --no-cache-dir --force-reinstall --no-deps "
            f"{record.distribution}=={record.version.partition('+')[0]}",
            severity="warning",
            source="class of marin-community/marin#7344",
        )


def differs(file: BinaryFile, record: Record) -> str:
    """Return how a file differs from what its RECORD says, empty where it does not."""
    if record.size is not None and record.size != file.size:
        return f"{file.size:,} bytes instead of {record.size:,}"
    if file.sha256 and record.sha256 and file.sha256 != record.sha256:
        return "the same size, other content (sha256)"
    return ""


def shared(case: Case, file: BinaryFile) -> bool:
    """Tell whether KC115 speaks of this file: several distributions claim it."""
    environment: Environment = seen(case.snapshot.environment)
    claims = () if isinstance(environment.shared_files, Missing) else environment.shared_files
    return any(file.path.endswith("/" + item.path) for item in claims)
