"""kerncheck proves that the fused kernels a model needs are installed, right and used."""

from kerncheck._version import __version__

__all__ = ["__version__"]
