"""The marks of tests that need an NVIDIA GPU."""

from __future__ import annotations

import pytest


def gpus() -> int:
    """Return the number of NVIDIA GPUs, without torch."""
    import pynvml

    try:
        pynvml.nvmlInit()
        return int(pynvml.nvmlDeviceGetCount())
    except pynvml.NVMLError:
        return 0


MARKS = [pytest.mark.gpu, pytest.mark.torch, pytest.mark.skipif(not gpus(), reason="needs an NVIDIA GPU")]
