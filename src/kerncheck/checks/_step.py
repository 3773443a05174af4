"""What the step section says about one op, one device, one pair of runs. Pure readings, no verdicts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from kerncheck.kernels import find_spec
from kerncheck.model.base import Broken, Missing
from kerncheck.model.job import Job, RequiredOp
from kerncheck.model.outcome import Outcome, Say
from kerncheck.model.step import Alone, Comparison, OnDevice, Run, Step, Tensor, Use, Work
from kerncheck.supervise import why

LIMITS = {"float32": (1e-5, 5e-5), "bfloat16": (5e-2, 1e-1), "float16": (5e-2, 1e-1)}
"""Largest root mean square of the difference over that of the eager tensor, for (outputs of seams, gradients).

Measured in Triton's interpreter, tiny Qwen3.5 with weak gates, 66 and 200 tokens, triton 3.9.0, fla 0.6.0: worst of 14
healthy runs in float32 4.4e-7 and 4.4e-6, of 6 in bfloat16 1.1e-2 and 2.6e-2. The limits leave a factor of 4 to 23.
"""
FLOOR = 1e-3
"""A gradient much smaller than the model's largest one is compared on the scale of that one times this: where the true
value cancels, rounding is all there is. The smallest healthy gradients were 5e-3 of the largest."""
UNCALIBRATED = 3.0  # on a GPU the limits are not calibrated yet: up to this many times the limit is a warning
COMPLETE = 0.95  # of the kernels must join their launch before absence means anything (methods.md, 4.1)


@dataclass(frozen=True)
class OpRun:
    """One required op on one device: the fused run, what the op does alone, and its layers."""

    op: RequiredOp
    device: OnDevice
    run: Run
    subject: str

    @property
    def seam(self) -> str:
        """The op's name, by which its seam is found."""
        return self.op.op.partition(":")[2]

    @property
    def library(self) -> str:
        """What launches the op's kernels: triton or cuda; triton for an op that no kernel file describes."""
        spec = find_spec(self.op.op)
        return spec.library if spec else "triton"

    @property
    def unknown(self) -> bool:
        """Whether no kernel file describes the op, and the interpreter may not be able to run its kernels."""
        return find_spec(self.op.op) is None

    @property
    def learned(self) -> Alone | None:
        """What the op did alone in this environment."""
        return self.run.lonely(self.op.op)

    @property
    def layers(self) -> list[int]:
        """The layers that must run the op: those of its type, or those that called it if it names no type."""
        kinds = self.run.layer_types
        if self.op.layer_type in kinds:
            return [index for index, kind in enumerate(kinds) if kind == self.op.layer_type]
        return sorted({use.layer for use in self.uses})

    @property
    def uses(self) -> list[Use]:
        """The calls of the op's seam."""
        return [use for use in self.run.uses if use.seam == self.seam]

    @property
    def standin(self) -> bool:
        """Whether a labelled eager version ran in the op's place."""
        return self.op.op in self.run.standins

    @property
    def complete(self) -> list[int]:
        """The layers that launched at least what the op launches alone, forward and backward."""
        wanted = self.expected
        return [layer for layer in self.layers if any(wanted) and self.covers(layer, wanted)]

    @property
    def expected(self) -> tuple[Counter[str], Counter[str]]:
        """The kernels of one call, forward and backward, as learned by running the op alone."""
        if self.library == "cuda":
            return self.profiled(-1, "forward"), self.profiled(-1, "backward")
        learned = self.learned
        if learned is None:
            return Counter(), Counter()
        return Counter(learned.forward.launches), Counter(learned.backward.launches)

    def covers(self, layer: int, wanted: tuple[Counter[str], Counter[str]]) -> bool:
        """Tell whether one layer launched all of the wanted kernels."""
        forward, backward = self.actual(layer)
        return wanted[0] <= forward and wanted[1] <= backward

    def actual(self, layer: int) -> tuple[Counter[str], Counter[str]]:
        """The kernels that the op's seam launched in one layer, forward and backward."""
        if self.library == "cuda":
            return self.profiled(layer, "forward"), self.profiled(layer, "backward")
        return self.run.launched(layer, self.seam, "forward"), self.run.launched(layer, self.seam, "backward")

    def profiled(self, layer: int, phase: str) -> Counter[str]:
        """The kernels that the profiler saw under one label."""
        found: Counter[str] = Counter()
        for item in self.run.profile.labelled if self.run.profile else ():
            if (item.layer, item.seam, item.phase) == (layer, self.seam, phase):
                found.update(item.kernels)
        return found

    @property
    def unseen(self) -> str:
        """Why this op's kernels could not be seen here at all, or nothing."""
        if self.library != "cuda":
            return ""
        profile = self.run.profile
        if profile is None:
            return "kernels of a compiled extension are seen by a profiler on a GPU only"
        if profile.reason:
            return profile.reason
        joined = profile.joined / profile.kernels
        return "" if joined >= COMPLETE else f"only {joined:.0%} of the kernels join their launch: the trace has holes"


