"""Requirements of installed distributions, as their metadata has them, for the judged interpreter."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from kerncheck.versions import parse

if TYPE_CHECKING:
    from kerncheck.model.environment import Environment


def applying(lines: Iterable[str], environment: Environment, extras: Iterable[str] = ()) -> list[Requirement]:
    """Return the requirements that hold in an environment, with canonical names; unreadable lines are passed over."""
    found = []
    for line in lines:
        try:
            requirement = Requirement(line)
        except InvalidRequirement:
            continue
        if requirement.marker is None or any(requirement.marker.evaluate(m) for m in markers(environment, extras)):
            requirement.name = canonicalize_name(requirement.name)
            found.append(requirement)
    return found


def markers(environment: Environment, extras: Iterable[str]) -> list[dict[str, str]]:
    """Return the values of environment markers (PEP 508) of the judged interpreter, once for each extra."""
    python = environment.python
    version = parse(python.version)
    base = {
        "python_full_version": python.version or "3.12.0",
        "python_version": f"{version.major}.{version.minor}" if version else "3.12",
        "platform_machine": python.machine,
        "implementation_name": python.implementation,
        "platform_python_implementation": "CPython" if python.implementation == "cpython" else python.implementation,
        "sys_platform": "linux",
        "platform_system": "Linux",
        "os_name": "posix",
    }
    return [{**base, "extra": extra} for extra in ("", *extras)]
