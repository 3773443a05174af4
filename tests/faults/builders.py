"""Builds broken environments for the tests: real shared objects made by gcc, and package trees around them.

No Python headers are needed: the few names of the C API are declared by hand.
"""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from kerncheck.catalog import load
from kerncheck.checks.registry import Case, all_checks
from kerncheck.judge import judge
from kerncheck.model.base import Missing
from kerncheck.model.job import Job, ModelRequest, RequiredOp
from kerncheck.model.snapshot import Snapshot
from kerncheck.report import Report
from kerncheck.stages import imports
from kerncheck.stages.common import Ask
from kerncheck.supervise import Supervisor

SUFFIX = sysconfig.get_config_var("EXT_SUFFIX")
CATALOG = load()
NOT_SEEN = Missing(reason="not part of this test")

CONV_OPS = ("causal_conv1d:causal_conv1d_fn", "causal_conv1d:causal_conv1d_update")
FLA_OP = "fla.ops.gated_delta_rule:chunk_gated_delta_rule"
CONV_FUNCTIONS = {"causal_conv1d_fwd": 8, "causal_conv1d_bwd": 12, "causal_conv1d_update": 7}

MODULE = """
typedef struct {{ const char *name; void *call; int flags; const char *doc; }} Method;
extern void *PyModule_Create2(void *, int);
extern void *_Py_NoneStruct;
static void *call(void *self, void *arguments) {{ return 0; }}
static Method methods[] = {{ {methods} {{0, 0, 0, 0}} }};
/* PyModuleDef: head (2 words), init, index, copy, name, doc, size, methods, slots, traverse, clear, free */
static void *definition[] = {{ (void *)1, 0, 0, 0, 0, "{name}", 0, (void *)-1, methods, 0, 0, 0, 0 }};
{declarations}
void *PyInit_{name}(void) {{ {init} return PyModule_Create2(definition, 1013); }}
"""

WRAPPER = '''
"""The Python half of a causal_conv1d, cut down: it calls its extension as release 1.7.0 does."""
__version__ = "1.7.0"
import torch
import causal_conv1d_cuda

def causal_conv1d_fn(x, weight, bias=None, seq_idx=None):
    return causal_conv1d_cuda.causal_conv1d_fwd(x, weight, bias, seq_idx, None, x, None, False)

def causal_conv1d_update(x, state, weight, bias=None):
    return causal_conv1d_cuda.causal_conv1d_update(x, state, weight, bias, x, False, None)
'''

STAND_IN_TORCH = '''
"""Stands in for torch where only the loader's refusal of another file is under test: what it says of itself is all."""
class version:
    cuda, hip, debug, git_version = {cuda!r}, None, False, ""
class _C:
    _GLIBCXX_USE_CXX11_ABI = {abi}
class cuda:
    is_available = staticmethod(lambda: {gpu})
    device_count = staticmethod(lambda: 1)
    get_device_capability = staticmethod(lambda index: (9, 0))
    get_device_name = staticmethod(lambda index: "NVIDIA H200")
    get_arch_list = staticmethod(lambda: ["sm_90"])
__version__ = {version!r}
{more}
'''


def compile_c(path: Path, source: str, *flags: str) -> Path:
    """Compile C source to a shared object."""
    path.parent.mkdir(parents=True, exist_ok=True)
    code = path.with_name(path.name + ".c")
    code.write_text(source)
    subprocess.run(["gcc", "-shared", "-fPIC", "-w", str(code), "-o", str(path), *flags], check=True)
    code.unlink()
    return path


def extension(
    folder: Path,
    *flags: str,
    init: str = "",
    declarations: str = "",
    functions: dict[str, int] | None = None,
    suffix: str = SUFFIX,
    name: str = "causal_conv1d_cuda",
) -> Path:
    """Build a Python extension module whose functions tell their arguments as pybind11 does."""
    methods = "".join(
        f'{{"{function}", call, 1, "{function}({arguments(count)}) -> None"}},'
        for function, count in (CONV_FUNCTIONS if functions is None else functions).items()
    )
    source = MODULE.format(name=name, init=init, declarations=declarations, methods=methods)
    return compile_c(folder / (name + suffix), source, *flags)


def arguments(count: int) -> str:
    """Return an argument list as pybind11 writes it."""
    return ", ".join(f"arg{index}: torch.Tensor" for index in range(count))


def library(path: Path, *symbols: str, soname: str = "", flags: tuple[str, ...] = ()) -> Path:
    """Build a shared object that exports some symbols and does nothing."""
    source = "\n".join(f"int {symbol}(void) {{ return 0; }}" for symbol in symbols) or "static int nothing;"
    return compile_c(path, source, f"-Wl,-soname,{soname or path.name}", *flags)


