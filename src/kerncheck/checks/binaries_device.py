"""KC235 to KC237: whether the GPU code in the packages' binaries runs on the GPUs in question."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from kerncheck.architectures import coverage, number_of
from kerncheck.checks.binaries_common import (
    NEEDS,
    Subject,
    binaries,
    listed,
    nothing,
    rebuild,
    subjects,
    torch,
    torch_words,
)
from kerncheck.checks.environment_driver import driver_version
from kerncheck.checks.registry import Case, check
from kerncheck.facts import Device, devices, without_devices
from kerncheck.model.base import Missing
from kerncheck.model.binaries import DeviceCode
from kerncheck.versions import holds, parse

if TYPE_CHECKING:
    from kerncheck.architectures import Coverage
    from kerncheck.model.binaries import Package
    from kerncheck.model.matrix import Gencode
    from kerncheck.model.outcome import Outcome, Say
    from kerncheck.model.releases import Doubt, Toolkit

DEVICES = (*NEEDS, "gpus")
NO_IMAGE = "no kernel image is available for execution on the device"


def with_code(case: Case) -> Iterator[tuple[Subject, DeviceCode]]:
    """Yield the packages' files (torch's own are KC106's) that hold GPU code which could be read."""
    for subject in subjects(case):
        code = subject.file.device
        readable = isinstance(code, DeviceCode) and not code.problem
        if isinstance(code, DeviceCode) and readable and code.sections and subject.package.package != "torch":
            yield subject, code


@check("KC235", "every extension holds code for the GPU", needs=DEVICES)
def architectures(case: Case, say: Say) -> Iterator[Outcome]:
    """GPU architectures in the binaries of packages.

    What it checks
    The architectures of each cubin and PTX entry in the fat binaries of an extension, compressed or not, against each
    GPU or declared target: code for X.Y runs on the same major with a minor not below Y, PTX on everything later,
    sm_90a on exactly 9.0, an f variant on its family. torch's own code is KC106's.

    Why it matters
    Without code for the GPU each launch ends with "no kernel image is available for execution on the device", on the
    node, after an image build that went well.

    Example
    causal_conv1d_cuda holds sm_80 and sm_90, the target is sm_100.

    How to fix
    Build the extension for that GPU. Where a package's setup names its architectures itself, TORCH_CUDA_ARCH_LIST
    changes nothing: then the CUDA version of nvcc decides.
    """
    found = list(with_code(case))
    if case.job.profile == "ci":
        yield say.not_applicable("GPU code", "the emulated device is the CPU")
    elif not found:
        yield say.not_applicable(
            "GPU code", "no extension that holds GPU code is installed" if files(case) else nothing(case)
        )
    elif not devices(case):
        reason, remedy = without_devices(case)
        yield say.not_judged(listed(subject.name for subject, _ in found), reason, remedy=remedy)
    else:
        for subject, code in found:
            yield from (on_device(case, say, subject, code, device) for device in devices(case))


def files(case: Case) -> bool:
    """Tell whether any file of a package was looked at."""
    return any(package.files for package in binaries(case).packages)


def answer_for(case: Case, code: DeviceCode, device: Device) -> Coverage:
    """Return how well a file's code covers a GPU."""
    facts = torch(case)
    return coverage(code.names, device.cc, case.catalog.torch.device_rule, facts.cuda if facts else "")


def on_device(case: Case, say: Say, subject: Subject, code: DeviceCode, device: Device) -> Outcome:
    """Judge one file against one GPU."""
    answer, names = answer_for(case, code, device), " ".join(code.names)
    label = f"{subject.name} on {device.label}"
    if answer == "unknown":
        return say.not_judged(label, f"{subject.name} lists no architecture that can be read: nothing is told by that")
    if answer == "none":
        return no_code(case, say, subject, code, device)
    doubt = doubted(case, code, device)
    if doubt is not None:
        return doubtful(say, subject, code, device, doubt)
    how = {"native": "code for exactly this GPU", "compatible": "code of its family", "ptx": "PTX only (KC237)"}
    return say.passed(label, f"holds {how[answer]}: {names}{share(case, code, device)}; capability {device.cc}")


def share(case: Case, code: DeviceCode, device: Device) -> str:
    """Return in how many of a file's fat binaries the GPU is covered, where it is not all of them."""
    rule = case.catalog.torch.device_rule
    good = sum(item.count for item in code.sets if coverage(item.codes, device.cc, rule) not in ("none", "unknown"))
    return f" (in {good} of {code.images} fat binaries)" if good < code.images else ""


