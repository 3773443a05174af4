"""Probe: import torch, a kernel package, its compiled extensions and its ops, in the judged interpreter.

Options: ``after_torch`` (a package: import torch first, as a user's process does, if the package is there). Cases, by
``kind``: ``host`` and ``torch`` describe the interpreter and torch; ``installed`` reads metadata and the search path,
and runs nothing of the package; ``module`` imports one module; ``op`` imports one op. An exception is caught here,
whatever its type, so that what was said before it is kept; an op whose package failed in this process is not tried,
since a second import of a half-imported package raises something else.
"""

from __future__ import annotations

import contextlib
import faulthandler
import importlib
import importlib.machinery
import importlib.util
import inspect
import os
import platform
import resource
import sys
import types
import warnings
from collections.abc import Callable, Iterator
from typing import Any

from kerncheck.probes import locate, usage
from kerncheck.probes.demangle import demangle_in
from kerncheck.probes.worker import describe

MOST_LINES = 20
MOST_LETTERS = 400
MOST_BYTES = 1 << 16
NOISE = (DeprecationWarning, PendingDeprecationWarning, SyntaxWarning, ResourceWarning)
OUT_OF_MEMORY = (MemoryError,)


def setup(options: dict[str, Any]) -> dict[str, Any]:
    """Import torch first if asked to. A crash prints the Python stack and leaves no core file."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    faulthandler.enable(all_threads=True)
    package = options.get("after_torch")
    if package and importlib.util.find_spec(package):  # one that is absent is absent without torch's two seconds
        import torch  # noqa: F401
    return {"failed": {}}


def run(case: dict[str, Any], state: dict[str, Any]) -> dict[str, Any]:
    """Answer one case."""
    kinds: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
        "host": host,
        "torch": torch_runtime,
        "installed": installed,
        "module": import_module,
        "op": import_op,
    }
    earlier = state["failed"].get(case.get("needs"))
    if earlier and case["kind"] == "op":
        return {"module": case["modules"][0], "result": {"kind": "missing", "reason": f"not tried: {earlier}"}}
    answer = kinds[case["kind"]](case)
    if answer.get("result", {}).get("kind") == "broken":
        state["failed"][case["name"]] = f"{case['name']} failed before"
    return answer


def host(_case: dict[str, Any]) -> dict[str, Any]:
    """Describe the interpreter and its C library."""
    name, version = platform.libc_ver()
    return {
        "python": platform.python_version(),
        "executable": sys.executable,
        "suffixes": list(importlib.machinery.EXTENSION_SUFFIXES),
        "glibc": version if name == "glibc" else "",
        "library_path": os.environ.get("LD_LIBRARY_PATH", ""),
        "prefix": sys.prefix,
    }


def torch_runtime(_case: dict[str, Any]) -> dict[str, Any]:
    """Import torch and let it describe itself. Devices are asked for last: that may start the driver."""
    with listening() as heard:
        result = attempt(describe_torch)
    return {"result": result["result"], "demangled": result["demangled"], **heard}


def describe_torch() -> dict[str, Any]:
    """Return what torch says about its build and its devices."""
    import torch

    build = getattr(torch, "version", None)
    found = {
        "kind": "torch_runtime",
        "version": str(torch.__version__),
        "file": str(getattr(torch, "__file__", "")),
        "cuda": str(getattr(build, "cuda", None) or ""),
        "hip": str(getattr(build, "hip", None) or ""),
        "debug": bool(getattr(build, "debug", False)),
        "git_version": str(getattr(build, "git_version", None) or ""),
        "cxx11_abi": optional(lambda: bool(torch._C._GLIBCXX_USE_CXX11_ABI)),  # noqa: SLF001 - torch has no other name
        "arch_list": optional(lambda: [str(arch) for arch in torch.cuda.get_arch_list()]) or [],
    }
    return {**found, **devices(torch)}


def devices(torch: Any) -> dict[str, Any]:
    """Return the devices that torch can use now."""
    if not optional(lambda: bool(torch.cuda.is_available())):
        return {"available": False}
    count = int(torch.cuda.device_count())
    capabilities = [torch.cuda.get_device_capability(index) for index in range(count)]
    return {
        "available": True,
        "device_count": count,
        "capabilities": [f"{major}.{minor}" for major, minor in capabilities],
        "device_names": [str(torch.cuda.get_device_name(index)) for index in range(count)],
    }


def optional(ask: Callable[[], Any]) -> Any:
    """Return an answer, or None where this torch has no such thing."""
    try:
        return ask()
    except Exception:
        return None


def installed(case: dict[str, Any]) -> dict[str, Any]:
    """Return what is installed of a package, from metadata and the search path alone."""
    found = locate.find(case["package"])
    path = [*found["folders"], *(entry for entry in sys.path if entry)]
    files = {file for module in case["extensions"] for file in locate.extension_files(module, path)}
    calls = usage.calls(found["folders"], case["extensions"])
    return {
        "distributions": locate.distributions(case["distributions"]),
        "location": locate.location(case["package"]),
        "files": sorted(files),
        "calls": calls,
    }


def import_module(case: dict[str, Any]) -> dict[str, Any]:
    """Import a module, by the first of its names that exists."""
    return tried(case["modules"], describe_module)


def import_op(case: dict[str, Any]) -> dict[str, Any]:
    """Import an op, from the first of its modules that has it."""
    return tried(case["modules"], lambda module: describe_attribute(module, case["attribute"]))


def tried(modules: list[str], look: Callable[[Any], dict[str, Any]]) -> dict[str, Any]:
    """Try module names in turn. A name that does not exist, or a module without the op, leads to the next one."""
    answers: list[dict[str, Any]] = []
    with listening() as heard:
        for name in modules:
            answers.append({"module": name, **attempt(lambda name=name: look(load(name)))})  # type: ignore[misc]
            if not absent(answers[-1], name):
                break
    best = answers[-1] if not absent(answers[-1], modules[len(answers) - 1]) else answers[0]
    return {**best, "tried": modules[: len(answers)], **heard}


def absent(answer: dict[str, Any], name: str) -> bool:
    """Tell whether a module of this name does not exist, or does not have the op."""
    result = answer["result"]
    if result["kind"] == "imported":
        return not result.get("present", True) or result.get("is_none", False)
    missing = answer.get("missing", "")
    return bool(missing) and (missing == name or name.startswith(missing + "."))


def load(name: str) -> Any:
    """Import a module and note the shared objects that came with it."""
    before = mapped()
    module = importlib.import_module(name)
    return module, sorted(mapped() - before)


def attempt(work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Do one import. Return what came of it, whatever was raised, exits and interrupts included."""
    try:
        return {"result": work(), "demangled": {}, "ordinary": True}
    except OUT_OF_MEMORY:
        raise
    except BaseException as error:
        return failure(error)


