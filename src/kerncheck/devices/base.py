"""What both devices share."""

from __future__ import annotations


class DeviceUnusableError(Exception):
    """The device cannot be used here at all: nothing that runs on it would be evidence. Carries the reason."""
