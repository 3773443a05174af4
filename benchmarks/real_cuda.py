"""Prove the image gate on a real CUDA build of torch and a really compiled extension. By hand: it is not for CI.

    nox -s real-cuda                # or: python benchmarks/real_cuda.py --folder DIR

It needs Python 3.11, a C++ compiler, about 12 GB of disk and 15 to 35 minutes on two cores, and no GPU. Steps that
are done in the folder already are not done again.

1. An environment with torch 2.14.1 (CUDA 13.0), and nvcc from NVIDIA's packages.
2. causal-conv1d 1.7.0 built for it, for sm_80 and sm_90 alone (``nvcc_keep.py`` drops the other seven architectures).
3. An environment with a CPU build of torch, and a small C++ extension built against that.
4. The gate (``kerncheck verify --profile image``) on each combination, against what it must say.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import time
from dataclasses import dataclass, field
from pathlib import Path

TORCH = "torch==2.14.1"
CPU_TORCH = os.environ.get("KERNCHECK_TORCH", "torch==2.13.0")  # the newest release whose CPU build pip finds by itself
NVCC = (
    "nvidia-cuda-nvcc==13.0.88",
    "nvidia-cuda-crt==13.0.88",
    "nvidia-nvvm==13.0.88",
    "nvidia-cuda-cccl==13.0.85",
)
BUILD = ("ninja", "packaging", "setuptools", "wheel", "numpy")
CONV = "causal-conv1d==1.7.0"
KEEP = "sm_80,sm_90"
SOURCE = """
#include <torch/extension.h>
// at::cholesky(Tensor, bool) is exported by torch 2.13 and no longer by 2.14.1 in this form.
at::Tensor factor(const at::Tensor &a) { return at::cholesky(a, false); }
PYBIND11_MODULE(TORCH_EXTENSION_NAME, module) { module.def("causal_conv1d_fwd", &factor); }
"""
SETUP = """
from setuptools import setup
from torch.utils.cpp_extension import BuildExtension, CppExtension
setup(name="small", ext_modules=[CppExtension("causal_conv1d_cuda", ["small.cpp"], extra_compile_args=["-O0"])],
      cmdclass={"build_ext": BuildExtension})
"""


@dataclass(frozen=True)
class Expected:
    """One combination: what is judged, for which targets, and what must come out."""

    name: str
    python: Path
    targets: tuple[str, ...]
    codes: frozenset[str]
    words: tuple[str, ...] = ()
    variables: dict[str, str] = field(default_factory=dict)
    select: str = "KC2"

    @property
    def exit_code(self) -> int:
        """1 with findings, 0 without."""
        return 1 if self.codes else 0


def run(*command: str | Path, **variables: str) -> None:
    """Run a step; end with its message if it fails."""
    print("+", *command, flush=True)
    subprocess.run([str(part) for part in command], env={**os.environ, **variables}, check=True)


def environment(folder: Path, *packages: str) -> Path:
    """Make a virtual environment with these packages, unless it is there; return its interpreter."""
    python = folder / "bin" / "python"
    if not (folder / "done").exists():
        run(sys.executable, "-m", "venv", folder)
        for group in packages:
            run(python, "-m", "pip", "install", "--no-cache-dir", "-q", *group.split())
        (folder / "done").touch()
    return python


def site(python: Path) -> Path:
    """Return the folder of an environment's packages."""
    script = "import sysconfig; print(sysconfig.get_path('purelib'))"
    return Path(subprocess.run([python, "-c", script], capture_output=True, text=True, check=True).stdout.strip())


def toolkit(python: Path) -> Path:
    """Return CUDA_HOME among the environment's packages, with the two links that a build looks for."""
    home = site(python) / "nvidia" / "cu13"
    for link, target in ((home / "lib64", "lib"), (home / "lib" / "libcudart.so", "libcudart.so.13")):
        if not link.is_symlink():
            link.symlink_to(target)
    return home


def build_conv(python: Path, folder: Path) -> float:
    """Build and install causal-conv1d for two architectures; return the minutes that it took (0: done before)."""
    if any(site(python).glob("causal_conv1d_cuda*.so")):
        return 0.0
    home, started = toolkit(python), time.monotonic()
    run(
        *(python, "-m", "pip", "wheel", "--no-cache-dir", "--no-deps", "--no-build-isolation"),
        *("--no-binary", "causal-conv1d", "-w", folder / "wheels", CONV),
        CUDA_HOME=str(home), NVCC=str(home / "bin" / "nvcc"), KEEP=KEEP, CAUSAL_CONV1D_FORCE_BUILD="TRUE",
        PYTORCH_NVCC=str(Path(__file__).with_name("nvcc_keep.py")), MAX_JOBS=str(os.cpu_count()),
        PATH=f"{python.parent}:{os.environ['PATH']}",
    )  # fmt: skip
    run(python, "-m", "pip", "install", "-q", "--no-deps", *(folder / "wheels").glob("causal_conv1d-*.whl"))
    return (time.monotonic() - started) / 60


def build_small(python: Path, folder: Path) -> Path:
    """Build a small extension against the CPU torch, and put it beside the Python half of causal_conv1d."""
    place = folder / "small"
    if not any(place.glob("causal_conv1d_cuda*.so")):
        place.mkdir(exist_ok=True)
        (place / "small.cpp").write_text(SOURCE)
        (place / "setup.py").write_text(SETUP)
        path = f"{python.parent}:{os.environ['PATH']}"
        subprocess.run(
            [python, "setup.py", "-q", "build_ext", "--inplace"],
            cwd=place,
            env={**os.environ, "PATH": path},
            check=True,
        )
        (place / "causal_conv1d").mkdir(exist_ok=True)
        (place / "causal_conv1d" / "__init__.py").write_text("import torch\nimport causal_conv1d_cuda\n")
    return place


