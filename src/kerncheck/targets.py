"""Resolve ``--target`` and ``--driver``: the GPUs and the driver of the nodes that an image is meant for."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable

from kerncheck.catalog import Catalog, capability
from kerncheck.errors import UsageError
from kerncheck.model.job import Target
from kerncheck.model.releases import GpuModel

DRIVER = re.compile(r"[3-9]\d{2}(\.\d{1,4}){0,2}")
"""A branch (``580``) or a whole version (``580.65.06``); NVIDIA's branches have had three digits since 2014."""

SHOWN = 60  # characters of a wrong argument that a message repeats


def parse_targets(texts: Iterable[str], catalog: Catalog) -> tuple[Target, ...]:
    """Return the GPUs that ``--target`` names, each once, in the order given.

    Each is ``sm_90``, ``9.0`` or a GPU's name from ``gpus.toml`` in any case (``h200``, ``NVIDIA H200``). Raises
    UsageError for what is none of these, with the names nearest to it.
    """
    found = (parse_target(text, catalog) for text in texts)
    return tuple({(target.cc, target.name): target for target in found}.values())


def parse_target(text: str, catalog: Catalog) -> Target:
    """Return one GPU, by its capability or by its name."""
    cc = capability(text)
    if cc and cc in capabilities(catalog):
        return Target(text=text, cc=cc)
    gpu = None if cc else named(text, catalog)
    if gpu is None:
        raise unknown(text, catalog)
    return Target(text=text, cc=gpu.cc, name=gpu.name)


def capabilities(catalog: Catalog) -> set[str]:
    """Return every compute capability that a GPU of ``gpus.toml`` has or a toolkit of ``cuda.toml`` compiles for."""
    numbers = {number for toolkit in catalog.cuda.toolkit for number in toolkit.arch}
    return {gpu.cc for gpu in catalog.gpus.gpu} | {f"{number // 10}.{number % 10}" for number in numbers}


def named(text: str, catalog: Catalog) -> GpuModel | None:
    """Return the GPU of this name; neither case nor blanks nor the word GeForce need be right (``rtx4090``)."""
    exact = catalog.gpu(text) or catalog.gpu(f"GeForce {text}")
    wanted = squeezed(text)
    return exact or next((gpu for gpu in catalog.gpus.gpu if squeezed(gpu.name) == wanted), None)


def squeezed(name: str) -> str:
    """Return the letters and digits of a name, without the words that users leave out."""
    return re.sub(r"nvidia|geforce|tesla|[^a-z0-9]", "", name.casefold())


def unknown(text: str, catalog: Catalog) -> UsageError:
    """Return the error for a text that names no GPU."""
    shown = repr(text if len(text) <= SHOWN else text[: SHOWN - 3] + "...")
    near = near_names(text, catalog)
    hint = f"did you mean {' or '.join(near)}?" if near else "write sm_90, 9.0 or a GPU's name such as h200"
    return UsageError(f"--target {shown}: no GPU of this name or capability is known", hint)


def near_names(text: str, catalog: Catalog) -> list[str]:
    """Return up to three names or capabilities that look like a text."""
    codes = [f"sm_{cc.replace('.', '')}" for cc in sorted(capabilities(catalog), key=float)]
    words = {squeezed(gpu.name): gpu.name for gpu in catalog.gpus.gpu} | {code: code for code in codes}
    wanted = f"sm_{capability(text).replace('.', '')}" if capability(text) else squeezed(text[:SHOWN])
    return [words[word] for word in difflib.get_close_matches(wanted, words, n=3, cutoff=0.7)]


def parse_driver(text: str | None) -> str:
    """Return the driver that the nodes have, empty where none is declared.

    Raises:
        UsageError: the text is neither a branch (``580``) nor a version (``580.65.06``).

    """
    if text is None:
        return ""
    if not DRIVER.fullmatch(text.strip()):
        raise UsageError(f"--driver {text[:SHOWN]!r} is no driver version", "write a branch such as 580, or 580.65.06")
    return text.strip()
