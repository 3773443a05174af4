"""KC7: whether the model's Triton kernels compile for GPUs that are not there, and would find room on them."""

from __future__ import annotations

from collections.abc import Iterator

from kerncheck.catalog import Catalog
from kerncheck.checks import _compiled as read
from kerncheck.checks.registry import Case, check
from kerncheck.model.base import Broken, Missing, seen
from kerncheck.model.compiled import Call, Compiled, Lost, Rehearsal, Toolchain
from kerncheck.model.outcome import Outcome, Say, Severity
from kerncheck.supervise import why

AUTOTUNER = "triton 3.9.0 runtime/autotuner.py (_bench)"
DERIVED = "matrices/triton.toml, release 3.9.0: derived, not tested on such a driver"


def judged(case: Case) -> Iterator[tuple[Compiled, Rehearsal]]:
    """Yield every target that was surveyed and that ptxas knows."""
    compiled = seen(case.snapshot.compiled)
    for rehearsal in compiled.rehearsals:
        if rehearsal.survey is None and rehearsal.toolchain.knows:
            yield compiled, rehearsal


@check("KC701", "the model's kernels compile for the target", needs=("compiled",))
def kernels_compile(case: Case, say: Say) -> Iterator[Outcome]:
    """Every configuration of every kernel of the model's Triton ops is compiled for each target, without a GPU.

    What it checks
        Forward and backward of each required op run under a stand-in for the target, at the model's head sizes and
        dtype, plain and packed. fla takes its decisions as on that GPU, each launch becomes a compilation, and every
        configuration of the autotuner must give machine code.
    Why it matters
        Triton compiles on the node, at the first step. A compiler that fails there, or aborts, ends the job after the
        GPUs were paid for. Nothing in an import or an installation shows it.
    Example
        Triton 3.4 and 3.5 on a B200: "Failed to hoist tmem_store", then an abort, in the backward of the gated delta
        rule (fla-org/flash-linear-attention#607).
    How to fix
        Take a Triton (through torch) and an fla that this target is known to work with: `kerncheck list matrix`. A
        pass says that the code compiles, not that it runs or computes the right values.
    """
    compiled = seen(case.snapshot.compiled)
    for text, reason in compiled.unplanned.items():
        yield say.not_judged(text, reason)
    for rehearsal in compiled.rehearsals:
        if rehearsal.survey is not None:
            yield say.not_judged(rehearsal.name, f"the launches could not be surveyed: {why(rehearsal.survey)}")
        elif not rehearsal.toolchain.knows:
            yield say.not_judged(rehearsal.name, "nothing can be compiled for this target (KC703)", required=False)
        else:
            yield from call_outcomes(case, say, compiled, rehearsal)
            yield from kernel_outcomes(case, say, rehearsal)
            yield from (lost_outcome(say, rehearsal, lost) for lost in rehearsal.lost if isinstance(lost.why, Broken))


def call_outcomes(case: Case, say: Say, compiled: Compiled, rehearsal: Rehearsal) -> Iterator[Outcome]:
    """Say of each call whether it compiles, was refused, or could not be judged."""
    for call in rehearsal.calls:
        subject, must = f"{rehearsal.name}: {call.name}", None if read.needed(case, call) else False
        for function, backend in call.elsewhere.items():
            reason = f"fla hands {function} to {backend} on this target, whose code is not compiled ahead"
            yield say.not_judged(f"{rehearsal.name}: {function}", reason, required=must)
        raised = next((phase for phase in call.phases if phase.problem is not None), None)
        if raised is not None and raised.problem is not None:
            yield refused(say, subject, rehearsal, raised.phase, raised.problem, must=must)
        else:
            yield from whole_call(say, subject, compiled, rehearsal, call, must=must)


