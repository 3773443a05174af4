"""The sessions: each makes its own environment, apart from ``gpu``, which judges the one that it is started in."""

from __future__ import annotations

import os

import nox

nox.needs_version = ">=2024.10"
nox.options.default_venv_backend = "virtualenv"
nox.options.sessions = ["lint", "types", "tests"]

# What the emulated device is tested with. torch 2.13.0 is the newest release whose CPU build pip finds without an
# extra index; KERNCHECK_TORCH names another requirement where that is not so.
TORCH = os.environ.get("KERNCHECK_TORCH", "torch==2.13.0")
UNDER_TEST = (TORCH, "numpy")
MODELS = ("triton==3.9.0", "flash-linear-attention==0.6.0", "transformers==5.24.0")


def install_under_test(session: nox.Session) -> None:
    """Install torch first and alone: a later requirement must find it there, not pull another build."""
    session.install(*UNDER_TEST)
    session.install(*MODELS)


@nox.session
def verify(session: nox.Session) -> None:
    """Run the main job on the emulated device and show its verdict (arguments after -- are passed on)."""
    install_under_test(session)
    session.install(".")
    session.run("kerncheck", "verify", "--model", "qwen", "--device", "emulate", *session.posargs)


@nox.session
def tests(session: nox.Session) -> None:
    """Run all tests that need no GPU, two at a time."""
    install_under_test(session)
    session.install(".", *nox.project.dependency_groups(nox.project.load_toml("pyproject.toml"), "test"))
    session.run("python", "-m", "pytest", "-n", "2", "--durations=25", *session.posargs)


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
    session.install(".", "nox", *nox.project.dependency_groups(nox.project.load_toml("pyproject.toml"), "types"))
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
