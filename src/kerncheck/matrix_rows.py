"""The rows of the nox matrix: read from TOML, told what to install and run, judged, and shown in one table.

A row is one ``[[tested]]`` table, of matrices/tested.toml or of a file of the user's own:

    [[tested]]
    id = "triton-3.9"                  # names its session: nox -s "matrix(triton-3.9)"
    device = "emulate"                 # "cuda": needs a GPU, and is not run where there is none
    python = "3.11"
    packages = { torch = "2.13.0", triton = "3.9.0", transformers = "" }   # "": the newest that pip takes
    models = ["qwen", "configs/mine"]  # what --model takes; paths are relative to the file
    options = ["--quick"]              # more options of kerncheck verify
    exit_code = 0                      # what kerncheck verify must answer for each model
    codes = []                         # of a known-bad row: exactly the codes that must be found, as errors
    may_fail = false                   # true: shown, but never counted

nox imports this from its own environment, so it needs the standard library only. A row is green when each model's run
answers exactly what is declared, red otherwise: also when a known-bad combination passes, or fails for another reason.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

Verdict = Literal["green", "red", "red, may fail", "not run here"]

FIELDS: dict[str, type] = {
    "id": str,
    "device": str,
    "python": str,
    "packages": dict,
    "models": list,
    "options": list,
    "variables": dict,
    "exit_code": int,
    "codes": list,
    "may_fail": bool,
}
REQUIRED = ("id", "device", "python", "packages")
IGNORED = ("source", "date", "note", "uncertain", "cc", "tools")
"""Fields of a row that only the catalog reads."""

FIRST = ("torch", "numpy")
SHOWN = ("torch", "triton", "transformers", "fla-core", "flash-linear-attention")


class RowError(Exception):
    """A file of rows cannot be used. The message names the file and the row."""


@dataclass(frozen=True)
class Row:
    """One row; ``folder`` is where its file lies."""

    id: str
    device: str
    python: str
    packages: dict[str, str]
    models: tuple[str, ...] = ("qwen",)
    options: tuple[str, ...] = ()
    variables: dict[str, str] = field(default_factory=dict)
    exit_code: int = 0
    codes: tuple[str, ...] = ()
    may_fail: bool = False
    folder: Path = Path()

    @property
    def needs_gpu(self) -> bool:
        """Whether the row can only be run beside a GPU."""
        return self.device == "cuda"

    @property
    def expected(self) -> str:
        """What is declared, in words."""
        return f"exit {self.exit_code}" + (f": {', '.join(self.codes)}" if self.codes else "")


@dataclass(frozen=True)
class Seen:
    """What one run of ``kerncheck verify`` answered: exit code, the codes found as errors, and what was installed."""

    exit_code: int
    codes: tuple[str, ...] = ()
    versions: dict[str, str] = field(default_factory=dict)
    sentence: str = ""


@dataclass(frozen=True)
class Result:
    """One row with its verdict. ``found`` is in words; ``versions`` are those that were installed."""

    row: Row
    verdict: Verdict
    found: str
    versions: dict[str, str] = field(default_factory=dict)
    seconds: float = 0.0


# Reading


def load(path: Path) -> tuple[Row, ...]:
    """Return the rows of a file. Raises RowError for whatever is no file of rows, or has a name twice."""
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8")).get("tested")
    except (OSError, ValueError) as error:
        raise RowError(f"{path}: cannot be read ({error})") from error
    if not isinstance(tables, list) or not tables:
        raise RowError(f"{path}: no [[tested]] table in it")
    rows = tuple(row_of(table, number, path) for number, table in enumerate(tables, 1))
    names = [row.id for row in rows]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise RowError(f"{path}: two rows have the id {twice[0]!r}")
    return rows


def row_of(table: dict[str, Any], number: int, path: Path) -> Row:
    """Return one row of a file."""
    problem = next(problems(table), "")
    if problem:
        raise RowError(f"{path}: tested {number} (id {table.get('id', '')!r}): {problem}")
    given: dict[str, Any] = {name: value for name, value in table.items() if name in FIELDS}
    lists = {name: tuple(value) for name, value in given.items() if isinstance(value, list)}
    return Row(**{**given, **lists, "folder": path.resolve().parent})


def problems(table: dict[str, Any]) -> Iterator[str]:
    """Yield what is wrong with a row."""
    yield from (f"the field {name!r} is absent" for name in REQUIRED if not table.get(name))
    yield from (f"{name!r} is no field of a row" for name in table if name not in FIELDS and name not in IGNORED)
    for name, kind in FIELDS.items():
        value = table.get(name)
        if value is not None and type(value) is not kind:
            yield f"{name!r} is a {type(value).__name__}, not a {kind.__name__}"
    if table.get("device") not in ("emulate", "cuda"):
        yield "device is neither 'emulate' nor 'cuda'"
    if bool(table.get("codes")) != (table.get("exit_code", 0) == 1):
        yield "exit_code 1 and codes belong together: a known-bad row says why it is bad"


# What to install and to run


def installs(row: Row, torch: str = "") -> tuple[tuple[str, ...], ...]:
    """Return the arguments of each pip install, in order; torch comes first and alone, so that no other build comes.

    The packages of a known-bad row are installed one by one: pip refuses some such combinations when it sees the whole.
    ``torch`` is a requirement that takes the place of the row's own (KERNCHECK_TORCH); emulated rows need any build.
    """
    own = {name: f"{name}=={version}" if version else name for name, version in row.packages.items()}
    if torch and not row.needs_gpu:
        own["torch"] = torch
    first = tuple(own.get(name, name) for name in FIRST)
    others = tuple(requirement for name, requirement in own.items() if name not in FIRST)
    newest = () if all(row.packages.values()) else ("--upgrade",)  # what an earlier run left there is not the newest
    return (first, *((*newest, other) for other in others)) if row.codes else (first, (*newest, *others))


def verify(row: Row, model: str, report: Path) -> tuple[str, ...]:
    """Return the command that judges one model and writes its report."""
    near = row.folder / model
    named = str(near) if near.exists() else model
    return (
        *("kerncheck", "verify", "--model", named, "--device", row.device, *row.options),
        *("--format", "json", "--output", str(report)),
    )


def gpu_here() -> bool:
    """Tell whether this machine has an NVIDIA GPU."""
    return any(Path("/dev").glob("nvidia[0-9]*"))


# Judging


def seen(report: Path) -> Seen | None:
    """Read a report; None if there is none."""
    try:
        told = json.loads(report.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    failed = {item["code"] for item in told["outcomes"] if item["status"] == "failed" and item["severity"] == "error"}
    distributions = told["snapshot"]["environment"].get("distributions", [])
    versions = {item["name"]: item["version"] for item in distributions if item["name"] in SHOWN}
    return Seen(told["exit_code"], tuple(sorted(failed)), versions, told["sentence"])


def judge(row: Row, answers: dict[str, Seen | None], seconds: float) -> Result:
    """Compare what each model's run answered with what the row declares."""
    known = [answer for answer in answers.values() if answer is not None]
    right = len(known) == len(answers) and all(as_declared(row, answer) for answer in known)
    found = "; ".join(dict.fromkeys(words(model, answer, row) for model, answer in answers.items()))
    return Result(row, graded(row, right=right), found, known[0].versions if known else {}, seconds)


