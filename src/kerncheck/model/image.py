"""What is known of images: the rows of ``matrices/image.toml``, typed."""

from __future__ import annotations

from kerncheck.model.base import Frozen
from kerncheck.model.matrix import Known
from kerncheck.model.outcome import Severity


class BuildMessage(Known):
    """What a C compiler says, as a regular expression, and what that means for an image."""

    text: str
    means: str
    remedy: str


class Capability(Known):
    """One of the driver's capabilities that a container must ask for, and what it brings."""

    name: str
    brings: str
    severity: Severity


class Hidden(Known):
    """A value of NVIDIA_VISIBLE_DEVICES that hides every GPU."""

    value: str


class ImageFile(Frozen):
    """``image.toml``."""

    build: tuple[BuildMessage, ...]
    capability: tuple[Capability, ...]
    hidden: tuple[Hidden, ...]
