"""Run the steps of the Dockerfile's final stage on this machine, without a container engine; end with the gate's code.

    python benchmarks/image_steps.py --scratch DIR [--torch "torch==2.13.0"] [--root FOLDER]

Without --root the steps' own text is run by bash, with the paths that an image would have led into DIR: /wheels,
/opt/kerncheck and the Python of the image, a virtual environment. What needs an image (apt-get, useradd) is left out.

With --root (as root) every step runs as it stands, by chroot into a root file system such as debootstrap makes: with
/usr/local/bin/python and pip in it as the base image has them, /wheels mounted for the steps that ask for it, and the
user that USER declares.

The wheels are those of the named torch, which may be a CPU build: then the gate has to say so and end with 1.
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


def inside(root: Path, scratch: Path, step: Instruction, variables: dict[str, str], user: str) -> int:
    """Run a step in a root file system, in a mount namespace of its own, as the user that is declared by then."""
    mounts = [f"mount -t proc proc {root}/proc", f"mount --rbind /dev {root}/dev"]
    if "--mount=type=bind" in step.flags:
        mounts.append(f"mkdir -p {root}/wheels && mount --bind {scratch}/wheels {root}/wheels")
    home = "/home/app" if user else "/root"
    given = {**variables, "HOME": home, "PATH": "/usr/local/bin:/usr/local/sbin:/usr/bin:/usr/sbin:/bin:/sbin"}
    spec = [f"--userspec={user}:{user}"] if user else []
    program = ["env", "-i", *(f"{name}={value}" for name, value in given.items()), "/bin/bash", "-o", "pipefail", "-c"]
    script = " && ".join([*mounts, f'cd {root} && exec chroot {" ".join(spec)} {root} "$@"'])
    workdir = f"cd {home} && {step.value}"
    print(f"$ {step.value}", flush=True)
    started = time.monotonic()
    done = subprocess.run(["unshare", "--mount", "bash", "-c", script, "bash", *program, workdir], check=False)
    print(f"exit {done.returncode} after {time.monotonic() - started:.1f} s\n", flush=True)
    return done.returncode


def all_steps(root: Path, scratch: Path, items: list[Instruction], variables: dict[str, str]) -> int:
    """Run every step of a stage in a root file system; variables and the user count from where they are declared."""
    code, user = 0, ""
    for item in items:
        if item.name == "USER":
            user = item.value
        elif item.name in ("ARG", "ENV"):
            variables = {**arguments([item]), **environment([item]), **variables}
        elif item.name == "RUN":
            code = inside(root, scratch, item, variables, user)
            if code:
                break
    return code


def python_steps(scratch: Path, text: str, variables: dict[str, str]) -> int:
    """Run the steps that need no image in a virtual environment."""
    venv.create(scratch / "python", with_pip=True)
    code = 0
    for command in steps(text, "runtime"):
        if command.split()[0] in NEEDS_AN_IMAGE:
            print(f"left out, it needs an image: {' '.join(command.split())}\n")
            continue
        code = shell(led_into(scratch, command), scratch, variables)
        if code:
            break
    return code


def gather(scratch: Path, torch: str) -> None:
    """Put the wheels where the builder stage would: kerncheck's own, and the stack around the named torch.

    causal-conv1d comes without its compiled extension: there may be no nvcc here, and none fits a CPU build of torch.
    """
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check", "--wheel-dir"]
    subprocess.run([*pip, str(scratch / "wheels" / "kerncheck"), str(ROOT)], check=True)
    stack = [*pip, str(scratch / "wheels" / "stack")]
    subprocess.run([*stack, torch], check=True)
    subprocess.run(
        [*stack, "--no-deps", "--no-build-isolation", "causal-conv1d==1.7.0"],
        env={**os.environ, "CAUSAL_CONV1D_FORCE_BUILD": "TRUE", "CAUSAL_CONV1D_SKIP_CUDA_BUILD": "TRUE"},
        check=True,
    )
    others = ("causal-conv1d", "flash-linear-attention[cuda]==0.6.0", "transformers==5.24.0")
    links = ("--find-links", str(scratch / "wheels" / "stack"), "--only-binary", "causal-conv1d")
    subprocess.run([*stack, *links, torch, *others], check=True)


def main() -> int:
    """Gather wheels where there are none, run the steps, and end with the last one's code: the gate's."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scratch", type=Path, required=True)
    parser.add_argument("--torch", default="torch==2.13.0")
    parser.add_argument("--root", type=Path)
    given = parser.parse_args()
    scratch = given.scratch.resolve()
    if not (scratch / "wheels").is_dir():
        gather(scratch, given.torch)
    text = (ROOT / "Dockerfile").read_text()
    runtime, base = stages(text)["runtime"], environment(stages(text)["base"])
    if given.root:
        return all_steps(given.root.resolve(), scratch, runtime, base)
    variables = {**arguments(runtime), **base, **environment(runtime)}
    return python_steps(scratch, text, {**variables, "TRITON_CACHE_DIR": str(scratch / ".triton" / "cache")})


if __name__ == "__main__":
    sys.exit(main())
