"""Judge every model folder of the installed transformers that has a fused seam, each from its default configuration.

    python benchmarks/model_folders.py [--only qwen3_next,mamba2]

A folder's configuration is the one that its class makes without arguments. `kerncheck verify` shrinks it, and judges
seams, packing and one training step on the emulated device. The table is what came of it, and not what should have.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

SEAM = "use_kernel_func_from_hub_with_fallback"
LIST = f"""
import json, re
from pathlib import Path
import transformers
from transformers import CONFIG_MAPPING
root = Path(transformers.__file__).parent / "models"
found = {{}}
for file in sorted(root.glob("*/modeling_*.py")):
    if {SEAM!r} in file.read_text(errors="replace"):
        found.setdefault(file.parent.name, []).append(file.name)
made = {{}}
for folder, files in found.items():
    types = [kind for kind in CONFIG_MAPPING.keys() if CONFIG_MAPPING[kind].__module__.split(".")[-2] == folder]
    texts = [kind for kind in types if kind.endswith("_text")] or types
    try:
        config = CONFIG_MAPPING[texts[0]]()
        made[folder] = {{"type": texts[0], "config": json.loads(config.to_json_string(use_diff=False))}}
    except Exception as error:
        made[folder] = {{"type": (texts or ["?"])[0], "error": f"{{type(error).__name__}}: {{error}}"}}
print(json.dumps(made))
"""
ASKED = ("--device", "emulate", "--quick", "--packing", "both", "--select", "KC3", "--select", "KC5", "--select", "KC6")
HEADS = ("folder", "layers", "required ops", "seams", "packing (both)", "step", "exit", "seconds")


def folders() -> dict[str, Any]:
    """Return the folders with a seam and their configurations, as the interpreter's transformers makes them."""
    done = subprocess.run([sys.executable, "-c", LIST], capture_output=True, text=True, check=True)
    return dict(json.loads(done.stdout.strip().splitlines()[-1]))


def verified(config: dict[str, Any]) -> tuple[int, dict[str, Any] | None, str]:
    """Run verify on a configuration; return its exit code, its report, and what it said on stderr."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "config.json"
        path.write_text(json.dumps(config))
        command = [sys.executable, "-m", "kerncheck", "verify", "--model", str(path), *ASKED, "--format", "json"]
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ)
    report = json.loads(done.stdout) if done.stdout.startswith("{") else None
    return done.returncode, report, done.stderr.strip()[-200:]


def family(report: dict[str, Any], prefix: str) -> str:
    """Return what a family said: its findings, else how many checks passed, or why nothing was judged."""
    items = [one for one in report["outcomes"] if one["code"].startswith(prefix)]
    failed = sorted({one["code"] for one in items if one["status"] == "failed" and one["severity"] == "error"})
    passed = sum(one["status"] == "passed" for one in items)
    if failed:
        return "**" + ", ".join(failed) + "**"
    open_ = [one["message"] for one in items if one["status"] == "not_judged" and one["required"]]
    if open_:
        return f"{passed} passed; not judged: {open_[0][:70]}"
    return f"{passed} passed" if passed else "nothing to judge"


def row(folder: str, made: dict[str, Any]) -> tuple[str, ...]:
    """Judge one folder; return its row."""
    if "error" in made:
        return (folder, "", "", f"no default configuration: {made['error'][:80]}", "", "", "", "")
    started = time.monotonic()
    code, report, error = verified({**made["config"], "model_type": made["type"]})
    if report is None:
        return (folder, "", "", error.replace("|", "/"), "", "", str(code), f"{time.monotonic() - started:.0f}")
    seen = report["snapshot"]["job"]["model"]
    kinds = {kind: seen["layer_types"].count(kind) for kind in dict.fromkeys(seen["layer_types"])}
    layers = ", ".join(f"{count} {kind}" for kind, count in kinds.items())
    ops = ", ".join(sorted({one["op"].rpartition(":")[2] for one in seen["required"] if one["training"]}))
    parts = [family(report, prefix) for prefix in ("KC3", "KC5", "KC6")]
    return (folder, layers, ops, *parts, str(code), f"{time.monotonic() - started:.0f}")


def main() -> None:
    """Judge all folders and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="")
    asked = parser.parse_args()
    only = {name for name in asked.only.split(",") if name}
    print("| " + " | ".join(HEADS) + " |\n|" + "---|" * len(HEADS), flush=True)
    for folder, made in folders().items():
        if not only or folder in only:
            print("| " + " | ".join(cell.replace("|", "/") for cell in row(folder, made)) + " |", flush=True)


if __name__ == "__main__":
    main()
