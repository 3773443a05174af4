"""The Dockerfile: rules that keep it honest, each proved on a broken copy; steps that need no image are run."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import sys
from fnmatch import fnmatch
from pathlib import Path

import click
import pytest

from kerncheck.cli import cli

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "Dockerfile").read_text()


def load(name):
    spec = importlib.util.spec_from_file_location(name, ROOT / "benchmarks" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


image = load("image_steps")


def bases_are_pinned(text):
    """Each base that is pulled has a tag with a version in it, by arguments that have defaults; none names a host."""
    stages = image.stages(text)
    defaults = image.arguments(stages[""])
    for name, items in stages.items():
        base = items[0].value.split()[0] if name else ""
        if not name or base in stages:
            continue
        full = re.sub(r"\$\{(\w+)\}", lambda match: defaults.get(match[1]) or "?", base)
        repository, _, tag = full.partition(":")
        if not re.search(r"\d+\.\d+", tag) or "latest" in tag or "?" in full:
            yield f"{name}: {full} is not pinned"
        if "." in repository.partition("/")[0]:
            yield f"{name}: {full} names a host"


def the_gate_is_last(text):
    """The last instruction of the last stage is the gate, in profile image, with the declared targets and model."""
    last = list(image.stages(text).values())[-1][-1]
    wanted = ("kerncheck verify", "--profile image", '--model "${MODEL}"', '--target "${target}"')
    if last.name != "RUN" or not all(words in last.value for words in wanted):
        yield "the last instruction is not the gate"
    if re.search(r"\|\||;\s*true|--fail-on|--waive|--ignore|--select", last.value):
        yield "the gate is weakened"


def the_user_is_not_root(text):
    """A numeric user other than root is declared before the cache is warmed and the gate runs."""
    items = list(image.stages(text).values())[-1]
    users = [index for index, item in enumerate(items) if item.name == "USER"]
    first = next(index for index, item in enumerate(items) if "kerncheck warm" in item.value)
    if len(users) != 1 or users[0] > first or not re.fullmatch(r"[1-9]\d*", items[users[0]].value):
        yield "no numeric user before the cache is warmed"
    cache = image.environment(items).get("TRITON_CACHE_DIR", "")
    if not cache.startswith("/home/app/") or "--create-home" not in "".join(image.steps(text, "runtime")):
        yield "Triton's cache is not in the user's own home"


def shells_see_failures(text):
    """Each stage that runs something runs it with pipefail."""
    for name, items in image.stages(text).items():
        shells = [item.value for item in items if item.name == "SHELL"]
        if any(item.name == "RUN" for item in items) and not any("pipefail" in value for value in shells):
            yield f"{name}: no pipefail"


def nothing_is_left_behind(text):
    """No lists of apt, no cache of pip; the final stage takes wheels by a mount, which leaves no layer."""
    stages = image.stages(text)
    for name, items in stages.items():
        for item in items:
            if item.name == "RUN" and "apt-get install" in item.value and "rm -rf /var/lib/apt/lists" not in item.value:
                yield f"{name}: lists of apt stay"
    if image.environment(stages["base"]).get("PIP_NO_CACHE_DIR") != "1":
        yield "pip keeps a cache"
    if any(item.name == "COPY" for item in stages["runtime"]):
        yield "wheels are copied into a layer of the final stage"


def triton_has_what_it_needs(text):
    """The final stage installs a compiler with the C library's headers, and asks for the driver."""
    runtime = image.stages(text)["runtime"]
    installs = " ".join(item.value for item in runtime if "apt-get install" in item.value)
    if not {"gcc", "libc6-dev"} <= set(installs.split()):
        yield "no whole compiler in the final stage"
    if set(image.environment(runtime).get("NVIDIA_DRIVER_CAPABILITIES", "").split(",")) != {"compute", "utility"}:
        yield "the driver's libraries are not asked for"


