"""A file that others make and that gets its name only when it is whole. Nothing is overwritten unasked."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
import weakref
from pathlib import Path


class Kept:
    """Where a trace lies while it is written and read, and where it stays. Without a target it does not stay.

    Raises FileExistsError where the target is there already, and OSError where its folder cannot be written.
    """

    def __init__(self, target: Path | None, *, overwrite: bool) -> None:
        self._target, self._overwrite = target, overwrite
        if target is not None and target.exists() and not overwrite:
            raise taken(target)
        self._folder = tempfile.mkdtemp(prefix=".kerncheck-", dir=target.parent if target else None)
        packed = target is not None and target.name.endswith(".gz")
        self.temporary = Path(self._folder) / ("trace.json.gz" if packed else "trace.json")
        weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)

    def keep(self) -> Path | None:
        """Give the file its name, and return it; None if it was not to stay.

        Raises:
            OSError: somebody else has taken the name meanwhile (FileExistsError), or the folder is not writable.

        """
        if self._target is None:
            return None
        if not self._overwrite:
            try:
                self._target.open("xb").close()  # takes the name, or fails where it is taken
            except FileExistsError:
                raise taken(self._target) from None
        os.replace(self.temporary, self._target)  # noqa: PTH105 - the pair of the line above
        return self._target

    def remove(self) -> None:
        """Remove what is temporary."""
        shutil.rmtree(self._folder, ignore_errors=True)


def taken(target: Path) -> FileExistsError:
    """Return the refusal to overwrite a file."""
    return FileExistsError(errno.EEXIST, "the file exists, and would be overwritten", str(target))