def ops_run(job: Job, step: Step) -> Iterator[OpRun]:
    """Yield each required op on each device whose fused step was observed to its end."""
    for device in step.devices:
        if isinstance(device.fused, Run) and device.fused.phase == "done":
            for op in seam_ops(job):
                yield OpRun(op, device, device.fused, named(op.op, step, device))


def seam_ops(job: Job) -> list[RequiredOp]:
    """Return the ops that the model's own code must enter in training."""
    return [op for op in job.needed if op.role == "seam"]


def without_ops(job: Job, step: Step, say: Say) -> Iterator[Outcome]:
    """Say why no op can be judged: the model requires none, or there is no finished step."""
    if not seam_ops(job):
        yield say.not_applicable("step", "the model requires no fused op in training")
    else:
        yield from unfinished(step, say)


def named(what: str, step: Step, device: OnDevice) -> str:
    """Return a subject: with the device where there are several."""
    return what if len(step.devices) == 1 else f"{what} on {device.device}"


def unfinished(step: Step, say: Say) -> Iterator[Outcome]:
    """Say of each device without a finished step why nothing more can be judged there.

    A step that broke is KC606's finding; one that could not run is not judged by anybody.
    """
    for device in step.devices:
        run = device.fused
        if isinstance(run, Missing):
            yield say.not_judged(named("step", step, device), run.reason)
        elif isinstance(run, Broken) or run.phase != "done":
            yield say.not_applicable(named("step", step, device), "the step did not finish (KC606)")


def stands_for(job: Job, op: RequiredOp) -> str:
    """Return how many layers of the real model the built ones stand for."""
    model = job.model
    if model is None or not op.layer_type or not model.count(op.layer_type):
        return ""
    return f" (the real model: {model.count(op.layer_type)} of {len(model.layer_types)} layers)"


def eager_signature(item: OpRun) -> Counter[str]:
    """Return the operators that only the eager reference uses, with their counts in the eager run's blocks.

    Those seen inside of the seam in the eager run, less those that the fused op uses itself and those that the block
    uses outside of the seam: learned, not listed.
    """
    eager = item.device.eager
    learned = item.learned
    if not isinstance(eager, Run) or learned is None:
        return Counter()
    inside, outside = blocks_of(eager, item.seam), Counter[str]()
    own: Counter[str] = Counter()
    for work in eager.work:
        if work.phase == "forward" and work.seam == item.seam:
            own.update(work.operations)
        elif work.phase == "forward" and work.block in inside:
            outside.update(work.operations)
    ignored = {*outside, *learned.forward.operations}
    return Counter({name: count for name, count in own.items() if name not in ignored})


def blocks_of(run: Run, seam: str) -> set[str]:
    """Return the classes of the layers' children that call a seam."""
    return {work.block for work in run.work if work.seam == seam and work.layer >= 0}


def signature_seen(item: OpRun, layer: int, signature: Counter[str]) -> Counter[str]:
    """Return which of these operators ran forward in a layer's block of the fused run, in or outside of the seam."""
    blocks = blocks_of(item.run, item.seam)
    found: Counter[str] = Counter()
    for work in item.run.work:
        mine = work.layer == layer and work.phase == "forward" and work.block in blocks
        if mine and work.seam in ("", item.seam):
            found.update({name: count for name, count in work.operations.items() if name in signature})
    return found


def limit(run: Run, tensor: Tensor, largest: float) -> float:
    """Return the largest difference that a tensor may have (root mean square)."""
    outputs, gradients = LIMITS.get(run.dtype, LIMITS["bfloat16"])
    if tensor.name.startswith("output"):
        return outputs * (tensor.eager or 0.0)
    return gradients * max(tensor.eager or 0.0, FLOOR * largest)


