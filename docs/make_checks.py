"""Write docs/checks.md from the checks' own pages: the text that `kerncheck explain` prints."""

from __future__ import annotations

from pathlib import Path

from kerncheck.checks.registry import FAMILIES, all_checks


def main() -> None:
    """Write the file beside this script."""
    lines = ["# Checks", "", "Made by `python docs/make_checks.py`; `kerncheck explain CODE` prints the same text.", ""]
    family = ""
    for check in all_checks():
        if check.family != family:
            family = check.family
            lines += [f"# {family}xx {FAMILIES[family]}", ""]
        lines += [f"## {check.code} {check.title}", "", "```text", check.page, "```", ""]
    Path(__file__).with_name("checks.md").write_text("\n".join(lines))


if __name__ == "__main__":
    main()
