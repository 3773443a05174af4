"""Where compilations are kept: a folder of our own, behind which the environment's own Triton cache is read.

A gate must not fill anybody's cache, yet what ``kerncheck warm`` put there need not be compiled again. Written against
``triton.runtime.cache.FileCacheManager`` of triton 3.7.1 and 3.9.0. Children only.
"""

from __future__ import annotations

import os
from typing import Any


def keep_in(folder: str) -> None:
    """Write to ``folder``, and read what is not there from the cache that this environment has."""
    from triton import knobs

    behind = str(knobs.cache.dir)
    os.makedirs(folder, exist_ok=True)
    knobs.cache.manager_class = reading_through(behind)
    knobs.cache.dir = folder


def fill(folder: str) -> None:
    """Read from and write to ``folder`` alone, as a node does that is told TRITON_CACHE_DIR."""
    from triton import knobs

    os.makedirs(folder, exist_ok=True)
    knobs.cache.dir = folder


def reading_through(behind: str) -> Any:
    """Return a cache manager that looks into a second folder, and never writes there."""
    from triton.runtime.cache import FileCacheManager

    class ReadingThrough(FileCacheManager):  # type: ignore[misc]
        def get_group(self, filename: str) -> Any:
            return super().get_group(filename) or self._behind().get_group(filename)

        def _behind(self) -> Any:
            manager = FileCacheManager.__new__(FileCacheManager)
            manager.key, manager.lock_path = self.key, None
            manager.cache_dir = os.path.join(behind, self.key)
            return manager

    return ReadingThrough
