"""Promises that hold for the whole code base, so that nothing is kept in step by memory."""

from __future__ import annotations

import ast
import importlib
import statistics
import subprocess
import sys
from pathlib import Path

import pytest

from kerncheck.checks.registry import FAMILIES, all_checks
from kerncheck.model.snapshot import SECTIONS

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "kerncheck"
CHILD_FOLDERS = ("probes", "compat", "devices", "kernels")
OWN_INTERPRETER = ("probes/nvml.py", "probes/elf.py")  # run by kerncheck's interpreter: they may use its libraries
UNDER_TEST = {"torch", "triton", "fla", "transformers", "causal_conv1d", "causal_conv1d_cuda", "numpy", "kernels"}
HEADINGS = ("What it checks", "Why it matters", "Example", "How to fix")
CHECKS = all_checks()


def modules() -> dict[str, ast.Module]:
    return {str(path.relative_to(SOURCE)): ast.parse(path.read_text()) for path in sorted(SOURCE.rglob("*.py"))}


MODULES = modules()


def imported(tree: ast.AST, *, top_only: bool) -> set[str]:
    """Return the modules that a file imports; ``if TYPE_CHECKING`` bodies do not run and do not count."""
    names: set[str] = set()
    for node in top_level(tree) if top_only else ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return names


def top_level(tree: ast.AST):
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        yield node
        yield from top_level(node)


def is_child(name: str) -> bool:
    return name.startswith(CHILD_FOLDERS) and name not in OWN_INTERPRETER


@pytest.mark.parametrize("name", [name for name in MODULES if is_child(name)])
def test_child_code_needs_only_the_standard_library_and_other_child_code(name):
    lazy_only = Path(name).name.startswith("_") or name in lazily_imported()
    for module in imported(MODULES[name], top_only=not lazy_only):
        root = module.partition(".")[0]
        if root == "kerncheck":
            assert module.split(".")[1:2] == [] or module.split(".")[1] in CHILD_FOLDERS, f"{name} imports {module}"
        elif not (lazy_only and root in UNDER_TEST):
            assert root in sys.stdlib_module_names, f"{name} imports {module} when it is itself imported"


def lazily_imported() -> set[str]:
    """Return child modules that no module imports at its top: only a running child imports them."""
    at_top = {module for tree in MODULES.values() for module in imported(tree, top_only=True)}
    return {name for name in MODULES if is_child(name) and dotted(name) not in at_top}


def dotted(name: str) -> str:
    return "kerncheck." + name.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


@pytest.mark.parametrize("name", [name for name in MODULES if not is_child(name)])
def test_parent_code_never_imports_what_it_judges(name):
    roots = {module.partition(".")[0] for module in imported(MODULES[name], top_only=False)}
    assert not roots & UNDER_TEST


def test_there_is_no_import_circle():
    graph = {dotted(name): own_imports(tree) for name, tree in MODULES.items()}
    done: set[str] = set()

    def visit(module: str, trail: tuple[str, ...]) -> None:
        assert module not in trail, " -> ".join([*trail, module])
        if module not in done:
            for other in graph[module]:
                visit(other, (*trail, module))
            done.add(module)

    for module in graph:
        visit(module, ())


def own_imports(tree: ast.Module) -> set[str]:
    known = {dotted(name) for name in MODULES}
    return {module for module in imported(tree, top_only=True) if module in known and module.count(".")}


def functions() -> list[tuple[str, int]]:
    return [
        (f"{name}:{node.name}", node.end_lineno - node.lineno + 1)
        for name, tree in MODULES.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]


def test_functions_are_small():
    sizes = sorted(lines for _, lines in functions())
    assert statistics.median(sizes) <= 11
    assert sizes[int(len(sizes) * 0.9)] <= 25
    assert [item for item in functions() if item[1] > 60] == []


def test_no_stub_is_called_done():
    marks = ("TODO", "FIXME", "XXX", "NotImplementedError(", "pragma: no cover")
    found = [(path.name, mark) for path in SOURCE.rglob("*.py") for mark in marks if mark in path.read_text()]
    assert found == []


def test_codes_are_well_formed_and_unique():
    codes = [check.code for check in CHECKS]
    assert len(codes) == len(set(codes))
    assert all(len(code) == 5 and code[:3] in FAMILIES and code[3:].isdigit() for code in codes)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.code)
def test_every_check_has_its_page(check):
    lines = [line.strip() for line in check.page.splitlines()]
    assert [line for line in lines if line in HEADINGS] == list(HEADINGS)
    assert set(check.needs) <= set(SECTIONS)
    assert check.needs


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.code)
def test_every_check_is_proved(check):
    texts = [path.read_text() for path in (ROOT / "tests").rglob("test_*.py") if path.name != "test_contract.py"]
    assert any(check.code in text for text in texts), f"no test names {check.code}"


def test_every_check_is_documented():
    page = (ROOT / "docs" / "checks.md").read_text()
    missing = [check.code for check in CHECKS if f"## {check.code}" not in page or check.page not in page]
    assert missing == [], "run: python docs/make_checks.py"


def test_judging_never_imports_torch(tmp_path):
    script = (
        "import sys\nfrom kerncheck.cli import run\n"
        f"code = run(['judge', {str(ROOT / 'examples' / 'snapshots' / 'h200.json')!r}, '--model', 'qwen'])\n"
        "assert code in (0, 1, 3), code\n"
        "print(sorted(m for m in sys.modules if m.partition('.')[0] in "
        f"{UNDER_TEST!r}))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_no_registry_host_and_no_machine_path_in_any_file():
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False).stdout.split()
    words = ["py" + "pi.org", "files.python" + "hosted", "/work" + "/main", "/work" + "/shared", "/tmp" + "/dev/"]
    found = []
    for name in tracked:
        path = ROOT / name
        if path.is_file() and path.suffix not in (".gz", ".png"):
            text = path.read_text(errors="replace")
            found += [(name, word) for word in words if word in text]
    assert found == []


def test_matrices_travel_inside_the_wheel():
    project = (ROOT / "pyproject.toml").read_text()
    assert 'matrices = "kerncheck/_matrices"' in project


def test_base_requirements_never_name_what_is_judged():
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    names = {requirement.split(">")[0].split("=")[0].strip() for requirement in project["dependencies"]}
    assert not names & {"torch", "triton", "transformers", "flash-linear-attention", "causal-conv1d", "numpy"}


def test_importing_the_package_is_cheap():
    script = "import sys, kerncheck; print([m for m in ('click', 'msgspec', 'rich', 'torch') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_every_section_has_a_stage_that_the_observer_knows():
    from kerncheck.observe import COSTLIEST_FIRST
    from kerncheck.plan import STATIC

    assert set(COSTLIEST_FIRST) | set(STATIC) == set(SECTIONS)
    for section in SECTIONS:
        stage = importlib.import_module(f"kerncheck.stages.{section}")
        assert callable(stage.runs)
        assert callable(stage.collect)
