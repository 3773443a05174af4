"""Compare the reader of fat binaries with NVIDIA's cuobjdump on real libraries; write the table into a document.

    python benchmarks/compare_cuobjdump.py --cuobjdump PATH --write docs/binaries.md LIBRARY_OR_WHEEL...

A wheel is searched for shared objects of at least 100 KB that hold GPU code; each is unpacked, read by both, and
removed. cuobjdump is in the package nvidia-cuda-cuobjdump. Exit 1 if the two differ on any library.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from kerncheck.probes.device_code import device_code
from kerncheck.probes.elf_format import BadFileError, Image

LISTED = re.compile(r"\.sm_(?P<arch>\d+)(?P<suffix>[af]?)\.(?P<kind>cubin|ptx)$")
BEGIN, END = "<!-- cuobjdump: begin -->", "<!-- cuobjdump: end -->"
SMALLEST = 100_000  # bytes of a shared object in a wheel


def libraries(given: list[str], folder: Path) -> Iterator[tuple[str, Path]]:
    """Yield (where it is from, path) of each library; those of a wheel are removed again."""
    for text in given:
        if not text.endswith(".whl"):
            yield owner(Path(text)), Path(text)
            continue
        with zipfile.ZipFile(text) as wheel:
            parts = [item for item in wheel.infolist() if re.search(r"\.so(\.|$)", item.filename)]
            for item in (part for part in parts if part.file_size >= SMALLEST):
                path = Path(wheel.extract(item, folder))
                yield "-".join(Path(text).name.split("-")[:2]), path
                path.unlink()


def owner(path: Path) -> str:
    """Return which installed distribution lists a file, by the RECORD files beside it."""
    for parent in path.parents:
        for record in parent.glob("*.dist-info/RECORD"):
            if f"{path.relative_to(parent)}," in record.read_text(errors="replace"):
                return record.parent.name.removesuffix(".dist-info")
    return str(path.parent.name)


def ours(path: Path) -> tuple[Counter[str], dict, float]:
    """Return our list in cuobjdump's words, all that was read, and the seconds that it took."""
    started = time.perf_counter()
    image = Image(str(path))
    found = device_code(image)
    seconds = time.perf_counter() - started
    image.close()
    counts: Counter[str] = Counter()
    for code in found.get("codes", []):
        family = code["suffix"] if code["kind"] == "ptx" or code["suffix"] == "a" else ""  # it shows sm_100f as sm_100
        if code["kind"] in ("cubin", "ptx"):
            counts[f"{code['kind']} {code['arch']}{family}"] += code["count"]
    return counts, found, seconds


def theirs(tool: str, path: Path) -> Counter[str] | str:
    """Return what cuobjdump lists, or why it refuses the file (it has no support left for sm_35, for example)."""
    counts: Counter[str] = Counter()
    for option in ("--list-elf", "--list-ptx"):
        done = subprocess.run([tool, option, str(path)], capture_output=True, text=True, check=False)
        refused = re.search(r"cuobjdump fatal\s*: (.*)", done.stdout + done.stderr)
        if refused:
            return refused[1].replace(str(path), path.name)
        for match in filter(None, map(LISTED.search, done.stdout.splitlines())):
            counts[f"{match['kind']} {match['arch']}{match['suffix']}"] += 1
    return counts


def row(tool: str, source: str, path: Path) -> tuple[str, bool | None] | None:
    """Return one line of the table and whether both agree (None: cuobjdump refuses); None without GPU code."""
    try:
        mine, found, seconds = ours(path)
    except BadFileError as error:
        return f"| {source} | `{path.name}` | {error} | | | | | |", False
    if not found.get("sections"):
        return None
    other = theirs(tool, path)
    agree = None if isinstance(other, str) else mine == other
    packed = sum(code["compressed"] for code in found["codes"])
    cubins = sum(count for name, count in mine.items() if name.startswith("cubin"))
    total = sum(code["count"] for code in found["codes"])
    archs = " ".join(sorted({name.partition(" ")[2] for name in mine}, key=lambda text: int(text.rstrip("af"))))
    answer = "yes" if agree else f"it refuses: {other}" if isinstance(other, str) else differs(mine, other)
    cells = (source, f"`{path.name}`", f"{path.stat().st_size / 1e6:.1f}", str(found["images"]), str(cubins))
    cells += (str(sum(mine.values()) - cubins), f"{packed} of {total}", archs, f"{1000 * seconds:.0f}", answer)
    return "| " + " | ".join(cells) + " |", agree


def differs(mine: Counter[str], other: Counter[str]) -> str:
    """Return what only one of the two lists."""
    return f"no: {dict(mine - other)} against {dict(other - mine)}"


def main() -> int:
    """Compare, print and write the table."""
    options = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    options.add_argument("--cuobjdump", default=shutil.which("cuobjdump") or "cuobjdump")
    options.add_argument("--write", type=Path)
    options.add_argument("libraries", nargs="+")
    given = options.parse_args()
    version = subprocess.run([given.cuobjdump, "--version"], capture_output=True, text=True, check=True).stdout
    release = re.search(r"V([\d.]+)", version)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for source, path in libraries(given.libraries, Path(folder)):
            found = row(given.cuobjdump, source, path)
            if found is not None:
                rows.append(found)
                print(found[0], flush=True)
    told = [agree for _, agree in rows if agree is not None]
    refused = len(rows) - len(told)
    summary = f"cuobjdump {release[1] if release else '?'}: {sum(told)} of {len(told)} libraries agree"
    summary += f"; it refuses {refused} more." if refused else "."
    print(summary)
    heading = [
        "| from | library | MB | fat binaries | cubins | PTX | compressed | architectures | ms | agree |",
        "|" + "---|" * 10,
    ]
    if given.write:
        text = given.write.read_text()
        start, end = text.index(BEGIN) + len(BEGIN), text.index(END)
        table = "\n".join((*heading, *(line for line, _ in rows)))
        given.write.write_text(f"{text[:start]}\n{summary}\n\n{table}\n{text[end:]}")
    return 0 if all(told) else 1


if __name__ == "__main__":
    sys.exit(main())