def refused(say: Say, subject: str, rehearsal: Rehearsal, phase: str, problem: Broken, *, must: bool | None) -> Outcome:
    """Say that a call raised before anything was compiled."""
    if problem.exception == "UnknownOpError":
        return say.not_judged(subject, f"the op cannot be called: {problem.message}", required=must)
    text = f"the {phase} pass raises before a kernel is compiled: {problem.exception}: {problem.message}"
    if must is False:
        return say.note(subject, f"{text} (this job does not enter the op)", "rehearsed")
    return say.failed(
        subject,
        text,
        found=f"{problem.exception}: {problem.message}",
        wanted=f"a call that gets through on {rehearsal.name}, as it would on a node",
        remedy="read the message: fla refuses combinations that it knows to be wrong; KC1 names the releases that work",
        evidence="rehearsed",
    )


def whole_call(
    say: Say, subject: str, compiled: Compiled, rehearsal: Rehearsal, call: Call, *, must: bool | None
) -> Iterator[Outcome]:
    """Pass a call whose compilations were all made, and none of which ends the job."""
    results = {result.id: result for result in rehearsal.results}
    ids = read.wanted(call, compiled)
    absent = ids - set(results)
    if not ids:
        yield say.not_judged(subject, "the call launches no Triton kernel", required=must)
    elif absent:
        yield say.not_judged(subject, read.missing_reason(rehearsal, absent), required=must)
    elif read.gets_through(call, results, ids):
        kernels = {kernel.name for phase in call.phases for kernel in phase.kernels}
        count = sum(results[one].compiled for one in ids)
        extent = "the first configuration of each" if compiled.quick else f"configurations {count}"
        text = f"compiles for sm_{rehearsal.facts.arch} as rehearsed: kernels {len(kernels)}, {extent}"
        yield say.passed(subject, text, "rehearsed")


def kernel_outcomes(case: Case, say: Say, rehearsal: Rehearsal) -> Iterator[Outcome]:
    """Say of each kernel with a configuration that does not compile what the compiler said."""
    for tally in read.tallies(case, rehearsal):
        if not tally.failed:
            continue
        subject = f"{rehearsal.name}: {tally.name}"
        configuration, result = tally.failed[0]
        message = read.salient(result)
        count = f"{len(tally.failed)} of {tally.tried} configurations"
        if not tally.ends:
            text = f"{count} do not compile and are dropped by the autotuner: {message}"
            yield say.note(subject, text, "rehearsed", source=AUTOTUNER)
        elif not tally.needed:
            yield say.note(subject, f"{count} do not compile, in an op that this job does not enter: {message}")
        else:
            yield say.failed(
                subject,
                f"does not compile for {rehearsal.toolchain.target} ({count}, called by {', '.join(tally.calls)})",
                found=f"[{configuration.label}] {result.exception}: {message}",
                wanted="machine code for every configuration that the autotuner tries",
                remedy="take a Triton (through torch) and an fla that work on this target: KC1 names them",
                evidence="rehearsed",
            )


def lost_outcome(say: Say, rehearsal: Rehearsal, lost: Lost) -> Outcome:
    """Say that the compiler itself died or stood still."""
    assert isinstance(lost.why, Broken)  # noqa: S101 - the caller looked
    where = lost.at or lost.name
    broken = lost.why
    did = "stood still" if broken.how == "stood_still" else "ended the process"
    return say.failed(
        f"{rehearsal.name}: {where.partition('[')[0]}",
        f"the compiler {did} on {where}: {broken.message}",
        found=read.last_words(broken) or broken.message,
        wanted=f"machine code for {rehearsal.toolchain.target}; such an end takes the training process along",
        remedy="take a Triton (through torch) and an fla that work on this target: KC1 names them",
        evidence="rehearsed",
    )


