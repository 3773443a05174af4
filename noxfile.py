"""The sessions: each makes its own environment, apart from ``gpu``, which judges the one that it is started in."""

from __future__ import annotations

import os
import platform
import sys
import time
from pathlib import Path

import nox

sys.path.insert(0, str(Path(__file__).parent / "src"))  # nox's own environment need not have kerncheck

from kerncheck import matrix_rows
from kerncheck._version import __version__

nox.needs_version = ">=2024.10"
nox.options.default_venv_backend = "virtualenv"
nox.options.sessions = ["lint", "types", "tests"]
nox.options.error_on_missing_interpreters = True  # a row that was not run must not look like one that passed

# What the emulated device is tested with. torch 2.13.0 is the newest release whose CPU build pip finds without an
# extra index; KERNCHECK_TORCH names another requirement where that is not so.
TORCH = os.environ.get("KERNCHECK_TORCH", "torch==2.13.0")
UNDER_TEST = (TORCH, "numpy")
LIGER = "liger-kernel==0.8.5"  # in the tests only: no model profile requires it
IN_PARALLEL = ("-n", "3", "--dist", "worksteal")
COMPILE = "import compileall, sysconfig as s; compileall.compile_dir(s.get_path('purelib'), quiet=2, workers=0)"
MODELS = ("triton==3.9.0", "flash-linear-attention==0.6.0", "transformers==5.24.0")


# The rows of the matrix: ours, or those of the file that KERNCHECK_MATRIX names.
ROWS = matrix_rows.load(Path(os.environ.get("KERNCHECK_MATRIX", Path(__file__).parent / "matrices" / "tested.toml")))
RESULTS: list[matrix_rows.Result] = []


def install_under_test(session: nox.Session) -> None:
    """Install torch first and alone: a later requirement must find it there, not pull another build.

    pip compiles on one core, file by file; all cores together do it in a third less time (74 s became 50 on two).
    """
    session.install("--no-compile", *UNDER_TEST)
    session.install("--no-compile", *MODELS)
    session.run("python", "-c", COMPILE)


@nox.session
def verify(session: nox.Session) -> None:
    """Run the main job on the emulated device and show its verdict (arguments after -- are passed on)."""
    install_under_test(session)
    session.install(".")
    session.run("kerncheck", "verify", "--model", "qwen", "--device", "emulate", *session.posargs)


@nox.session
@nox.parametrize("python,row", [nox.param(row.python, row, id=row.id) for row in ROWS])
def matrix(session: nox.Session, row: matrix_rows.Row) -> None:
    """Judge one declared combination in an environment of its own; a table of all rows ends the run."""
    session.notify("matrix-table")
    if row.needs_gpu and not matrix_rows.gpu_here():
        RESULTS.append(matrix_rows.not_run(row))
        session.skip("this row needs an NVIDIA GPU")
    started = time.monotonic()
    try:
        for requirements in matrix_rows.installs(row, os.environ.get("KERNCHECK_TORCH", "")):
            session.install(*requirements)
        session.install(str(Path(__file__).parent))
    except nox.command.CommandFailed as error:
        RESULTS.append(matrix_rows.not_built(row, str(error.reason), time.monotonic() - started))
    else:
        RESULTS.append(judged(session, row))
    keep_table(session)  # after each row: a run that is interrupted leaves what it has
    if RESULTS[-1].verdict == "red":
        session.error(f"declared {row.expected}; found {RESULTS[-1].found}")
    session.log(f"{RESULTS[-1].verdict}: declared {row.expected}; found {RESULTS[-1].found}")


def judged(session: nox.Session, row: matrix_rows.Row) -> matrix_rows.Result:
    """Run kerncheck verify for each model of a row. What it answers is in its report; no exit code ends the session."""
    started, answers = time.monotonic(), {}
    for number, model in enumerate(row.models):
        report = Path(session.create_tmp()) / f"report-{number}.json"
        report.unlink(missing_ok=True)
        session.run(*matrix_rows.verify(row, model, report), env=row.variables, success_codes=range(256))
        answers[model] = matrix_rows.seen(report)
    return matrix_rows.judge(row, answers, time.monotonic() - started)


@nox.session(name="matrix-table", venv_backend="none", default=False)
def matrix_table(session: nox.Session) -> None:
    """Print the table of the rows that this run judged; --table FILE also writes it."""
    print(f"\n{matrix_rows.table(RESULTS)}\n")  # noqa: T201 - the table is what this session is for
    keep_table(session)


def keep_table(session: nox.Session) -> None:
    """Write the table to the file that --table names, if any."""
    if "--table" in session.posargs:
        file = Path(session.posargs[session.posargs.index("--table") + 1])
        file.write_text(f"{matrix_head()}\n{matrix_rows.table(RESULTS)}\n", encoding="utf-8")


def matrix_head() -> str:
    """Return what stands above a table that is kept."""
    machine = f"{platform.system()} {platform.machine()}, {os.cpu_count()} processors"
    made = f"Made by `nox -s matrix -- --table FILE` on {time.strftime('%Y-%m-%d')} with kerncheck {__version__}"
    return (
        f"# The matrix\n\n{made} ({machine}).\n"
        "Each row is judged by `kerncheck verify` in an environment of its own; `s` is the seconds of that alone.\n"
        "Rows are declared in `matrices/tested.toml`; how to declare others: `docs/matrix-rows.md`.\n"
    )


@nox.session
def tests(session: nox.Session) -> None:
    """Run the tests that need no GPU, apart from slow ones: ``-- -m "slow or not slow"`` runs those too, as CI does.

    Three at a time keep two cores busy: many wait for children.
    """
    install_under_test(session)
    session.install(LIGER)
    session.install(".", *nox.project.dependency_groups(nox.project.load_toml("pyproject.toml"), "test"))
    session.run("python", "-m", "pytest", *IN_PARALLEL, "--durations=25", "-m", "not slow", *session.posargs)


@nox.session
def lint(session: nox.Session) -> None:
    """Check style and formatting, of the Dockerfile too."""
    session.install(*nox.project.dependency_groups(nox.project.load_toml("pyproject.toml"), "lint"))
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")
    session.run("hadolint", "Dockerfile")


@nox.session
def types(session: nox.Session) -> None:
    """Check types, strictly. torch and friends are not installed: the parent must not need them."""
    session.install(
        ".[report]", "nox", *nox.project.dependency_groups(nox.project.load_toml("pyproject.toml"), "types")
    )
    session.run("mypy")


@nox.session
def power(session: nox.Session) -> None:
    """Show that the default numeric cells catch the faults of docs/how-it-judges.md, and no healthy kernel."""
    install_under_test(session)
    session.install(".")
    session.run("python", "benchmarks/power.py", *session.posargs)


@nox.session(venv_backend="none")
def gpu(session: nox.Session) -> None:
    """Run what needs a GPU in the environment that nox was started in (nothing is installed)."""
    session.run("python", "-m", "pytest", "tests/gpu", "-m", "gpu", "-p", "no:cacheprovider", *session.posargs)


@nox.session(name="real-cuda", python="3.11")
def real_cuda(session: nox.Session) -> None:
    """Judge a real CUDA build of torch and a really compiled extension; by hand (12 GB, 15 to 35 minutes, no GPU)."""
    session.install(".")
    folder = session.posargs[0] if session.posargs else f"{session.create_tmp()}/real-cuda"
    session.run("python", "benchmarks/real_cuda.py", "--folder", folder)
