#!/usr/bin/env python3
"""nvcc with fewer architectures: drops every ``-gencode`` pair whose code is not in KEEP (``sm_80,sm_90``).

causal-conv1d 1.7.0 writes nine architectures into its own nvcc flags, so that TORCH_CUDA_ARCH_LIST changes nothing.
Two of them build in a fraction of the time. Set PYTORCH_NVCC to this file and NVCC to the real compiler.
"""

from __future__ import annotations

import os
import sys


def kept(arguments: list[str], keep: set[str]) -> list[str]:
    """Return the arguments without the unwanted pairs ``-gencode arch=...,code=...``."""
    left: list[str] = []
    index = 0
    while index < len(arguments):
        pair = arguments[index : index + 2]
        if pair[0] in ("-gencode", "--generate-code") and len(pair) == 2:
            left += pair if pair[1].rpartition("code=")[2] in keep else []
            index += 2
        else:
            wanted = not pair[0].startswith(("-gencode=", "--generate-code=")) or pair[0].rpartition("code=")[2] in keep
            left += [pair[0]] if wanted else []
            index += 1
    return left


if __name__ == "__main__":
    nvcc = os.environ.get("NVCC", "nvcc")
    os.execvp(nvcc, [nvcc, *kept(sys.argv[1:], set(os.environ["KEEP"].split(",")))])  # noqa: S606 - a compiler wrapper