def as_declared(row: Row, answer: Seen) -> bool:
    """Tell whether one run answered what the row declares: the exit code, and exactly the declared findings."""
    return answer.exit_code == row.exit_code and set(answer.codes) == set(row.codes)


def words(model: str, answer: Seen | None, row: Row) -> str:
    """Return what one run answered."""
    prefix = f"{model}: " if len(row.models) > 1 else ""
    if answer is None:
        return f"{prefix}no report was written"
    return f"{prefix}exit {answer.exit_code}" + (f": {', '.join(answer.codes)}" if answer.codes else "")


def graded(row: Row, *, right: bool) -> Verdict:
    """Return the verdict of a row that was run."""
    if right:
        return "green"
    return "red, may fail" if row.may_fail else "red"


def not_built(row: Row, why: str, seconds: float) -> Result:
    """Return the result of a row whose environment could not be installed."""
    return Result(row, graded(row, right=False), f"the environment could not be built: {why}", {}, seconds)


def not_run(row: Row) -> Result:
    """Return the result of a row that needs a GPU, where there is none."""
    return Result(row, "not run here", "needs an NVIDIA GPU")


# The table

HEAD = ("row", "Python", "torch", "triton", "transformers", "fla", "models", "options", "declared", "found", "s", "")


def table(results: Iterable[Result]) -> str:
    """Return all results as a Markdown table, and one line that counts them."""
    every = list(results)
    lines = [line(HEAD), line(["---"] * len(HEAD)), *(line(cells(result)) for result in every)]
    return "\n".join([*lines, "", summary(every)])


def line(texts: Iterable[str]) -> str:
    """Return one line of the table."""
    return "| " + " | ".join(text.replace("|", "/") for text in texts) + " |"


def cells(result: Result) -> tuple[str, ...]:
    """Return the cells of one row: versions as installed, else as declared."""
    row, versions = result.row, {**result.row.packages, **result.versions}
    core, models = versions.get("fla-core", ""), versions.get("flash-linear-attention", "")
    fla = f"{core or '-'}" if core == models else f"{core or '-'} (core only)" if not models else f"{core} / {models}"
    return (
        row.id,
        row.python,
        *(versions.get(name) or "newest" if name in versions else "-" for name in SHOWN[:3]),
        fla,
        ", ".join(row.models),
        " ".join(row.options) or "-",
        row.expected + (" (may fail)" if row.may_fail else ""),
        result.found,
        f"{result.seconds:.0f}",
        result.verdict,
    )


def summary(results: list[Result]) -> str:
    """Return how many rows had each verdict."""
    verdicts: tuple[Verdict, ...] = ("green", "red", "red, may fail", "not run here")
    counts = [(name, sum(result.verdict == name for result in results)) for name in verdicts]
    return (
        f"{len(results)} row{'' if len(results) == 1 else 's'}: "
        + "; ".join(f"{count} {name}" for name, count in counts if count)
        + "."
    )
