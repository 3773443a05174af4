"""Keep the user's name out of everything that kerncheck writes."""

from __future__ import annotations

import functools
import os
import re


@functools.cache
def _patterns() -> tuple[tuple[re.Pattern[str], str], ...]:
    home = os.path.expanduser("~").rstrip("/")  # noqa: PTH111 - a string is wanted
    user = os.environ.get("USER") or os.environ.get("LOGNAME") or os.path.basename(home)  # noqa: PTH119
    patterns = [(re.compile(re.escape(home) + r"(?=[/\"':,\s\\]|$)"), "~")] if home else []
    if user and user != "root":
        patterns.append((re.compile(r"(?<=/)" + re.escape(user) + r"(?=[/\"':,\s\\]|$)"), "USER"))
    return tuple(patterns)


def redacted(text: str) -> str:
    """Replace the home directory by ``~`` and the user's name in other paths by ``USER``."""
    for pattern, replacement in _patterns():
        text = pattern.sub(replacement, text)
    return text
