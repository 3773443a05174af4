"""The command line: parse, call, echo, exit. Everything slow to import is imported by the command that needs it."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import click

from kerncheck._version import __version__
from kerncheck.errors import KerncheckError

Command = TypeVar("Command", bound=Callable[..., Any])

USAGE, INTERRUPTED = 2, 130
OWN_PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"


def run(arguments: list[str]) -> int:
    """Run one command and return its exit code. Errors that a user can mend are one line on stderr, exit 2."""
    try:
        with ended_by_sigterm():
            code = cli.main(arguments, prog_name="kerncheck", standalone_mode=False)
            sys.stdout.flush()
            return code if isinstance(code, int) else 0
    except click.ClickException as error:
        error.show()
        return error.exit_code if isinstance(error, click.UsageError) else USAGE
    except KerncheckError as error:
        hint = f" ({error.hint})" if error.hint else ""
        click.echo(f"kerncheck: {error.message}{hint}", err=True)
        return USAGE
    except (click.Abort, KeyboardInterrupt):
        click.echo("kerncheck: interrupted, all probes ended: exit 130", err=True)
        return INTERRUPTED


@contextlib.contextmanager
def ended_by_sigterm() -> Iterator[None]:
    """Treat SIGTERM (a CI runner's or scheduler's end) like Ctrl-C, so that no child outlives us."""

    def interrupt(_number: int, _frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def options(*decorators: Callable[[Command], Command]) -> Callable[[Command], Command]:
    """Apply several option decorators, in the order in which help shows them."""

    def apply(command: Command) -> Command:
        for decorator in reversed(decorators):
            command = decorator(command)
        return command

    return apply


MODEL = click.option("--model", metavar="NAME|DIR|config.json|org/name", help="The model whose kernels are required.")
PROFILE = click.option(
    "--profile",
    type=click.Choice(["node", "image", "ci"]),
    help="node: a GPU must be there (default). image: no GPU. ci: emulated.",
)
DEVICE = click.option(
    "--device",
    type=click.Choice(["auto", "cuda", "emulate", "none"]),
    default="auto",
    show_default=True,
    help="emulate runs the real Triton kernels on the CPU and implies --profile ci.",
)
TARGET = click.option(
    "--target", multiple=True, metavar="sm_90|9.0|h200", help="A GPU that the image is meant for (repeatable)."
)
DRIVER = click.option("--driver", metavar="580|580.65.06", help="The NVIDIA driver that the image's nodes have.")
PACKING = click.option(
    "--packing",
    type=click.Choice(["position_ids", "cu_seq_lens", "seq_idx", "both", "both_mrope3", "both_mrope4", "both_mask"]),
    help="What the job's collator sends beside input_ids to keep packed examples apart.",
)
TRAINING = click.option(
    "--training/--inference", default=True, show_default=True, help="Which ops are required, and whether gradients are."
)
QUICK = click.option("--quick", is_flag=True, help="Fewer cases: seconds instead of a minute.")
SELECTION = options(
    click.option("--select", multiple=True, metavar="CODE", help="Only checks with this code or prefix (repeatable)."),
    click.option("--ignore", multiple=True, metavar="CODE", help="No checks with this code or prefix (repeatable)."),
    click.option("--waive", multiple=True, metavar="CODE[:SUBJECT]=REASON", help="Turn a finding into a visible note."),
    click.option(
        "--fail-on", type=click.Choice(["error", "warning"]), default="error", show_default=True, help="Least severity."
    ),
)
PYTHON = click.option(
    "--python", metavar="PATH", help="Judge this interpreter's environment (default: kerncheck's own)."
)
TIMEOUT = click.option("--timeout", type=click.FloatRange(min=1), help="Seconds that one case of a probe may take.")
OUTPUT = options(
    click.option("--format", "form", type=click.Choice(["text", "json"]), default="text", show_default=True),
    click.option("--output", type=click.Path(dir_okay=False), help="Write the report to this file, not to stdout."),
    click.option("-v", "--verbose", count=True, help="Also list what passed and what did not apply."),
)


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, prog_name="kerncheck")
def cli() -> None:
    """Prove that the fused kernels a model needs are installed, right and used.

    Exit codes: 0 passed, 1 findings, 2 bad usage or data, 3 inconclusive, 4 a bug in kerncheck, 130 interrupted.
    """


@cli.command()
@options(MODEL, PROFILE, DEVICE, TARGET, DRIVER, PACKING, TRAINING, QUICK, SELECTION, PYTHON, TIMEOUT, OUTPUT)
@click.option("--dry-run", is_flag=True, help="Print what would be run and judged; run no probe but the static ones.")
def verify(**given: Any) -> int:  # noqa: ANN401 - click hands over every option by name
    """Observe this machine, judge it, say what is wrong; exit nonzero unless everything required passed."""
    from kerncheck.commands import verify as command

    return command(given)


@cli.command()
@options(MODEL, PROFILE, DEVICE, TARGET, DRIVER, PACKING, TRAINING, QUICK, PYTHON, TIMEOUT)
@click.option("--output", type=click.Path(dir_okay=False), help="Write the snapshot to this file, not to stdout.")
def snapshot(**given: Any) -> int:  # noqa: ANN401
    """Observe only: print everything seen as JSON, for `kerncheck judge` here or elsewhere."""
    from kerncheck.commands import snapshot as command

    return command(given)


@cli.command()
@click.argument("file", type=click.Path(dir_okay=False))
@options(MODEL, PROFILE, TARGET, DRIVER, PACKING, TRAINING, SELECTION, OUTPUT)
def judge(**given: Any) -> int:  # noqa: ANN401
    """Judge a snapshot FILE of any machine, with today's rules; torch is not needed. `-` reads stdin."""
    from kerncheck.commands import judge as command

    return command(given)


