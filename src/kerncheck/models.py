"""Resolve ``--model``: a known name, a config.json or its directory, or a model that lies in the local hub cache.

Nothing is downloaded and nothing of the model is run: a configuration is data. What a model needs follows from its
layer types, not from its name.
"""

from __future__ import annotations

import difflib
import json
import os
import re
from pathlib import Path
from typing import Any

from kerncheck.catalog import Catalog
from kerncheck.errors import UsageError
from kerncheck.layer_types import layer_types
from kerncheck.model.job import ModelRequest, RequiredOp
from kerncheck.model.layers import needs_seam
from kerncheck.model.matrix import ModelProfile

LARGEST_CONFIG = 16 * 1024 * 1024
"""Bytes. The largest published configurations hold some hundred kilobytes (vocabulary maps)."""

HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}")

DECODING = (
    "causal_conv1d_update",
    "fused_recurrent_gated_delta_rule",
    "fused_recurrent_kda",
    "recurrent_gated_delta_rule",
    "selective_state_update",
)
"""Ops for one more token of a sequence that is in a cache: no training step calls them (transformers 5.15 to 5.24,
modelling code: each stands behind ``cache is not None and seq_len == 1`` or its like)."""


def resolve(text: str, catalog: Catalog) -> ModelRequest:
    """Return the model that a user means by ``--model TEXT``.

    A known name comes first, then a path that exists, then ``org/name`` in the local hub cache (HF_HUB_CACHE, HF_HOME,
    ~/.cache/huggingface/hub). Raises UsageError, which says how to go on.
    """
    profile = catalog.model(text)
    if profile is not None:
        return profile.request()
    path = Path(text).expanduser()
    if exists(path):
        return from_file(path / "config.json" if path.is_dir() else path, catalog, name=text)
    if HUB_NAME.fullmatch(text):
        return from_file(cached_config(text), catalog, name=text)
    raise unknown(text, catalog)


def exists(path: Path) -> bool:
    """Tell whether a path can be seen; one that cannot even be a path (too long, a null byte) does not exist."""
    try:
        return path.exists()
    except (OSError, ValueError):
        return False


def unknown(text: str, catalog: Catalog) -> UsageError:
    """Return the error for a text that is neither a name, nor a path, nor a hub name."""
    shown = text if len(text) <= 80 else text[:77] + "..."
    if text.endswith(".json") or text.startswith((".", "/", "~")):
        return UsageError(f"--model {shown}: no such file or directory")
    names = sorted({name for profile in catalog.models for name in (profile.name, *profile.aliases)})
    near = difflib.get_close_matches(text.casefold(), names, n=1)
    hint = f"did you mean {near[0]}?" if near else f"known names: {', '.join(names)}"
    return UsageError(f"--model {shown}: no model of this name is known", f"{hint}; or give a config.json")


def cached_config(name: str) -> Path:
    """Return the config.json of ``org/name`` in the local hub cache: that of ``main``, else of the newest snapshot."""
    folder = hub_cache() / f"models--{name.replace('/', '--')}"
    for revision in revisions(folder):
        config = folder / "snapshots" / revision / "config.json"
        if config.is_file():
            return config
    raise UsageError(
        f"--model {name} is not in the local hub cache ({hub_cache()})",
        f"kerncheck never downloads; run: hf download {name} config.json, or give the path of a config.json",
    )


def hub_cache() -> Path:
    """Return the directory of the hub cache, as huggingface_hub finds it."""
    for variable in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
        if os.environ.get(variable):
            return Path(os.environ[variable]).expanduser()
    base = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "huggingface"
    return Path(os.environ.get("HF_HOME") or base).expanduser() / "hub"


def revisions(folder: Path) -> list[str]:
    """Return the snapshots of a cached model, the one that ``main`` names first, then the newest."""
    try:
        named = [(folder / "refs" / "main").read_text(encoding="utf-8").strip()]
    except (OSError, UnicodeDecodeError):
        named = []
    snapshots = [path for path in (folder / "snapshots").glob("*") if path.is_dir()]
    newest = sorted(snapshots, key=lambda path: (-path.stat().st_mtime, path.name))
    return [name for name in named if name and "/" not in name] + [path.name for path in newest]