def kernels_are_built_for_the_pinned_torch(text):
    """Pins come first, then torch, then the build without isolation; the final stage downloads nothing."""
    steps = image.steps(text, "builder")
    words = ("kerncheck pins", "install --no-index --find-links /wheels/stack torch", "causal-conv1d")
    order = [next((index for index, step in enumerate(steps) if item in step), -1) for item in words]
    if -1 in order or order != sorted(order):
        yield "not in the order pins, torch, causal-conv1d"
    build = next((step for step in steps if "causal-conv1d" in step), "")
    for option in ("--no-build-isolation", "--constraint /wheels/constraints.txt", "CAUSAL_CONV1D_FORCE_BUILD=TRUE"):
        if option not in build:
            yield f"causal-conv1d is built without {option}"
    gathered = next((step for step in reversed(steps) if "pip wheel" in step), "")
    installs = [step for step in image.steps(text, "runtime") if "pip install" in step]
    wanted = set(re.findall(r"torch|causal-conv1d|flash-linear-attention|transformers", installs[0].split("&&")[0]))
    missing = {name for name in wanted if f" {name}" not in gathered.replace("'", " ")} - {"torch"}
    if missing or "--no-deps" in gathered or "--only-binary causal-conv1d" not in gathered:
        yield f"what {sorted(missing)} need at run time is not gathered, or causal-conv1d may be another one"
    if any("--no-index" not in part for step in installs for part in step.split("&&") if "pip install" in part):
        yield "the final stage downloads packages"


def nothing_names_a_host(text):
    """No address of a registry or index stands in the file."""
    if re.search(r"https?://|\w+\.(org|io|com)\b", text):
        yield "an address stands in the file"


RULES = (
    bases_are_pinned,
    the_gate_is_last,
    the_user_is_not_root,
    shells_see_failures,
    nothing_is_left_behind,
    triton_has_what_it_needs,
    kernels_are_built_for_the_pinned_torch,
    nothing_names_a_host,
)
BROKEN = [
    (bases_are_pinned, "ARG PYTHON=3.12\n", "ARG PYTHON=latest\n"),
    (bases_are_pinned, "ARG CUDA=13.0.2\n", "ARG CUDA\n"),
    (bases_are_pinned, "FROM nvidia/cuda:", "FROM registry.example/nvidia/cuda:"),
    (the_gate_is_last, "--profile image", "--profile node"),
    (the_user_is_not_root, "USER 10001", "USER root"),
    (the_user_is_not_root, "USER 10001", "USER 0"),
    (the_user_is_not_root, "TRITON_CACHE_DIR=/home/app", "TRITON_CACHE_DIR=/root"),
    (shells_see_failures, 'AS runtime\nSHELL ["/bin/bash", "-o", "pipefail", "-c"]\n', "AS runtime\n"),
    (nothing_is_left_behind, " gcc libc6-dev \\\n && rm -rf /var/lib/apt/lists/*", " gcc libc6-dev"),
    (nothing_is_left_behind, "PIP_NO_CACHE_DIR=1", "PIP_NO_CACHE_DIR=0"),
    (triton_has_what_it_needs, "gcc libc6-dev", "gcc"),
    (triton_has_what_it_needs, "=compute,utility", "=utility"),
    (kernels_are_built_for_the_pinned_torch, " --no-build-isolation", ""),
    (kernels_are_built_for_the_pinned_torch, "CAUSAL_CONV1D_FORCE_BUILD=TRUE ", ""),
    (kernels_are_built_for_the_pinned_torch, "pip install --no-index --find-links /wheels/stack torch causal",
     "pip install torch causal"),
    (nothing_names_a_host, 'TORCH_INDEX=""', "TORCH_INDEX=https://download.example.org/cu126"),
]  # fmt: skip


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_the_dockerfile_keeps_the_rule(rule):
    assert list(rule(TEXT)) == []


@pytest.mark.parametrize(("rule", "old", "new"), BROKEN)
def test_a_broken_copy_breaks_the_rule(rule, old, new):
    assert TEXT.count(old) >= 1
    assert list(rule(TEXT.replace(old, new, 1))) != []


@pytest.mark.parametrize("more", ["RUN pip install something", "COPY x y", "CMD kerncheck"])
def test_nothing_may_follow_the_gate(more):
    assert list(the_gate_is_last(f"{TEXT}\n{more}\n")) != []


@pytest.mark.parametrize("more", [" || true", " --waive KC102=x", " --ignore KC1", " --fail-on warning"])
def test_the_gate_may_not_be_weakened(more):
    assert list(the_gate_is_last(TEXT.rstrip("\n") + more)) != []