def beside(python: Path, folder: Path) -> Path:
    """Copy the real extension and its Python half into a folder of their own."""
    place = folder / "beside"
    place.mkdir(exist_ok=True)
    for pattern in ("causal_conv1d", "causal_conv1d_cuda*.so", "causal_conv1d-*.dist-info"):
        for source in site(python).glob(pattern):
            target = place / source.name
            if not target.exists():
                shutil.copytree(source, target) if source.is_dir() else shutil.copy(source, target)
    return place


def three_extensions(python: Path, folder: Path) -> Path:
    """Return a folder in which the real extension stands for three packages, to time the static part."""
    place = folder / "three"
    place.mkdir(exist_ok=True)
    (source,) = site(python).glob("causal_conv1d_cuda*.so")
    for name in ("causal_conv1d_cuda", "flash_attn_2_cuda", "selective_scan_cuda"):
        target = place / source.name.replace("causal_conv1d_cuda", name)
        if not target.exists():
            shutil.copy(source, target)
    return place


def expectations(cuda: Path, cpu: Path, folder: Path) -> list[Expected]:
    """Return what must come out of each combination."""
    copied, small = str(beside(cuda, folder)), str(build_small(cpu, folder))
    none: frozenset[str] = frozenset()
    return [
        Expected("built for sm_80 and sm_90, targets of those", cuda, ("sm_80", "h200", "8.6"), none),
        Expected(
            "a target it was not built for", cuda, ("sm_90", "b200"), frozenset({"KC235"}), ("sm_80 sm_90", "B200")
        ),
        Expected(
            "the same file beside a CPU build of torch: the static family alone", cpu, ("sm_90",), frozenset({"KC231"}),
            ("CPU build of torch: libc10_cuda.so",), {"PYTHONPATH": copied}, "KC23",
        ),
        Expected(
            "the same with its import tried: one family reports", cpu, ("sm_90",), frozenset({"KC203"}),
            ("CPU build of torch: libc10_cuda.so",), {"PYTHONPATH": copied},
        ),
        Expected(
            "a C++ extension of torch 2.13 beside 2.14.1", cuda, ("sm_90",), frozenset({"KC234", "KC236"}),
            ("at::_ops::cholesky::call(at::Tensor const&, bool)", "another torch"), {"PYTHONPATH": small}, "KC23",
        ),
        Expected("the same extension beside its own torch", cpu, ("sm_90",), none, (), {"PYTHONPATH": small}, "KC23"),
    ]  # fmt: skip


def judged(item: Expected) -> tuple[dict, float]:
    """Run the gate; return its report and the seconds that it took."""
    targets = [part for target in item.targets for part in ("--target", target)]
    command = [sys.executable, "-m", "kerncheck", "verify", "--profile", "image", *targets, "--format", "json"]
    command += ["--select", item.select, "--python", str(item.python)]
    started = time.monotonic()
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **item.variables}, check=False)
    return json.loads(done.stdout), time.monotonic() - started


def compared(item: Expected) -> str:
    """Return what differs from the expectation, empty where nothing does."""
    report, seconds = judged(item)
    findings = [found for found in report["outcomes"] if found["status"] == "failed"]
    codes, text = {found["code"] for found in findings}, json.dumps(findings)
    static = next((run["seconds"] for run in report["snapshot"]["runs"] if run["section"] == "binaries"), None)
    print(
        f"  exit {report['exit_code']}, findings {sorted(codes) or 'none'}, {seconds:.1f} s, compiled files {static} s"
    )
    wrong = [f"exit {report['exit_code']}, not {item.exit_code}"] if report["exit_code"] != item.exit_code else []
    wrong += [f"{sorted(codes)}, not {sorted(item.codes)}"] if codes != item.codes else []
    wrong += [f"nothing says {words!r}" for words in item.words if words not in text]
    return "; ".join(wrong)


def static_seconds(python: Path, folder: Path) -> float:
    """Return the seconds of the static part for torch and three extensions, without importing torch."""
    place = str(three_extensions(python, folder))
    item = Expected("three", python, ("sm_90",), frozenset(), (), {"PYTHONPATH": place}, "KC23")
    report, _ = judged(item)
    read = {package["package"] for package in report["snapshot"]["binaries"]["packages"] if package["files"]}
    if not read >= {"causal_conv1d", "flash_attn", "mamba_ssm"}:
        sys.exit(f"of the three extensions only {sorted(read)} were read")
    return float(next(run["seconds"] for run in report["snapshot"]["runs"] if run["section"] == "binaries"))


def main() -> int:
    """Do all steps; 0 if everything is as expected."""
    options = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    options.add_argument("--folder", type=Path, required=True, help="where everything is built (12 GB)")
    folder = options.parse_args().folder.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    cuda = environment(folder / "cuda", TORCH, " ".join(BUILD), " ".join(NVCC))
    minutes = build_conv(cuda, folder)
    cpu = environment(folder / "cpu", CPU_TORCH, " ".join(BUILD))
    print(f"Python {sysconfig.get_python_version()}, {TORCH}; beside it {CPU_TORCH} for the CPU")
    print(f"{CONV} for {KEEP}, built in {minutes:.0f} min (0: done before)")
    failed = 0
    for item in expectations(cuda, cpu, folder):
        print(item.name, flush=True)
        wrong = compared(item)
        failed += bool(wrong)
        print(f"  {'WRONG: ' + wrong if wrong else 'as expected'}", flush=True)
    print(f"static part for torch and three extensions: {static_seconds(cuda, folder):.2f} s")
    print("all as expected" if not failed else f"{failed} differ")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