@cli.command()
@click.option("--model", metavar="NAME|DIR|config.json|org/name", required=True, help="The model to pin packages for.")
@click.option("--gpu", multiple=True, required=True, metavar="h200|sm_90|9.0", help="A GPU that runs it (repeatable).")
@click.option("--python", default=OWN_PYTHON, show_default=True, metavar="3.12", help="The Python that runs it.")
@click.option("--torch", metavar="2.14|2.14.1|2.14.1+cu126", help="Only releases of torch that begin so.")
@click.option("--driver", metavar="580|580.65.06", help="The NVIDIA driver of the nodes.")
@click.option("--machine", type=click.Choice(["x86_64", "aarch64"]), help="Default: the GPU's own, or x86_64.")
@click.option("--prebuilt", is_flag=True, help="Only combinations whose compiled packages have published wheels.")
@click.option("--output", type=click.Path(dir_okay=False), help="Write the constraints to this file, not to stdout.")
def pins(**given: Any) -> int:  # noqa: ANN401
    """Print the newest versions that the matrix knows to go together, as a constraints file for pip.

    Exit codes: 0 found; 1 no sound combination, the rows that forbid it are on stderr; 2 bad usage or data.
    """
    from kerncheck.commands import pins as command

    return command(given)


@cli.command()
@click.argument("code")
def explain(code: str) -> int:
    """Print a check's page: what it checks, why it matters, an example, how to fix."""
    from kerncheck.commands import explain as command

    return command(code)


@cli.command()
@options(MODEL, TARGET, PYTHON, TIMEOUT)
@click.option("--cache-dir", metavar="DIR", help="The folder to fill (default: where Triton looks here).")
@click.option("--tokens", type=click.IntRange(min=1), multiple=True, default=[4096], help="Tokens of one micro-batch.")
@click.option("--batch", type=click.IntRange(min=1), multiple=True, default=[1], help="Sequences of one micro-batch.")
@click.option("--tensor-parallel", type=click.IntRange(min=1), multiple=True, default=[1, 2, 4, 8], help="Group sizes.")
@click.option("--dtype", type=click.Choice(["bfloat16", "float16"]), multiple=True, default=["bfloat16"])
@click.option("--node-sets", metavar="VARIABLE", multiple=True, help="The nodes set this variable as it is set here.")
@click.option("--keep-ir", is_flag=True, help="Keep intermediate code too: five times the size, for those who read it.")
def warm(**given: Any) -> int:  # noqa: ANN401
    """Fill Triton's cache for GPUs that are not there: removes compilation from the first step, not autotuning."""
    from kerncheck.warm import command

    return command(given)


@cli.command()
@click.option(
    "--model", default="qwen", show_default=True, metavar="NAME|DIR|config.json", help="Whose kernels to break."
)
@click.option(
    "--device", type=click.Choice(["emulate"]), default="emulate", show_default=True, help="No GPU is needed."
)
@options(PYTHON)
@click.option("--format", "form", type=click.Choice(["text", "json"]), default="text", show_default=True)
def selftest(**given: Any) -> int:  # noqa: ANN401
    """Break kernels on purpose, in children only, and show that the gate goes red each time.

    Exit codes: 0 each sabotage was found, and nothing without it; 1 one was not found; 2 bad usage; 3 one could not be
    run.
    """
    from kerncheck.selftest import command

    return command(given)