@check("KC702", "a configuration of each kernel fits the target's shared memory", needs=("compiled",))
def configurations_fit(case: Case, say: Say) -> Iterator[Outcome]:
    """Of each kernel at least one configuration must find room in the shared memory of a block.

    What it checks
        The compiled code says how much shared (and tensor) memory a block takes. For each kernel some configuration
        must take no more than the target offers; the report says how many of how many do.
    Why it matters
        The autotuner drops what does not fit, silently. With nothing left the first step ends in "out of resource:
        shared memory"; with little left the kernel is slow.
    Example
        Head size 256 on a T4: Required: 98304, Hardware limit: 65536 (fla-org/flash-linear-attention#241).
    How to fix
        Take another GPU for this model, or an fla release whose tiles fit. The tiles follow from the head sizes and
        the GPU; there is nothing to set.
    """
    for compiled, rehearsal in judged(case):
        tight = []
        for tally in read.tallies(case, rehearsal):
            room = [result for _, result in tally.compiled if read.fits(result, rehearsal)]
            if tally.compiled and not room:
                yield no_room(say, compiled, rehearsal, tally)
            elif len(room) < len(tally.compiled):
                tight.append(f"{tally.name} {len(room)} of {len(tally.compiled)}")
        if tight:
            text = f"some configurations do not fit and are dropped by the autotuner: {', '.join(tight)} fit"
            yield say.note(rehearsal.name, text, "rehearsed")
        yield from room_for_all(case, say, rehearsal)


def no_room(say: Say, compiled: Compiled, rehearsal: Rehearsal, tally: read.Tally) -> Outcome:
    """Say that nothing of a kernel fits."""
    subject = f"{rehearsal.name}: {tally.name}"
    least = min(result.shared for _, result in tally.compiled)
    limit = rehearsal.facts.shared_memory
    found = f"0 of {len(tally.compiled)} configurations fit; the least needs {read.spelled(least)} bytes"
    if compiled.quick and any(configuration.number == 1 for configuration, _ in tally.compiled):
        reason = f"the first configuration needs {read.spelled(least)} bytes, and --quick compiles no other"
        return say.not_judged(subject, reason)
    if not tally.needed:
        return say.note(subject, f"{found}, in an op that this job does not enter", "rehearsed")
    return say.failed(
        subject,
        f"no configuration fits the {read.spelled(limit)} bytes of shared memory that a block may take",
        found=found,
        wanted=f"a configuration of at most {read.spelled(limit)} bytes on {rehearsal.name}",
        remedy="take another GPU for these head sizes, or an fla release whose tiles fit",
        evidence="rehearsed",
        source="fla-org/flash-linear-attention#241, #447",
    )


def room_for_all(case: Case, say: Say, rehearsal: Rehearsal) -> Iterator[Outcome]:
    """Pass a target on which every kernel was compiled and finds room in some configuration."""
    tallies = read.tallies(case, rehearsal)
    if not tallies or not all(tally.compiled for tally in tallies):
        yield say.not_judged(rehearsal.name, "not every kernel was compiled (KC701)")
        return
    fitting = [tally for tally in tallies if any(read.fits(result, rehearsal) for _, result in tally.compiled)]
    if len(fitting) == len(tallies):
        count = sum(read.fits(result, rehearsal) for tally in tallies for _, result in tally.compiled)
        total = sum(len(tally.compiled) for tally in tallies)
        limit = read.spelled(rehearsal.facts.shared_memory)
        text = f"each of {len(tallies)} kernels has a configuration within {limit} bytes ({count} of {total} fit)"
        yield say.passed(rehearsal.name, text, "rehearsed")


