"""Patches of a kernel package on a model's modules: whether they reach this model."""

from __future__ import annotations

from collections.abc import Iterator

from kerncheck.checks.registry import Case, check
from kerncheck.model.base import Broken, Missing, seen
from kerncheck.model.outcome import Outcome, Say
from kerncheck.model.seams import ModulePatch

HOW = {
    "class": "run {target} ({package} was applied before the model was built)",
    "forward": "run {target} ({package} replaced their forward)",
}


@check("KC311", "patched modules run the patch", needs=("seams",))
def patched_modules(case: Case, say: Say) -> Iterator[Outcome]:
    """Where Liger was applied, it must be the model's own modules that run its kernels.

    What it checks
    What the forward of each module of the built model is, in the clean process and in kerncheck.guard in yours: Liger's
    class, a forward that Liger put there, or the library's own code although its class has been replaced since.

    Why it matters
    apply_liger_kernel_to_...() replaces classes. A model that was built before keeps its own, silently
    (linkedin/Liger-Kernel#507, #512, #625). print(model) is no proof.

    Example
    Qwen3_5RMSNorm: 9 modules were built before liger_kernel was applied, and run their own code

    How to fix
    Apply Liger before the model is built, or hand it the model: apply_liger_kernel_to_...(model=model).
    """
    patches = patches_of(case)
    if not patches:
        yield say.not_applicable("patches", "no module of the model was patched by a kernel package that is known here")
    for patch in patches:
        if patch.how == "missed":
            yield missed(patch, say)
        else:
            words = HOW[patch.how].format(target=patch.target, package=patch.package)
            yield say.passed(patch.name, f"{patch.modules} modules {words}")


def patches_of(case: Case) -> tuple[ModulePatch, ...]:
    """Return the patches of the model that was built: in the user's own process, or in the run of the probe."""
    section = seen(case.snapshot.seams)
    parts = (section.bound, section.entered)
    return tuple(patch for part in parts if not isinstance(part, Missing | Broken) for patch in part.patches)


def missed(patch: ModulePatch, say: Say) -> Outcome:
    """Return the finding for modules that a patch came too late for."""
    return say.failed(
        patch.name,
        f"{patch.modules} modules were built before {patch.package} was applied, and run their own code",
        found=f"the modelling code's {patch.name} is {patch.target} now; the modules are of the class before it",
        wanted=f"modules that run {patch.target}",
        remedy=f"apply {patch.package} before the model is built, or hand it the model (model=...)",
        severity="warning",
    )
