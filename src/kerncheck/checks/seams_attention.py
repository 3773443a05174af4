"""Seams: attention, and kernels that would come from the hub."""

from __future__ import annotations

from collections.abc import Iterator

from kerncheck.checks.registry import Case, check
from kerncheck.checks.seams_common import bindings, entered, evidence, on_a_device
from kerncheck.model.outcome import Outcome, Say
from kerncheck.model.seams import Bindings, Entered

FLASH_PACKAGES = {"flash_attention_2": "flash_attn", "flash_attention_3": "flash_attn_interface"}
"""The package that offers an attention implementation (transformers 5.24.0, modeling_flash_attention_utils.py)."""


def kind_of(asked: str) -> str:
    """Return the kind of an attention implementation's name: hub kernels and all flash versions count as one."""
    plain = asked.rpartition("|")[2]
    return "flash_attention" if "flash" in plain else plain


@check("KC306", "full attention runs what was asked for", needs=("seams",))
@on_a_device
def other_attention(case: Case, say: Say) -> Iterator[Outcome]:
    """The full-attention layers compute attention with the implementation that the configuration asks for.

    What it checks
    Which function each full-attention layer of a tiny model called: eager, sdpa, flash or flex attention.

    Why it matters
    A library may replace what was asked for without an error. What is seen outranks the configuration: a library that
    patches attention can leave its field stale, and that is no fault.

    Example
    flash_attention_2 is asked for, layer 3 of the 4 that were built ran eager

    How to fix
    Install the package of the implementation that is asked for, or ask for one that is there.
    """
    run = entered(case)
    asked = bindings(case).attention.asked or run.asked
    ran: dict[str, list[int]] = {}
    for item in run.attention:
        for name in item.functions:
            ran.setdefault(name, []).append(item.layer)
    if run.device == "emulate" and kind_of(asked) == "flash_attention":
        yield say.not_judged("attention", f"{asked} cannot run on the emulated device", required=False)
    elif not ran:
        yield nothing_seen(run, say)
    else:
        yield from (compared(asked, name, layers, run, say) for name, layers in sorted(ran.items()))


def nothing_seen(run: Entered, say: Say) -> Outcome:
    """Say that no attention was seen, or that there is none."""
    full = [kind for kind in run.layer_types if kind.endswith("_attention") and kind != "linear_attention"]
    if not full:
        return say.not_applicable("attention", "no full-attention layer")
    return say.not_judged("attention", "no function that computes attention was seen in any layer", required=False)


def compared(asked: str, name: str, layers: list[int], run: Entered, say: Say) -> Outcome:
    """Compare what ran in some layers with what was asked for."""
    where = f"built layer{'' if len(layers) == 1 else 's'} {', '.join(map(str, sorted(layers)))}"
    wanted = kind_of(asked)
    if name == wanted:
        return say.passed("attention", f"{where} ran {name}, as asked", evidence(run))
    if name in ("flash_attention", "flex_attention") or wanted == "eager" or not wanted:
        return say.note("attention", f"{where} ran {name}, though the configuration says {asked!r}", evidence(run))
    return say.failed(
        "attention",
        f"{asked} is asked for, {where} ran {name}",
        found=name,
        wanted=asked,
        remedy=f"install what {asked} needs, or ask for {name} and know that it runs",
        evidence=evidence(run),
        severity="error" if wanted == "flash_attention" else "warning",
    )


@check("KC307", "no kernel is downloaded at run time", needs=("seams",))
def from_the_hub(case: Case, say: Say) -> Iterator[Outcome]:
    """No kernel that the model needs would be downloaded when the job starts.

    What it checks
    Whether the configuration asks for a kernel of the hub, or for a flash attention whose package is absent while
    transformers may take a hub kernel in its place; and whether the local hub cache holds it.

    Why it matters
    A node without network fails at start, and an image would carry something other than what was judged.

    Example
    attention: kernels-community/flash-attn2 is asked for and is not in the local hub cache

    How to fix
    Put the kernel into the image's hub cache, or install the package that offers the op.
    """
    bound = bindings(case)
    if bound.variables:
        text = ", ".join(f"{name}={value}" for name, value in sorted(bound.variables.items()))
        yield say.note("hub kernels", f"set in this environment: {text}")
    wanted = hub_kernel(bound)
    if not wanted:
        yield say.not_applicable("hub kernels", "neither the configuration nor a seam asks for a kernel of the hub")
    elif bound.attention.cached:
        yield say.passed("hub kernels", f"{wanted} is in the local hub cache")
    elif case.job.profile == "image":
        yield say.failed(
            "hub kernels",
            f"{wanted} is not in the image's hub cache and would be downloaded at run time",
            found="not in the hub cache",
            wanted="a kernel that lies in the image",
            remedy="download it into the image's hub cache while building, or install the package that offers the op",
        )
    else:
        yield say.not_judged("hub kernels", f"{wanted} would be downloaded at run time: it cannot be judged before")


def hub_kernel(bound: Bindings) -> str:
    """Return the hub kernel that would be used, or nothing."""
    asked = bound.attention.asked
    package = FLASH_PACKAGES.get(asked)
    if "/" in asked:
        return asked
    if package and not bound.attention.packages.get(package, False) and bound.kernels.available:
        return f"a hub kernel in place of {package}"
    return next((f"{item.op} ({item.target})" for item in bound.bindings if item.bound == "hub"), "")
