"""Write docs/checks.md from the checks' own pages, and the JSON schema of reports from its types."""

from __future__ import annotations

import json
from pathlib import Path

from kerncheck.checks.registry import FAMILIES, all_checks
from kerncheck.formats.json import schema


def main() -> None:
    """Write both beside this script."""
    lines = ["# Checks", "", "Made by `python docs/make_checks.py`; `kerncheck explain CODE` prints the same text.", ""]
    family = ""
    for check in all_checks():
        if check.family != family:
            family = check.family
            lines += [f"# {family}xx {FAMILIES[family]}", ""]
        lines += [f"## {check.code} {check.title}", "", "```text", check.page, "```", ""]
    here = Path(__file__)
    here.with_name("checks.md").write_text("\n".join(lines))
    here.with_name("report-v1.schema.json").write_text(json.dumps(schema(), indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
