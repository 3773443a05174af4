"""Probe: the compiled files of torch and of kernel packages, read without loading any of them.

Runs under kerncheck's own interpreter, so that a broken environment cannot disturb it. Options: ``python`` (the judged
interpreter), ``modules`` (top-level names to find there), ``watch`` (prefixes of symbols that torch's libraries take
from libraries which another install may shadow) and ``libraries`` (how the names of such libraries begin).

A case is ``{"kind": "torch"}`` or ``{"kind": "package", "package", "distributions", "extensions"}``; the answers fit
``kerncheck.model.binaries``.
"""

from __future__ import annotations

import glob
import os
from typing import Any

from kerncheck.probes import binaries
from kerncheck.probes.device_code import device_code
from kerncheck.probes.elf import BadFileError, SharedObject
from kerncheck.probes.loader import Loader, kind_of
from kerncheck.probes.records import Records
from kerncheck.probes.shadowing import shadowed, strays

NVIDIA_FOLDERS = ("nvidia/*/lib", "nvidia/*/lib/x64")
TORCH_CUDA = ("libtorch_cuda.so", "libc10_cuda.so", "libtorch_hip.so", "libc10_hip.so")
MOST_FILES = 40
ERROR = "_ZN3c105ErrorC2ENS_14SourceLocationE"  # c10::Error::Error(SourceLocation, std::string), without its string


class State:
    """What all cases share: where things are, one loader with torch's libraries in it, and what RECORD files say."""

    def __init__(self, found: dict[str, Any]) -> None:
        self.found = found
        self.path: list[str] = found["path"]
        self.suffixes = tuple(found["suffixes"])
        self.watch: tuple[str, ...] = found["watch"]
        self.libraries = tuple(found["libraries"])
        self.torch_folder = next(iter(found["modules"].get("torch", {}).get("folders", ())), "")
        self.records = Records(self.path)
        self.nvidia = nvidia_folders(self.path)
        self.loader = Loader(found["executable"])
        self._torch: list[SharedObject] | None = None
        self._interpreter: list[SharedObject] | None = None

    @property
    def header(self) -> str:
        """Word size and processor of the judged interpreter, empty where it cannot be read."""
        return self.loader.program.image.header.text if self.loader.program else ""

    @property
    def interpreter(self) -> list[SharedObject]:
        """The interpreter's program and its libraries: a shared libpython, if it has one."""
        if self._interpreter is None:
            loader = Loader()
            self._interpreter = [*loader.load(self.found["executable"])]
            self._interpreter += [self.loader.program] if self.loader.program else []
        return self._interpreter

    @property
    def torch(self) -> list[SharedObject]:
        """Torch's libraries and all that they pull in, as ``import torch`` loads them."""
        if self._torch is None:
            self.loader.extra = self.nvidia  # torch loads what is missing from there, packages do not
            self._torch = binaries.load_torch(self.loader, self.found["modules"].get("torch", {}))
        return self._torch

    @property
    def has_accelerator(self) -> bool:
        """Whether this torch holds libraries for a GPU."""
        return any(os.path.exists(os.path.join(self.torch_folder, "lib", name)) for name in TORCH_CUDA)


def nvidia_folders(path: list[str]) -> list[str]:
    """Return the folders of NVIDIA's packages in which torch itself looks for a library that the loader misses."""
    patterns = (os.path.join(glob.escape(entry), folder) for entry in path for folder in NVIDIA_FOLDERS)
    return [folder for pattern in patterns for folder in sorted(glob.glob(pattern))]


def setup(options: dict[str, Any]) -> State:
    """Ask the judged interpreter where things are."""
    return State({**binaries.setup(options), "libraries": options["libraries"]})


def run(case: dict[str, Any], state: State) -> dict[str, Any]:
    """Look at torch's libraries, or at the compiled files of one package."""
    return torch_answer(state) if case["kind"] == "torch" else package_answer(case, state)


def torch_answer(state: State) -> dict[str, Any]:
    """Describe torch's own libraries, and those of others that it needs and that have a problem."""
    answer: dict[str, Any] = {"header": state.header, "torch_folder": state.torch_folder, "files": [], "strays": []}
    answer |= {"glibc": newest_glibc(state), "torch_abi": torch_abi(state)}
    if not state.torch_folder or not state.has_accelerator:
        return answer
    torch, state.loader.extra = state.torch, state.nvidia
    files = [torch_file(item, state) for item in torch]
    own = os.path.join(os.path.realpath(state.torch_folder), "")
    unread = [unreadable(path, "torch", "torch", text) for path, text in state.loader.problems.items() if own in path]
    kept = [file for file in files if os.path.realpath(file["path"]).startswith(own) or is_troubled(file)]
    return {**answer, "files": [*kept, *unread], "strays": stray_parts(state)}