def failure(error: BaseException) -> dict[str, Any]:
    """Return an exception as a result. ``ordinary`` tells whether ``except Exception`` would have caught it."""
    said = described(error.with_traceback(below_us(error.__traceback__)))
    result: dict[str, Any] = {"kind": "broken", "how": "raised", **said}
    if isinstance(error, SystemExit):
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
        result = {**result, "how": "exit", "exit_code": code, "message": f"exited with code {code}"}
    return {
        "result": result,
        "demangled": demangle_in(" ".join(said["chain"])),
        "ordinary": isinstance(error, Exception),
        "missing": str(getattr(error, "name", None) or "") if isinstance(error, ModuleNotFoundError) else "",
    }


def below_us(frames: types.TracebackType | None) -> types.TracebackType | None:
    """Return a traceback without its first frames, those of this module and of the import system."""
    ours = (__file__, importlib.__file__)
    while frames and (frames.tb_frame.f_code.co_filename in ours or "importlib" in frames.tb_frame.f_code.co_filename):
        frames = frames.tb_next
    return frames


def described(error: BaseException) -> dict[str, Any]:
    """Return an exception as data, even one whose own ``__str__`` raises."""
    try:
        return describe(error)
    except Exception as second:
        name = type(error).__name__
        message = f"(its text cannot be read: {type(second).__name__})"
        return {"exception": name, "message": message, "chain": [f"{name}: {message}"], "detail": ""}


def describe_module(loaded: tuple[Any, list[str]]) -> dict[str, Any]:
    """Return what a module is, with the names and signatures that a wrapper may call."""
    module, objects = loaded
    return {
        "kind": "imported",
        "module": module.__name__,
        "file": str(getattr(module, "__file__", None) or ""),
        "version": str(getattr(module, "__version__", None) or ""),
        "type": type(module).__name__,
        "objects": objects,
        "names": usage.offered(module),
    }


def describe_attribute(loaded: tuple[Any, list[str]], attribute: str) -> dict[str, Any]:
    """Return what an op is: its type and signature, or that it is not there."""
    module, objects = loaded
    present = hasattr(module, attribute)
    value = getattr(module, attribute, None)
    return {
        "kind": "imported",
        "module": module.__name__,
        "file": str(getattr(module, "__file__", None) or ""),
        "present": present,
        "is_none": present and value is None,
        "type": type(value).__name__ if present else "",
        "signature": signature(value),
        "objects": objects,
    }


def signature(value: Any) -> str:
    """Return the signature of a callable as text, "" for one that tells none."""
    try:
        return str(inspect.signature(value))
    except Exception:
        return ""


def mapped() -> set[str]:
    """Return the shared objects that are mapped into this process."""
    found = set()
    with open("/proc/self/maps", errors="replace") as lines:
        for line in lines:
            path = line.rstrip("\n").split(maxsplit=5)[-1]
            if path.startswith("/") and ".so" in os.path.basename(path):
                found.add(path)
    return found


@contextlib.contextmanager
def listening() -> Iterator[dict[str, Any]]:
    """Collect warnings, and what is written to stderr, while something is imported.

    The supervisor gives this process a plain file as stderr, so the new bytes are read back from it and stay there:
    should this process die, they are still the end of its output.
    """
    heard: dict[str, Any] = {"warnings": [], "output": []}
    start = output_size()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        try:
            yield heard
        finally:
            heard["warnings"] = unique(worded(item) for item in caught if not issubclass(item.category, NOISE))
            heard["output"] = unique(written_since(start))


def worded(item: warnings.WarningMessage) -> str:
    """Return a warning as ``Category: text``."""
    return f"{item.category.__name__}: {item.message}"


def unique(lines: Any) -> list[str]:
    """Return the last distinct lines, shortened."""
    kept = dict.fromkeys(" ".join(line.split())[:MOST_LETTERS] for line in lines if line.strip())
    return list(kept)[-MOST_LINES:]


def output_size() -> int:
    """Return how many bytes stderr holds, or -1 where it is no file that can be read back."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    try:
        os.pread(2, 0, 0)
        return os.fstat(2).st_size
    except OSError:
        return -1


def written_since(start: int) -> list[str]:
    """Return the lines that were written to stderr since then, the last 64 KiB at most."""
    end = output_size()
    if start < 0 or end <= start:
        return []
    first = max(start, end - MOST_BYTES)
    return os.pread(2, end - first, first).decode(errors="replace").splitlines()