class Traces(click.Group):
    """A group whose first argument may be a file instead of a command: then that file is judged."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Put the command of a single trace in front, unless a command or a call for help is there."""
        known = args and (args[0] in self.commands or args[0] in ("-h", "--help"))
        return super().parse_args(ctx, args if known or not args else ["file", *args])


@cli.group("trace", cls=Traces)
def traces() -> None:
    """Judge a profiler trace: `kerncheck trace FILE` is short for `kerncheck trace file FILE`.

    Says what limits the steps, and with --model whether the required fused kernels ran. Exit codes as in verify.
    """


RUN_WITH = click.option(
    "--with", "versions", multiple=True, metavar="NAME==VERSION", help="A package that the traced run had (repeatable)."
)
RATIO = click.option(
    "--max-cpu-gpu-ratio", type=click.FloatRange(min=0, min_open=True), help="Most CPU enqueue time over GPU time."
)


@traces.command("file")
@click.argument("file", type=click.Path(dir_okay=False))
@options(MODEL, TRAINING, RUN_WITH, RATIO, SELECTION, OUTPUT)
def trace_file(**given: Any) -> int:  # noqa: ANN401
    """Judge one trace FILE of torch.profiler (Chrome trace, plain or gzip)."""
    from kerncheck.trace_commands import trace as command

    return command(given)


@traces.command("compare")
@click.argument("before", type=click.Path(dir_okay=False))
@click.argument("after", type=click.Path(dir_okay=False))
@options(MODEL, TRAINING, RUN_WITH, RATIO)
@click.option("--min-op-reduction", metavar="5x", help="How many times fewer operations a step of AFTER must have.")
@click.option(
    "--max-step-time-ratio", type=click.FloatRange(min=0, min_open=True), help="Most time of a step, AFTER over BEFORE."
)
@options(SELECTION, OUTPUT)
def trace_compare(**given: Any) -> int:  # noqa: ANN401
    """Judge the trace AFTER, and what changed since BEFORE."""
    from kerncheck.trace_commands import compare as command

    return command(given)


@traces.command("record")
@click.option(
    "--model", required=True, metavar="NAME|DIR|config.json|org/name", help="The model whose steps are recorded."
)
@click.option("--output", required=True, type=click.Path(dir_okay=False), help="Write the trace here: .json, .json.gz.")
@click.option("--force", is_flag=True, help="Overwrite the trace that is there already.")
@click.option(
    "--device",
    type=click.Choice(["auto", "cuda", "emulate"]),
    default="auto",
    show_default=True,
    help="emulate records a trace of the CPU alone, which is inconclusive.",
)
@click.option("--steps", type=click.IntRange(min=1, max=100), default=3, show_default=True, help="Steps to record.")
@click.option("--warmup", type=click.IntRange(min=1, max=100), default=2, show_default=True, help="Steps before them.")
@click.option("--tokens", type=click.IntRange(min=2), help="Tokens of a step (default: 2048, emulated 66).")
@options(PYTHON, TIMEOUT, SELECTION)
@click.option("--format", "form", type=click.Choice(["text", "json"]), default="text", show_default=True)
@click.option("-v", "--verbose", count=True, help="Also list what passed and what did not apply.")
def trace_record(**given: Any) -> int:  # noqa: ANN401
    """Record training steps of a model with random weights, and judge the trace. Needs a GPU."""
    from kerncheck.trace_record import record as command

    return command({**given, "training": True})


@cli.command()
@click.argument("file", type=click.Path(dir_okay=False))
@MODEL
@click.option("--html", type=click.Path(dir_okay=False), metavar="OUT", help="Write one self-contained page to OUT.")
@click.option("--markdown", is_flag=True, help="Print Markdown, for a comment on a pull request.")
def report(**given: Any) -> int:  # noqa: ANN401
    """Make a page of FILE, a report of `--format json` or a profiler trace. Exits 0: the verdict is on the page."""
    from kerncheck.report_command import report as command

    return command(given)


@cli.command("list")
@click.argument("what", type=click.Choice(["checks", "kernels", "models", "matrix"]))
def list_(what: str) -> int:
    """List the checks, kernels, models or matrix rows that this version knows."""
    from kerncheck.listing import listing

    click.echo(listing(what), nl=False)
    return os.EX_OK