@pytest.mark.parametrize("step", [*image.steps(TEXT, "builder"), *image.steps(TEXT, "runtime")])
def test_each_step_is_a_shell_script(step):
    done = subprocess.run(["/bin/bash", "-n", "-c", step], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def used(step):
    """Yield (command, its options) for each kerncheck command in a step's text."""
    for part in re.split(r"&&|;", step):
        match = re.search(r"kerncheck (\w+) --", part)
        if match:
            yield match[1], re.findall(r"(?:^|\s|:\+)(--[a-z-]+)", part)


def test_the_commands_of_the_steps_exist_with_their_options():
    steps = [*image.steps(TEXT, "builder"), *image.steps(TEXT, "runtime")]
    found = {command: options for step in steps for command, options in used(step)}
    assert set(found) == {"pins", "warm", "verify"}
    for command, options in found.items():
        known = {name for item in cli.commands[command].params if isinstance(item, click.Option) for name in item.opts}
        assert set(options) <= known, command
    loops = [word for step in steps for word in re.findall(r'set -- "\$@" (--\w+)', step)]
    assert loops == ["--gpu", "--target", "--target"]


def allowed(path):
    """Tell whether .dockerignore lets a file into the build: the last pattern that matches decides."""
    answer = True
    for line in (ROOT / ".dockerignore").read_text().splitlines():
        pattern = line.strip()
        if not pattern or pattern.startswith("#"):
            continue
        plain = pattern.removeprefix("!")
        parents = [str(item) for item in (Path(path), *Path(path).parents) if str(item) != "."]
        if any(fnmatch(item, plain) or fnmatch(item, plain.removeprefix("**/")) for item in parents):
            answer = pattern.startswith("!")
    return answer


def test_what_is_copied_is_let_in_and_nothing_else():
    copied = [
        item.value.split()[:-1] for item in image.stages(TEXT)["builder"] if item.name == "COPY" and not item.flags
    ]
    for name in (name for names in copied for name in names):
        assert (ROOT / name).exists()
        assert allowed(name)
    assert allowed("src/kerncheck/cli.py")
    assert allowed("matrices/kernels/fla.toml")
    refused = (".git/config", "tests/test_cli.py", "docs/checks.md", ".nox/tests/bin/python", "secret.env")
    assert [name for name in refused if allowed(name)] == []


# The steps themselves.


@pytest.fixture
def scratch(tmp_path):
    """Make the folders that an image would have, with kerncheck's command and a Python as links."""
    for place in ("kerncheck/bin", "python/bin"):
        (tmp_path / place).mkdir(parents=True)
        program = tmp_path / place / "kerncheck"
        program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m kerncheck "$@"\n')
        program.chmod(0o755)
    (tmp_path / "python" / "bin" / "python").symlink_to(sys.executable)
    (tmp_path / "wheels").mkdir()
    return tmp_path


def defaults(stage, **more):
    """Return the arguments of a stage as the environment of its steps."""
    return {**image.arguments(image.stages(TEXT)[stage]), **more}


def test_the_step_that_pins_writes_constraints_for_all_targets(scratch):
    step = next(step for step in image.steps(TEXT, "builder") if "kerncheck pins" in step)
    variables = defaults("builder", TARGETS="h200 a100 rtx4090", DRIVER="580")
    assert image.shell(image.led_into(scratch, step), scratch, variables) == 0
    written = (scratch / "wheels" / "constraints.txt").read_text()
    assert "H200 (9.0), A100 (8.0), GeForce RTX 4090 (8.9)" in written
    assert "torch==2.14.1" in written


def test_the_step_that_pins_ends_the_build_where_nothing_goes(scratch):
    step = next(step for step in image.steps(TEXT, "builder") if "kerncheck pins" in step)
    code = image.shell(image.led_into(scratch, step), scratch, defaults("builder", TORCH="2.11"))
    assert code == 1
    assert not (scratch / "wheels" / "constraints.txt").exists()


@pytest.mark.parametrize("targets", ["h200", "h200 a100"])
def test_the_gate_and_the_warm_step_are_commands_that_kerncheck_takes(scratch, targets):
    variables = defaults("runtime", TARGETS=targets, DRIVER="580")
    gate = image.led_into(scratch, image.steps(TEXT, "runtime")[-1])
    assert image.shell(f"{gate} --dry-run", scratch, variables) == 0


def test_a_wrong_target_ends_the_gate(scratch):
    gate = image.led_into(scratch, image.steps(TEXT, "runtime")[-1])
    assert image.shell(gate, scratch, defaults("runtime", TARGETS="h2000")) == 2


@pytest.mark.skipif(shutil.which("hadolint") is None, reason="hadolint is installed by nox -s lint")
def test_hadolint_has_nothing_to_say():
    done = subprocess.run(["hadolint", str(ROOT / "Dockerfile")], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")