def comparable(run: Run, comparison: Comparison) -> list[Tensor]:
    """Return the tensors that two right runs must agree on.

    In 16 bits, rounding may send a token to another expert; after the first layer two right runs then differ.
    """
    if not run.experts or run.dtype == "float32":
        return list(comparison.tensors)
    return [tensor for tensor in comparison.tensors if tensor.name.startswith("output") and layer_of(tensor) == 0]


def layer_of(tensor: Tensor) -> int:
    """Return the layer that an output's name ends with."""
    last = tensor.name.rpartition(" ")[2]
    return int(last) if last.lstrip("-").isdigit() else -1


def excess(run: Run, comparison: Comparison) -> list[tuple[float, Tensor]]:
    """Return (difference over limit, tensor) for each tensor, the worst first; infinite where one is not finite."""
    gradients = [tensor.eager or 0.0 for tensor in comparison.tensors if not tensor.name.startswith("output")]
    largest = max(gradients, default=0.0)
    pairs = [(ratio(tensor, limit(run, tensor, largest)), tensor) for tensor in comparable(run, comparison)]
    return sorted(pairs, key=lambda pair: -pair[0])


def ratio(tensor: Tensor, allowed: float) -> float:
    """Return the difference over what is allowed: infinite where it is not finite, 0 where both are equal."""
    if tensor.error is None:
        return float("inf")
    if tensor.error == 0:
        return 0.0
    return tensor.error / allowed if allowed else float("inf")


def lost_gradients(fused: Run, eager: Run) -> list[str]:
    """Return the parameters that have no gradient, or one of exactly zero, though the eager step gives them one."""
    without = {*fused.gradients.without, *fused.gradients.zero}
    return sorted(without - {*eager.gradients.without, *eager.gradients.zero})


def run_or_reason(run: Run | Missing | Broken) -> tuple[Run | None, str]:
    """Return a finished run, or why there is none."""
    if isinstance(run, Run):
        return (run, "") if run.phase == "done" else (None, f"it raised in {run.phase}: {told(run)}")
    return None, why(run)


def told(run: Run) -> str:
    """Return what a run raised."""
    return f"{run.raised.exception}: {run.raised.message}" if run.raised else "nothing"


def most(counts: Counter[str], number: int = 4) -> str:
    """Return the most frequent names with their counts."""
    return ", ".join(f"{name} {count}" for name, count in counts.most_common(number))


def listed(names: list[str], number: int = 4) -> str:
    """Return the first few of a list, and how many more there are."""
    more = f" and {len(names) - number} more" if len(names) > number else ""
    return ", ".join(names[:number]) + more


def layer_list(layers: list[int]) -> str:
    """Return layers as text."""
    return ("layer " if len(layers) == 1 else "layers ") + ", ".join(str(layer) for layer in layers)


SMALL = frozenset(
    {
        "add", "add_", "sub", "mul", "mul_", "div", "pow", "mean", "rsqrt", "sum", "neg", "exp", "sigmoid", "silu",
        "softplus", "_to_copy", "copy_", "clone", "cat", "sqrt", "where", "masked_fill", "softmax", "_softmax",
    }
)  # fmt: skip
"""Elementwise, reducing and copying operators of ATen: neighbours of these are what a fused kernel replaces."""


def offenders(run: Run) -> list[tuple[str, int, int, Counter[str]]]:
    """Return (module class, layers, small operators in all, their counts), most first.

    Forward only, outside of seams; a class counts if it runs at least three of them in each of its layers.
    """
    by_class: dict[str, dict[int, Counter[str]]] = {}
    for work in run.work:
        if work.phase == "forward" and work.layer >= 0 and not work.seam:
            small = {name: count for name, count in work.operations.items() if name in SMALL}
            by_class.setdefault(work.module, {}).setdefault(work.layer, Counter()).update(small)
    rows = [(name, len(layers), sum(layers.values(), Counter[str]())) for name, layers in by_class.items()]
    found = [(name, layers, counts.total(), counts) for name, layers, counts in rows if counts.total() >= 3 * layers]
    return sorted(found, key=lambda row: -row[2])


def phases(work: tuple[Work, ...]) -> str:
    """Return the number of operators by phase."""
    counts: Counter[str] = Counter()
    for item in work:
        counts[item.phase] += sum(item.operations.values())
    return ", ".join(f"{phase} {count}" for phase, count in counts.items())