def from_file(path: Path, catalog: Catalog, *, name: str) -> ModelRequest:
    """Read a config.json as a request."""
    config = read_config(path)
    nested = config.get("text_config")
    inner = nested if isinstance(nested, dict) and isinstance(nested.get("model_type"), str) else config
    types = (str(inner["model_type"]), str(config["model_type"]))
    profile = profile_for(types, catalog)
    layers = layer_types(nested if isinstance(nested, dict) else config)
    folder = profile.folder if profile else folder_of(types, catalog)
    architectures = config.get("architectures")
    named = architectures[0] if isinstance(architectures, list) and architectures else ""
    return ModelRequest(
        name=name,
        folder=folder,
        architecture=profile.architecture if profile else str(named),
        config=inner,
        layer_types=layers,
        required=required_ops(types, layers, catalog),
        shrink=profile.shrink if profile else {},
        origin=str(path),
    )


def profile_for(model_types: tuple[str, ...], catalog: Catalog) -> ModelProfile | None:
    """Return the profile that speaks for one of these model types, the first one first."""
    return next((found for kind in model_types if (found := catalog.model_for_type(kind))), None)


def required_ops(
    model_types: tuple[str, ...], layers: tuple[str, ...], catalog: Catalog, folder: str = ""
) -> tuple[RequiredOp, ...]:
    """Return the ops that layers of these kinds need: as the profile says, else what the folder's seams bind."""
    profile = profile_for(model_types, catalog)
    if profile:
        required = profile.required
    else:
        required = required_by_rows(folder or folder_of(model_types, catalog), layers, catalog)
    return tuple(op for op in required if not layers or op.layer_type in ("", *layers))


def read_config(path: Path) -> dict[str, Any]:
    """Return the configuration in a file. Raises UsageError for whatever is not a model's configuration."""
    try:
        size = path.stat().st_size
        if size > LARGEST_CONFIG:
            raise UsageError(f"--model {path}: {size:,} bytes are too many for a configuration")
        config = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"--model {path}: cannot be read ({error.strerror})") from error
    except (ValueError, RecursionError) as error:
        raise UsageError(f"--model {path}: not JSON ({type(error).__name__}: {str(error)[:120]})") from error
    if not isinstance(config, dict):
        raise UsageError(f"--model {path}: a configuration is a JSON object, this is a {type(config).__name__}")
    if not isinstance(config.get("model_type"), str) or not config["model_type"]:
        raise UsageError(f"--model {path}: no model_type in it", "give the config.json of a transformers model")
    return config


def folder_of(model_types: tuple[str, ...], catalog: Catalog) -> str:
    """Return the model folder of transformers: the one with known seams, else the outer model type itself."""
    bases = [kind.removesuffix("_text").replace("-", "_") for kind in model_types]
    folder = next((base for base in bases if catalog.seam_rows(base)), bases[-1] if bases else "")
    return folder if folder.isidentifier() else ""


def required_by_rows(folder: str, layers: tuple[str, ...], catalog: Catalog) -> tuple[RequiredOp, ...]:
    """Return the ops that the seams of a folder bind, for each kind of layer that calls seams."""
    row = catalog.seam_rows(folder)
    kinds = sorted({kind for kind in layers if needs_seam(kind)}) if layers else [""]
    return tuple(
        RequiredOp(
            op=seam.op,
            layer_type=kind,
            training=not decodes(seam.op),
            why=f"bound by a seam of transformers' {folder} code",
        )
        for kind in kinds
        for seam in (row.seams if row else ())
    )


def decodes(op: str) -> bool:
    """Tell whether an op only serves decoding from a cache."""
    return op.rpartition(":")[2] in DECODING