@check("KC703", "ptxas knows the target", needs=("compiled",))
def ptxas_knows(case: Case, say: Say) -> Iterator[Outcome]:
    """The ptxas that Triton takes for the target must know it.

    What it checks
        Triton is asked which ptxas it takes for the target (TRITON_PTXAS_PATH and TRITON_PTXAS_BLACKWELL_PATH count),
        and that ptxas assembles an empty kernel for it.
    Why it matters
        Every Triton kernel passes through it. A GPU newer than the ptxas fails at the first kernel. torch's own ptxas
        serves inductor alone.
    Example
        Value 'sm_121a' is not defined for option 'gpu-name' (triton-lang/triton#8539: Triton 3.5 on a DGX Spark).
    How to fix
        Install a Triton whose ptxas knows the GPU, through the torch that belongs to it.
    """
    compiled = seen(case.snapshot.compiled)
    for rehearsal in compiled.rehearsals:
        tool = rehearsal.toolchain
        if rehearsal.survey is not None:
            yield say.not_judged(rehearsal.name, f"ptxas was not asked: {why(rehearsal.survey)}")
        elif tool.knows:
            text = f"the ptxas {tool.version} of Triton {tool.triton} assembles for {tool.target}"
            yield say.passed(rehearsal.name, text, "rehearsed")
        else:
            yield unknown_target(say, case.catalog, rehearsal)


def unknown_target(say: Say, catalog: Catalog, rehearsal: Rehearsal) -> Outcome:
    """Say that Triton's ptxas refuses the target, or does not run at all."""
    tool = rehearsal.toolchain
    what = f"refuses {tool.target}" if tool.target else "does not run"
    return say.failed(
        rehearsal.name,
        f"Triton {tool.triton} can compile nothing for this target: its ptxas {tool.version} {what}",
        found=tool.message or "no message",
        wanted=f"a ptxas that assembles for {tool.target or rehearsal.name}",
        remedy=newer_triton(catalog, rehearsal.facts.arch, tool),
        evidence="rehearsed",
        source="triton-lang/triton#8539",
    )


def newer_triton(catalog: Catalog, arch: int, tool: Toolchain) -> str:
    """Return which Triton is known to reach a target."""
    known = sorted(row.version for row in catalog.triton.release if arch in row.blackwell)
    if known and tool.triton not in {str(version) for version in known}:
        return f"install triton >= {known[0]}, through the torch that pins it"
    if known:
        return "unset TRITON_PTXAS_PATH and TRITON_PTXAS_BLACKWELL_PATH, or let them name a newer ptxas"
    return "no Triton release is known whose ptxas targets this GPU: name the GPU that the nodes have"


@check("KC704", "the nodes' driver runs what ptxas makes", needs=("compiled", "gpus"))
def driver_runs_output(case: Case, say: Say) -> Iterator[Outcome]:
    """The driver of the nodes should be of the CUDA major version of the ptxas that Triton takes, or later.

    What it checks
        The release of the ptxas that Triton takes for each target, against the driver that was declared (--driver) or
        that is here: the oldest driver of each CUDA major version stands in matrices/cuda.toml.
    Why it matters
        Triton hands machine code to the driver. Code from a ptxas of CUDA 13 is expected to need a driver of CUDA 13
        (580 or later), also under a torch built for CUDA 12. The consequence is derived, so it is a warning.
    Example
        Triton 2.2, whose ptxas was of CUDA 12, on driver 470: "device kernel image is invalid"
        (triton-lang/triton#3001). Triton 3.9 takes the ptxas of CUDA 13.4 from Hopper on.
    How to fix
        Update the nodes' driver, or install the torch whose Triton has a ptxas of the driver's CUDA version.
    """
    gpus = case.snapshot.gpus
    driver = case.job.driver or ("" if isinstance(gpus, Missing) else gpus.driver)
    for _, rehearsal in judged(case):
        major = rehearsal.toolchain.release.partition(".")[0]
        floor = next((row for row in case.catalog.cuda.floor if str(row.cuda_major) == major), None)
        if not driver:
            yield say.not_judged(rehearsal.name, "no driver was declared (--driver)", required=False)
        elif floor is None:
            reason = f"cuda.toml names no oldest driver of CUDA {major or '?'}"
            yield say.not_judged(rehearsal.name, reason, required=False)
        elif read.older(driver, floor):
            yield too_old(say, rehearsal, driver, str(floor.branch))
        else:
            text = f"driver {driver} is of CUDA {major} or later, like the ptxas {rehearsal.toolchain.version}"
            yield say.passed(rehearsal.name, text, "declared")


