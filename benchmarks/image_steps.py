"""Run the Python steps of the Dockerfile's final stage on this machine, without a container engine.

    python benchmarks/image_steps.py --scratch DIR [--torch "torch==2.13.0"]

The steps' own text is run by bash, with the paths that an image would have led into DIR: /wheels, /opt/kerncheck and
the Python of the image, a virtual environment. What needs an image (apt-get, useradd) is listed and left out. The
wheels are those of the named torch, which may be a CPU build: then the gate has to say so and end with 1.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import time
import venv
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FLAG = re.compile(r"^(--\w[\w-]*(=\S+)?\s+)+")
NEEDS_AN_IMAGE = ("apt-get", "useradd")


@dataclass(frozen=True)
class Instruction:
    """One instruction. ``flags`` are those of RUN and COPY, such as ``--mount=...``."""

    name: str
    value: str
    flags: str = ""
    line: int = 0


def instructions(text: str) -> list[Instruction]:
    """Return the instructions of a Dockerfile without comments, with continued lines joined by blanks."""
    found, kept, start = [], [], 0
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith("#") or (not line.strip() and not kept):
            continue
        start = start if kept else number
        kept.append(line.removesuffix("\\"))
        if not line.endswith("\\"):
            name, _, value = " ".join(kept).strip().partition(" ")
            found.append(make(name, value.strip(), start))
            kept = []
    return found


def make(name: str, value: str, line: int) -> Instruction:
    """Return an instruction with its flags taken off."""
    flags = FLAG.match(value) if name in ("RUN", "COPY") else None
    return Instruction(name, value[flags.end() :] if flags else value, flags.group().strip() if flags else "", line)


def stages(text: str) -> dict[str, list[Instruction]]:
    """Return the instructions of each stage by its name; what stands before the first is under an empty name."""
    found: dict[str, list[Instruction]] = {"": []}
    name = ""
    for item in instructions(text):
        if item.name == "FROM":
            name = item.value.split()[-1]
            found[name] = []
        found[name].append(item)
    return found


def arguments(items: list[Instruction]) -> dict[str, str]:
    """Return the default of each ARG."""
    pairs = (item.value.partition("=") for item in items if item.name == "ARG")
    return {name: value.strip('"') for name, _, value in pairs}


def environment(items: list[Instruction]) -> dict[str, str]:
    """Return what ENV sets."""
    pairs = (pair.partition("=") for item in items if item.name == "ENV" for pair in item.value.split())
    return {name: value for name, _, value in pairs}


def steps(text: str, stage: str) -> list[str]:
    """Return the shell text of each RUN of a stage."""
    return [item.value for item in stages(text)[stage] if item.name == "RUN"]


def led_into(scratch: Path, command: str) -> str:
    """Return a step's text with the paths of an image replaced by those in a scratch folder."""
    python = scratch / "python" / "bin"
    places = {"/usr/local/bin/": f"{python}/", "/opt/kerncheck": f"{scratch}/kerncheck", "/wheels": f"{scratch}/wheels"}
    for place, other in places.items():
        command = re.sub(rf"(?<![\w.]){re.escape(place)}", other, command)
    return command


def shell(command: str, scratch: Path, variables: dict[str, str]) -> int:
    """Run a step's text as the Dockerfile's shell would, and tell how long it took."""
    path = os.pathsep.join((str(scratch / "python" / "bin"), os.environ["PATH"]))
    started = time.monotonic()
    print(f"$ {command}", flush=True)
    done = subprocess.run(
        ["/bin/bash", "-o", "pipefail", "-c", command],
        env={**os.environ, **variables, "PATH": path, "HOME": str(scratch), "PYTHONPATH": ""},
        cwd=scratch,
        check=False,
    )
    print(f"exit {done.returncode} after {time.monotonic() - started:.1f} s\n", flush=True)
    return done.returncode


def gather(scratch: Path, torch: str) -> None:
    """Put the wheels where the builder stage would: kerncheck's own, and the stack around the named torch."""
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check", "--wheel-dir"]
    subprocess.run([*pip, str(scratch / "wheels" / "kerncheck"), str(ROOT)], check=True)
    stack = [*pip, str(scratch / "wheels" / "stack")]
    subprocess.run([*stack, torch, "triton", "flash-linear-attention[cuda]==0.6.0", "transformers==5.24.0"], check=True)
    subprocess.run(
        [*stack, "--no-deps", "--no-build-isolation", "causal-conv1d==1.7.0"],
        env={**os.environ, "CAUSAL_CONV1D_SKIP_CUDA_BUILD": "TRUE"},
        check=True,
    )


def main() -> int:
    """Gather wheels, run the steps, and end with the gate's own exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scratch", type=Path, required=True)
    parser.add_argument("--torch", default="torch==2.13.0")
    given = parser.parse_args()
    scratch = given.scratch.resolve()
    (scratch / "wheels").mkdir(parents=True, exist_ok=True)
    venv.create(scratch / "python", with_pip=True)
    gather(scratch, given.torch)
    text = (ROOT / "Dockerfile").read_text()
    runtime = stages(text)["runtime"]
    variables = {**arguments(runtime), **environment(stages(text)["base"]), **environment(runtime)}
    variables["TRITON_CACHE_DIR"] = str(scratch / ".triton" / "cache")
    code = 0
    for command in steps(text, "runtime"):
        if command.split()[0] in NEEDS_AN_IMAGE:
            print(f"left out, it needs an image: {' '.join(command.split())}\n")
            continue
        code = shell(led_into(scratch, command), scratch, variables)
        if code:
            break
    return code


if __name__ == "__main__":
    sys.exit(main())