def stray_parts(state: State) -> list[dict[str, Any]]:
    """Return the parts of cuDNN that another installation would bring, beside the version that torch requires."""
    found = strays(state.loader)
    for one in found:
        beside = glob.glob(os.path.join(glob.escape(one["expected"]), "libcudnn.so.*"))
        owners = [owner for path in beside for owner in state.records.of(path)]
        one["wanted"] = next((owner["version"] for owner in owners), "")
    return found


def newest_glibc(state: State) -> str:
    """Return the newest version of glibc that the C library of this system defines."""
    for item in state.torch or state.loader.load(state.found["executable"]):
        if item.soname == "libc.so.6":
            return max(
                (name for name in item.versions_defined if name.startswith("GLIBC_2")), key=binaries.order, default=""
            )
    return ""


def torch_abi(state: State) -> str:
    """Return which std::string the constructors of c10::Error take that torch exports, empty where none tells."""
    for item in state.torch:
        if item.soname == "libc10.so":
            names = item.starting_with(ERROR)
            return "C++11" if any("__cxx11" in name for name in names) else "pre-C++11" if names else ""
    return ""


def torch_file(item: SharedObject, state: State) -> dict[str, Any]:
    """Return the facts of one library that torch loads."""
    try:
        found = binaries.facts(item, "torch", "torch", state.loader, state.torch, state.watch)
        more = copies(item, state)
    except BadFileError as error:
        return unreadable(item.path, "torch", "torch", str(error))
    inside = item.path.startswith(state.torch_folder) or os.path.realpath(item.path).startswith(state.torch_folder)
    device = device_code(item.image) if inside else {"kind": "device_code"}
    return {**cleaned(found), **header_of(item), "shadowed": more, "device": device, **recorded(item.path, state)}


def copies(item: SharedObject, state: State) -> list[dict[str, Any]]:
    """Return the libraries of a file that are shadowed; a wheel's file tells its version by its distribution."""
    found = shadowed(item, state.loader, state.libraries, state.nvidia)
    for one in found:
        owners = state.records.of(one["expected"])
        one["wanted"] = one["wanted"] or next((owner["version"] for owner in owners), "")
    return found


def is_troubled(file: dict[str, Any]) -> bool:
    """Tell whether a file of another package must be mentioned: something about it is not as it should be."""
    lacks = any(not item["path"] for item in file.get("needed", ()))
    own = any(file.get(name) for name in ("problem", "unresolved", "unmet", "shadowed"))
    return lacks or own or is_changed(file)


def is_changed(file: dict[str, Any]) -> bool:
    """Tell whether a file is not the one that its package's RECORD speaks of."""
    for record in file.get("records", ()):
        if record["size"] is not None and record["size"] != file["size"]:
            return True
        if file.get("sha256") and record["sha256"] and record["sha256"] != file["sha256"]:
            return True
    return False


def package_answer(case: dict[str, Any], state: State) -> dict[str, Any]:
    """Describe a package's compiled files: its known extensions, and the other modules that its RECORD lists."""
    installed = state.records.installed(case["distributions"])
    answer = {"package": case["package"], "extensions": case["extensions"], "installed": installed, "files": []}
    files: list[dict[str, Any]] = []
    own = state.records.binaries(case["distributions"])
    for module, path, role in modules(case, state, own)[:MOST_FILES]:
        files += look(path, module, role, case["package"], own, state)
    return {**answer, "files": list({file["path"]: file for file in reversed(files)}.values())[::-1]}


def modules(case: dict[str, Any], state: State, own: list[str]) -> list[tuple[str, str, str]]:
    """Return (module, path, role) of each compiled module of a package that this Python would import."""
    found = []
    for module in case["extensions"]:
        paths = binaries.package_files({"extensions": [module]}, state.found)
        found += [(module, path, "extension") for path in paths]
    known = {path for _, path, _ in found}
    for path in own:
        module = module_of(path, state)
        if module and path not in known and os.path.exists(path):
            found.append((module, path, "module"))
    return found


def module_of(path: str, state: State) -> str:
    """Return the module that a file of a package is imported as, empty for a library that is none."""
    suffix = next((suffix for suffix in state.suffixes if path.endswith(suffix)), "")
    name = os.path.basename(path)
    if not suffix or (suffix == ".so" and (name.startswith("lib") or "." in name[: -len(suffix)])):
        return ""
    entry = next((entry for entry in state.path if path.startswith(os.path.join(entry, ""))), "")
    return path[len(entry) : -len(suffix)].strip(os.sep).replace(os.sep, ".") if entry else ""


def look(path: str, module: str, role: str, package: str, own: list[str], state: State) -> list[dict[str, Any]]:
    """Return the facts of a module, and of each library that it pulls in and that matters."""
    header = kind_of(path)
    if header and state.header and header != state.header:
        return [{**unreadable(path, package, role, ""), "module": module, "header": header, **recorded(path, state)}]
    torch, loader = state.torch, state.loader
    loader.extra, before = [], dict(loader.loaded)
    loader.problems.pop(path, None)
    try:
        closure = loader.load(path)
        if not closure:
            return [{**unreadable(path, package, role, loader.problems[path]), "module": module}]
        first = {**described(closure[0], closure, role, package, own, state), "module": module}
        others = [item for item in closure[1:] if item not in torch]
        found = [described(item, closure, "dependency", package, own, state) for item in others]
    finally:
        loader.loaded = before  # the next module is judged alone
    return [first, *(file for file in found if is_troubled(file) or file["path"] in own)]