def no_code(case: Case, say: Say, subject: Subject, code: DeviceCode, device: Device) -> Outcome:
    """Say that a file has no code for a GPU."""
    number = number_of(device.cc)
    return say.failed(
        f"{subject.name} on {device.label}",
        f"{subject.name} holds {' '.join(code.names)}, none of which runs on {device.label} (sm_{number}): each launch "
        f'would end with "{NO_IMAGE}"',
        found=f"{subject.file.path}: {' '.join(code.names)}",
        wanted=f"code for capability {device.cc}; targets: {listed(item.label for item in devices(case))}",
        remedy=how_to_build(case, subject.package, number),
        severity=subject.severity,
        source="Dao-AILab/causal-conv1d#119, state-spaces/mamba#490",
    )


def doubted(case: Case, code: DeviceCode, device: Device) -> Doubt | None:
    """Return the report that code of this kind does not run on this GPU, if nothing better is in the file."""
    facts = torch(case)
    for row in case.catalog.cuda.doubt:
        others = [name for name in code.names if not name.startswith(f"sm_{row.code}")]
        rule, cuda = case.catalog.torch.device_rule, facts.cuda if facts else ""
        if row.cc == device.cc and coverage(others, device.cc, rule, cuda) in ("none", "unknown"):
            return row
    return None


def doubtful(say: Say, subject: Subject, code: DeviceCode, device: Device, row: Doubt) -> Outcome:
    """Warn that the rule says yes and a report says no."""
    return say.failed(
        f"{subject.name} on {device.label}",
        f"{subject.name} holds sm_{row.code} as its nearest code for {device.label}: the rule says that it runs, a "
        f"report says that it does not ({row.report}); a launch on the GPU decides",
        found=" ".join(code.names),
        wanted=f"code for exactly sm_{number_of(device.cc)}, or a launch that works",
        remedy="run kerncheck verify on the node: its numeric checks launch the kernels",
        severity="warning",
        source=row.source,
    )


def how_to_build(case: Case, package: Package, number: int) -> str:
    """Return how to get code for an architecture out of a package's own setup."""
    build = rebuild(case, package)
    row = gencode(case, package)
    if row is None:
        return f"build it for this GPU: TORCH_CUDA_ARCH_LIST={number // 10}.{number % 10} {build}"
    known = {
        "": row.always,
        " with an nvcc of CUDA >= 11.8": row.nvcc_from_11_8,
        " with an nvcc of CUDA 11 or 12": row.nvcc_up_to_12_9,
        " with an nvcc of CUDA >= 12.8": row.nvcc_from_12_8,
        " with an nvcc of CUDA >= 13.0": row.nvcc_from_13_0,
    }
    with_nvcc = next((words for words, codes in known.items() if runs_on(case, codes, number)), None)
    if with_nvcc is None:
        return f"no release of its setup builds code for sm_{number}; take another GPU, or an op of another package"
    return f"build it here{with_nvcc} (its setup ignores TORCH_CUDA_ARCH_LIST): {build}"


def gencode(case: Case, package: Package) -> Gencode | None:
    """Return the architectures that the setup of the installed release builds, None where they are not known."""
    for item in package.installed:
        name, _, version = item.rpartition(" ")
        kernel = case.catalog.kernel_of(name)
        for row in kernel.gencode if kernel else ():
            if holds(row.versions, version.partition("+")[0]):
                return row
    return None


def runs_on(case: Case, codes: tuple[int, ...], number: int) -> bool:
    """Tell whether one of these architectures runs on a GPU."""
    names = [f"sm_{code}" for code in codes]
    cc = f"{number // 10}.{number % 10}"
    return coverage(names, cc, case.catalog.torch.device_rule) in ("native", "compatible")


@check("KC236", "every CUDA extension holds GPU code at all", needs=NEEDS)
def any_code(case: Case, say: Say) -> Iterator[Outcome]:
    """An extension without GPU code.

    What it checks
    Each known CUDA extension, and the libraries of its own package that it loads, have fat binaries.

    Why it matters
    A setup that asks for a GPU while it builds makes a CPU-only extension on a builder without one, says so in one
    line of its log, and the extension fails at the first GPU tensor.

    Example
    selective_scan_cuda has no .nv_fatbin section.

    How to fix
    Build it where nvcc is, with FORCE_CUDA=1 and TORCH_CUDA_ARCH_LIST if its setup honours them.
    """
    facts = torch(case)
    extensions = [
        subject for subject in subjects(case) if subject.file.role == "extension" and not subject.file.problem
    ]
    if facts is not None and not facts.cuda:
        yield say.not_applicable("GPU code", f"torch is built for {facts.kind}")
        return
    for subject in extensions:
        outcome = holds_code(case, say, subject)
        if outcome is not None:
            yield outcome
    if not extensions:
        yield say.not_applicable("GPU code", nothing(case))