def too_old(say: Say, rehearsal: Rehearsal, driver: str, branch: str) -> Outcome:
    """Say that the driver is of an older CUDA major version than ptxas."""
    tool = rehearsal.toolchain
    severity: Severity = "warning"
    return say.failed(
        rehearsal.name,
        f"driver {driver} may refuse what the ptxas {tool.version} of Triton {tool.triton} makes for {tool.target}",
        found=f"driver {driver}, ptxas {tool.version}",
        wanted=f"driver {branch} or later",
        remedy=f"update the driver to {branch} or later, or install a torch whose Triton has an older ptxas",
        evidence="declared",
        severity=severity,
        source=DERIVED,
    )


@check("KC705", "registers that compiled kernels spill", needs=("compiled",))
def registers_spill(case: Case, say: Say) -> Iterator[Outcome]:
    """Tell which kernels keep registers in memory, and how much: it costs speed, never correctness.

    What it checks
        The bytes of local memory of a thread in each compiled configuration. Triton's kernels hold no arrays of their
        own, so that local memory means registers that did not fit.
    Why it matters
        A configuration that spills is slow. The autotuner avoids it where it has another; a kernel that spills in each
        of its configurations has no way out. Only a GPU can tell what it costs, so nothing fails here.
    Example
        chunk_bwd_kernel_dqkwg with two warps for sm_90: 21,568 bytes a thread, with four warps 880.
    How to fix
        Usually nothing. If the step is slow on the node, compare another fla or Triton release.
    """
    for compiled, rehearsal in judged(case):
        tallies = [tally for tally in read.tallies(case, rehearsal) if tally.compiled]
        spilling = [tally for tally in tallies if any(result.local_memory for _, result in tally.compiled)]
        always = [tally for tally in spilling if all(result.local_memory for _, result in tally.compiled)]
        if not tallies:
            continue
        if not spilling:
            yield say.passed(rehearsal.name, "no compiled configuration spills registers", "rehearsed")
        else:
            which = "their first" if compiled.quick else "some"
            text = f"{len(spilling)} of {len(tallies)} kernels spill registers in {which} configuration"
            worst = ", ".join(map(read.least_spill, always))
            worst = f"; in every one that was compiled: {worst}" if always else ""
            yield say.note(rehearsal.name, text + worst, "rehearsed")


@check("KC706", "time that a cold cache costs", needs=("compiled",))
def cold_cache(case: Case, say: Say) -> Iterator[Outcome]:
    """Tell how long the compilations took that a node with an empty cache repeats.

    What it checks
        The CPU time of all compilations that Triton's cache did not hold, on this machine.
    Why it matters
        Every rank compiles at its first step while the others wait. A watchdog of ten minutes takes a cold compile for
        a hang (radixark/miles#3132: 639 seconds cold, 60 warm).
    Example
        118 configurations of one call of chunk_gated_delta_rule, forward and backward: about 115 seconds of CPU time.
    How to fix
        Fill the cache in the image: `kerncheck warm --model ... --target ...`. It removes compilation, not autotuning.
    """
    for _, rehearsal in judged(case):
        cold = [result for result in rehearsal.results if result.compiled and not result.cached]
        warm = sum(result.cached for result in rehearsal.results)
        if not cold and not warm:
            continue
        if not cold:
            yield say.passed(rehearsal.name, f"all {warm} compilations were in Triton's cache", "rehearsed")
        else:
            seconds = sum(result.seconds for result in cold)
            text = f"{len(cold)} compilations took {seconds:.0f} s of CPU time ({warm} more were in Triton's cache)"
            yield say.note(rehearsal.name, f"{text}; a node with a cold cache repeats them", "rehearsed")
