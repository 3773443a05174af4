"""Shared by all tests."""

from __future__ import annotations

import os

# Children of the tests must not leave compiled files in the environment under test.
os.environ.setdefault("PYTHONDONTWRITEBYTECODE", "1")