def holds_code(case: Case, say: Say, subject: Subject) -> Outcome | None:
    """Judge one extension; None where its code cannot be told (KC238 then speaks)."""
    parts = [file.device for file in subject.package.files if file is subject.file or file.role == "dependency"]
    if any(isinstance(part, Missing) or part.problem for part in parts):
        reason = next((part.reason for part in parts if isinstance(part, Missing)), "")
        return say.not_judged(subject.name, reason) if reason else None
    sections = [name for part in parts if isinstance(part, DeviceCode) for name in part.sections]
    if sections:
        return say.passed(subject.name, f"holds GPU code ({listed(sections)})")
    hip = any(isinstance(part, DeviceCode) and part.hip for part in parts)
    return say.failed(
        subject.name,
        f"{subject.name} holds {'code for AMD GPUs only' if hip else 'no GPU code at all: it was built for the CPU'}",
        found=f"{subject.file.path}: no fat binary",
        wanted=f"an extension built with nvcc, for {torch_words(case)}",
        remedy="build it where nvcc is, with FORCE_CUDA=1 and TORCH_CUDA_ARCH_LIST if its setup honours them: "
        f"{rebuild(case, subject.package)}",
        source="pytorch/pytorch#66333",
    )


@check("KC237", "the driver can compile what is PTX only", needs=DEVICES)
def ptx_only(case: Case, say: Say) -> Iterator[Outcome]:
    """PTX that the driver must compile.

    What it checks
    For each GPU that an extension covers by PTX alone: the version of the PTX language in the file, the CUDA version
    that it came with, and whether the driver reads it.

    Why it matters
    The driver compiles PTX at the first launch, which takes long; a driver older than the compiler refuses it with
    error 222, "the provided PTX was compiled with an unsupported toolchain".

    Example
    An extension with compute_80 alone, compiled by CUDA 12.8, on an RTX 3090 with driver 535 (CUDA 12.2).

    How to fix
    A newer driver, or a build with machine code for the GPU.
    """
    pairs = [(subject, code, device) for subject, code in with_code(case) for device in devices(case)]
    covered = [item for item in pairs if answer_for(case, item[1], item[2]) == "ptx"]
    for subject, code, device in covered:
        yield compiled_by_driver(case, say, subject, code, device)
    if not covered and pairs:
        yield say.passed(listed(subject.name for subject, _, _ in pairs), "no GPU is covered by PTX alone")
    elif not pairs:
        yield say.not_applicable("PTX", "no extension with GPU code, or no GPU, to judge")


def compiled_by_driver(case: Case, say: Say, subject: Subject, code: DeviceCode, device: Device) -> Outcome:
    """Judge PTX that one GPU depends on."""
    isa = newest_isa(case, code, device)
    toolkit = next((row for row in case.catalog.cuda.toolkit if row.ptx == isa), None)
    driver, offers = driver_cuda(case)
    has, needs = parse(offers), parse(toolkit.version) if toolkit else None
    refused = has is not None and needs is not None and has < needs
    compiler = f"PTX {isa or 'of unknown version'}" + (f" of CUDA {toolkit.version}" if toolkit else "")
    known = f"driver {driver} is of CUDA {offers}" if offers else "the driver is not known (--driver)"
    return say.failed(
        f"{subject.name} on {device.label}",
        f"{subject.name} covers {device.label} by PTX alone ({compiler}); {known}: "
        + ('it refuses newer PTX with error 222, "unsupported toolchain"' if refused else "it compiles at first use"),
        found=f"{subject.file.path}: {' '.join(code.names)}; {known}",
        wanted=f"machine code for sm_{number_of(device.cc)}"
        + (f", or a driver of CUDA >= {toolkit.version}" if toolkit else ""),
        remedy=f"build it with code for this GPU: {how_to_build(case, subject.package, number_of(device.cc))}"
        + (f"; or a driver >= {toolkit.driver_ga}" if refused and toolkit and toolkit.driver_ga else ""),
        severity="error" if refused else "warning",
        source="triton-inference-server/server#2193",
    )


def newest_isa(case: Case, code: DeviceCode, device: Device) -> str:
    """Return the newest PTX version among the entries that serve a GPU, empty where no entry tells."""
    rule = case.catalog.torch.device_rule
    serving = [item for item in code.codes if coverage((item.name,), device.cc, rule) == "ptx"]
    return max((item.isa for item in serving if item.isa), key=lambda text: parse(text) or 0, default="")


def driver_cuda(case: Case) -> tuple[str, str]:
    """Return (driver, the CUDA version that it offers), by its own word or by the toolkits that came with drivers."""
    driver, offers = driver_version(case)
    version = parse(driver)
    if offers or version is None:
        return driver, offers
    rows = [(row, parse(row.driver_ga)) for row in case.catalog.cuda.toolkit]
    whole = "." in driver
    fitting = [row for row, first in rows if first and (first <= version if whole else first.major <= version.major)]
    return driver, newest(fitting)


def newest(rows: list[Toolkit]) -> str:
    """Return the newest version among toolkits, empty for none."""
    return max((row.version for row in rows), key=lambda text: parse(text) or 0, default="")