def described(
    item: SharedObject, closure: list[SharedObject], role: str, package: str, own: list[str], state: State
) -> dict[str, Any]:
    """Return the facts of one file that a module's loading takes in."""
    scope = list(dict.fromkeys((*closure, *state.torch)))
    try:
        found = binaries.facts(item, package, role, state.loader, scope)
        more = copies(item, state)
    except BadFileError as error:
        return unreadable(item.path, package, role, str(error))
    device = device_code(item.image) if role != "dependency" or item.path in own else {"kind": "device_code"}
    unread = damaged(found["needed"], state)
    missing = [need["name"] for need in found["needed"] if not need["path"] and need["name"] not in unread]
    unresolved = [] if unread else [*found["unresolved"], *of_python(item, state)]
    kept, siblings = apart(unresolved, own, state)
    return {
        **cleaned(found),
        **header_of(item),
        "needed": [need for need in found["needed"] if need["name"] not in unread],
        "unread": unread,
        "elsewhere": {name: place for name in missing if (place := elsewhere(name, state))},
        "unresolved": kept,
        "siblings": siblings,
        "shadowed": more,
        "device": device,
        **recorded(item.path, state),
    }


def damaged(needed: list[dict[str, Any]], state: State) -> dict[str, str]:
    """Return those needed libraries that were found and cannot be read, with the reason."""
    by_name = {os.path.basename(path): reason for path, reason in state.loader.problems.items()}
    found = ((need["name"], state.loader.problems.get(need["path"], "")) for need in needed)
    return {name: reason or by_name[name] for name, reason in found if reason or name in by_name}


def of_python(item: SharedObject, state: State) -> list[dict[str, Any]]:
    """Return the names of Python's C API that a file wants and that this interpreter does not export."""
    program = state.loader.program
    libraries = [other for other in state.interpreter if other.soname.startswith("libpython") or other is program]
    if not any(exports(other, "PyModule_Create2") for other in libraries):
        return []
    names = (name for name, _ in item.undefined() if name.startswith(binaries.INTERPRETER_SYMBOLS))
    return [{"symbol": name} for name in names if not any(exports(other, name) for other in libraries)]


def apart(unresolved: list[dict[str, Any]], own: list[str], state: State) -> tuple[list[dict[str, Any]], list[str]]:
    """Part symbols that nobody exports from those that another file of the same package does.

    A package may load that file by its path first, with its symbols for all (Transformer Engine does so).
    """
    if not unresolved:
        return [], []
    others = [item for item in (state.loader.open(path) for path in own[:MOST_FILES]) if item]
    siblings = [item["symbol"] for item in unresolved if any(exports(other, item["symbol"]) for other in others)]
    for other in others:
        other.close()
    return [item for item in unresolved if item["symbol"] not in siblings], siblings


def exports(item: SharedObject, symbol: str) -> bool:
    """Tell whether a file exports a symbol; a damaged one does not."""
    try:
        return item.exports(symbol)
    except BadFileError:
        return False


def elsewhere(name: str, state: State) -> str:
    """Return a file of this name in a folder of the environment that the search does not reach, empty for none."""
    prefix = os.path.dirname(os.path.dirname(state.found["executable"]))
    folders = (*state.nvidia, os.path.join(state.torch_folder, "lib"), os.path.join(prefix, "lib"))
    paths = (os.path.join(folder, name) for folder in folders)
    return next((path for path in paths if os.path.isfile(path)), "")


def cleaned(found: dict[str, Any]) -> dict[str, Any]:
    """Return the loader's facts without those that this section has in another form."""
    return {key: value for key, value in found.items() if key not in ("machine", "modified")}


def header_of(item: SharedObject) -> dict[str, str]:
    """Return word size and processor of a file in words."""
    return {"header": item.image.header.text}


def unreadable(path: str, package: str, role: str, problem: str) -> dict[str, Any]:
    """Return the facts of a file that could not be read."""
    return {"path": path, "package": package, "role": role, "problem": problem, "size": size_of(path)}


def size_of(path: str) -> int:
    """Return a file's size in bytes, 0 for none."""
    return os.path.getsize(path) if os.path.exists(path) else 0


def recorded(path: str, state: State) -> dict[str, Any]:
    """Return what RECORD files say of a file, and its own sha256 where it is small enough to be read whole."""
    records = state.records.of(path)
    same_size = all(record["size"] in (None, size_of(path)) for record in records)
    return {"records": records, "sha256": state.records.digest(path) if records and same_size else ""}