def versioned(path: Path, symbol: str, version: str, soname: str) -> Path:
    """Build a library that exports a symbol with a symbol version (FX-3)."""
    script = path.with_name(path.name + ".map")
    path.parent.mkdir(parents=True, exist_ok=True)
    script.write_text(f"{version} {{ global: {symbol}; local: *; }};")
    return library(path, symbol, soname=soname, flags=("-nostdlib", f"-Wl,--version-script,{script}"))


def uses(symbol: str) -> dict[str, str]:
    """Return the C that makes an extension call an outside symbol when it is initialised."""
    return {"declarations": f"extern int {symbol}(void);", "init": f"{symbol}();"}


def conv_package(folder: Path, wrapper: str = WRAPPER, version: str = "1.7.0") -> Path:
    """Write the Python half of causal_conv1d and its metadata."""
    package = folder / "causal_conv1d"
    package.mkdir(parents=True, exist_ok=True)
    (package / "__init__.py").write_text(wrapper)
    metadata(folder, "causal-conv1d", version)
    return folder


def fla_package(folder: Path, root: str = '__version__ = "0.6.0"\n', op: str | None = "") -> Path:
    """Write a package ``fla`` with one op: a tree for import tests, not a kernel library."""
    body = "def chunk_gated_delta_rule(q, k, v, g, beta):\n    return q\n"
    files = {"__init__.py": root, "ops/__init__.py": ""}
    if op is not None:
        files["ops/gated_delta_rule/__init__.py"] = op or body
    for name, text in files.items():
        (folder / "fla" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "fla" / name).write_text(text)
    metadata(folder, "fla-core", "0.6.0")
    metadata(folder, "flash-linear-attention", "0.6.0")
    return folder


def metadata(folder: Path, name: str, version: str) -> None:
    """Write the metadata of a distribution, older ones of that name removed."""
    stem = name.replace("-", "_")
    for old in folder.glob(f"{stem}-*.dist-info"):
        (old / "METADATA").unlink()
        old.rmdir()
    place = folder / f"{stem}-{version}.dist-info"
    place.mkdir(parents=True)
    (place / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")


def stand_in_torch(
    folder: Path,
    version: str = "2.8.0+cu128",
    cuda: str | None = "12.8",
    *,
    abi: bool = True,
    gpu: bool = False,
    more: str = "",
) -> Path:
    """Write a stand-in for torch that says which build it is, and nothing else."""
    place = folder / "torch"
    place.mkdir(parents=True, exist_ok=True)
    (place / "__init__.py").write_text(STAND_IN_TORCH.format(version=version, cuda=cuda, abi=abi, gpu=gpu, more=more))
    return folder


def job_for(*ops: str, profile: str = "node", device: str = "none") -> Job:
    """Return a job whose model needs these ops."""
    required = tuple(RequiredOp(op=op, layer_type="linear_attention") for op in ops)
    model = ModelRequest(name="test", folder="qwen3_5", architecture="Qwen3_5ForCausalLM", config={}, required=required)
    return Job(profile=profile, device=device, model=model)


def observe(tree: Path, job: Job, *, timeout: float = 30.0, environment: dict[str, str] | None = None) -> Snapshot:
    """Run the real probes of the imports in children that see the tree first."""
    ask = Ask(job=job, catalog=CATALOG, environment=NOT_SEEN, devices=NOT_SEEN, timeout=timeout)
    extra = {"PYTHONPATH": str(tree), **(environment or {})}
    planned = [replace(run, environment={**run.environment, **extra}) for run in imports.runs(ask)]
    supervisor = Supervisor(sys.executable)
    with ThreadPoolExecutor(max_workers=len(planned)) as pool:
        answers = list(pool.map(supervisor.run, planned))
    return Snapshot(job=job, imports=imports.collect(ask, answers))


def judge_environment(
    tree: Path,
    *ops: str,
    select: str = "KC2",
    job: Job | None = None,
    timeout: float = 30.0,
    environment: dict[str, str] | None = None,
) -> Report:
    """Observe a tree through the supervisor, judge it with the family's checks, and report."""
    job = job or job_for(*(ops or CONV_OPS))
    snapshot = observe(tree, job, timeout=timeout, environment=environment)
    chosen = [check for check in all_checks() if check.code.startswith(select) and set(check.needs) <= {"imports"}]
    outcomes, crashes = judge(Case(job, snapshot, CATALOG), chosen)
    return Report(version="test", job=job, snapshot=snapshot, outcomes=outcomes, crashes=crashes)


def codes(report: Report) -> set[str]:
    """Return the codes of a report's findings, errors and warnings."""
    return {outcome.code for outcome in report.findings}


def told(report: Report) -> str:
    """Return all that the findings say, as one text."""
    return "\n".join(f"{item.message}\n{item.found}\n{item.wanted}\n{item.remedy}" for item in report.findings)
