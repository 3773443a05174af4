"""Judge every model folder of the installed transformers that has a fused seam, with its packages and without each.

    python benchmarks/model_folders.py [--only qwen3_next,mamba2] [--page docs/model-folders.md]

A folder's configuration is the one that its class makes without arguments (``CHANGES`` where that one has no layer with
a seam, or cannot be built), saved as transformers saves it. `kerncheck verify` shrinks it and judges seams, packing and
one training step on the emulated device; then the seams once more with each package made to fail on import. The table
is what came of it, not what should have.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

SEAM = "use_kernel_func_from_hub_with_fallback"
CONV = ["conv", "conv", "full_attention"] * 10 + ["conv"] * 2
CHANGES = {
    "lfm2": {"layer_types": CONV},
    "lfm2_moe": {"layer_types": CONV},
    "qwen4_exp_text": {
        "indexer_n_heads": 16,
        "indexer_kv_heads": 1,
        "indexer_head_dim": 256,
        "indexer_budget": 64,
        "indexer_compress_ratio": 4,
    },
}
LIST = f"""
import json, re, sys
from pathlib import Path
import transformers
from transformers import CONFIG_MAPPING
changes = json.loads(sys.argv[1])
root = Path(transformers.__file__).parent / "models"
found = {{}}
for file in sorted(root.glob("*/modeling_*.py")):
    text = file.read_text(errors="replace")
    if {SEAM!r} in text:
        packages = re.findall({SEAM!r} + r'\\(\\s*"[^"]*",\\s*"([a-z0-9_]+)', text)
        found.setdefault(file.parent.name, set()).update(packages)
made = {{}}
for folder, packages in found.items():
    types = [kind for kind in CONFIG_MAPPING.keys() if CONFIG_MAPPING[kind].__module__.split(".")[-2] == folder]
    texts = [kind for kind in types if kind.endswith("_text")] or types
    config = CONFIG_MAPPING[texts[0]](**changes.get(texts[0], {{}}))
    saved = json.loads(config.to_json_string(use_diff=False))
    made[folder] = {{"packages": sorted(packages), "config": {{**saved, "model_type": texts[0]}}}}
print(json.dumps(made))
"""
ASKED = ("--device", "emulate", "--quick", "--timeout", "900")
STAGES = ("--packing", "both", "--select", "KC3", "--select", "KC5", "--select", "KC6")
HIDING = 'raise ImportError("libcudart.so.12: cannot open shared object file: No such file or directory")\n'
HEADS = (
    "folder",
    "layers",
    "required ops",
    "seams",
    "packing (both)",
    "step",
    "exit",
    "each package broken",
    "seconds",
)
ABOUT = """# Model folders

Made by `python benchmarks/model_folders.py --page FILE` on {date}: transformers {transformers}, torch {torch}, triton
{triton}, flash-linear-attention {fla}; no causal-conv1d and no mamba-ssm (they have no build for a CPU: the first is
replaced by a labelled stand-in, the second by nothing, so the eager reference runs there and the verdict stays open,
exit 3). Each row is the default configuration of the folder's class, shrunk; **bold** are findings. "Each package
broken": its import raises on purpose; what KC301 said then.
"""


def folders() -> dict[str, Any]:
    """Return the folders with a seam: the packages that their seams want, and a configuration."""
    command = [sys.executable, "-c", LIST, json.dumps(CHANGES)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return dict(json.loads(done.stdout.strip().splitlines()[-1]))


def verified(config: dict[str, Any], *asked: str, hidden: str = "") -> tuple[int, dict[str, Any] | None, str]:
    """Run verify on a configuration; return its exit code, its report, and what it said on stderr."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "config.json"
        path.write_text(json.dumps(config))
        environment = dict(os.environ)
        if hidden:
            (Path(folder) / hidden).mkdir()
            (Path(folder) / hidden / "__init__.py").write_text(HIDING)
            environment["PYTHONPATH"] = os.pathsep.join(filter(None, [folder, os.environ.get("PYTHONPATH", "")]))
        command = [
            sys.executable,
            "-m",
            "kerncheck",
            "verify",
            "--model",
            str(path),
            *ASKED,
            *asked,
            "--format",
            "json",
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    report = json.loads(done.stdout) if done.stdout.startswith("{") else None
    return done.returncode, report, done.stderr.strip()[-200:]


def family(report: dict[str, Any], prefix: str) -> str:
    """Return what a family said: its findings, else how many checks passed, or why nothing was judged."""
    items = [one for one in report["outcomes"] if one["code"].startswith(prefix)]
    failed = [one for one in items if one["status"] == "failed" and one["severity"] == "error"]
    passed = sum(one["status"] == "passed" for one in items)
    if failed:
        return "; ".join(sorted({f"**{one['code']}** {one['message'][:110]}" for one in failed}))
    open_ = [one["message"] for one in items if one["status"] == "not_judged" and one["required"]]
    if open_:
        return f"{passed} passed; not judged: {open_[0][:90]}"
    return f"{passed} passed" if passed else "nothing to judge"


def broken(config: dict[str, Any], package: str) -> str:
    """Break one package; return the layers that KC301 names."""
    code, report, error = verified(config, "--select", "KC301", hidden=package)
    if report is None:
        return f"{package}: exit {code}, {error}"
    found = [one["message"].split(":")[0] for one in report["outcomes"] if one["status"] == "failed"]
    return f"{package}: exit {code}, {'; '.join(found) or 'nothing'}"


def row(folder: str, made: dict[str, Any]) -> tuple[str, ...]:
    """Judge one folder; return its row."""
    started = time.monotonic()
    code, report, error = verified(made["config"], *STAGES)
    if report is None:
        return (folder, "", "", error, "", "", str(code), "", f"{time.monotonic() - started:.0f}")
    seen = report["snapshot"]["job"]["model"]
    kinds = {kind: seen["layer_types"].count(kind) for kind in dict.fromkeys(seen["layer_types"])}
    layers = ", ".join(f"{count} {kind}" for kind, count in kinds.items())
    ops = ", ".join(sorted({one["op"].rpartition(":")[2] for one in seen["required"] if one["training"]}))
    parts = [family(report, prefix) for prefix in ("KC3", "KC5", "KC6")]
    hidden = "; ".join(broken(made["config"], package) for package in made["packages"])
    return (folder, layers, ops, *parts, str(code), hidden, f"{time.monotonic() - started:.0f}")


def table(only: set[str]) -> str:
    """Judge all folders, print each row as it comes, and return the whole table."""
    lines = ["| " + " | ".join(HEADS) + " |", "|" + "---|" * len(HEADS)]
    print("\n".join(lines), flush=True)
    for folder, made in folders().items():
        if not only or folder in only:
            lines.append(
                "| " + " | ".join(" ".join(cell.split()).replace("|", "/") for cell in row(folder, made)) + " |"
            )
            print(lines[-1], flush=True)
    return "\n".join(lines) + "\n"


def about() -> str:
    """Return what stands above the table of a page."""
    names = {"transformers": "transformers", "torch": "torch", "triton": "triton", "fla": "flash-linear-attention"}
    versions = {name: importlib.metadata.version(package) for name, package in names.items()}
    return ABOUT.format(date=time.strftime("%Y-%m-%d"), **versions)


def main() -> None:
    """Judge the folders; print the table and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="")
    parser.add_argument("--page", type=Path)
    asked = parser.parse_args()
    made = table({name for name in asked.only.split(",") if name})
    if asked.page:
        asked.page.write_text(f"{about()}\n{made}", encoding="utf-8")


if __name__ == "__main__":
    main()
