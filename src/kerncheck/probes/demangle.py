"""Readable names of C++ symbols, by libstdc++'s own demangler, else by c++filt. Standard library only."""

from __future__ import annotations

import ctypes
import re
import subprocess
from collections.abc import Callable, Iterable

MANGLED = re.compile(r"\b_Z\w+")
LIBRARIES = ("libstdc++.so.6", "libc++abi.so.1")


def demangle(names: Iterable[str]) -> dict[str, str]:
    """Return the readable name of each C++ symbol that can be read; the others are left out."""
    wanted = sorted({name for name in names if name.startswith("_Z")})
    if not wanted:
        return {}
    by_library = library_demangler()
    found = {name: by_library(name) for name in wanted} if by_library else by_tool(wanted)
    return {name: text for name, text in found.items() if text and text != name}


def demangle_in(text: str) -> dict[str, str]:
    """Return the readable names of the C++ symbols that a message holds."""
    return demangle(MANGLED.findall(text))


def library_demangler() -> Callable[[str], str] | None:
    """Return a function that asks ``__cxa_demangle`` (Itanium C++ ABI), or None where no library exports it."""
    for name in LIBRARIES:
        try:
            function = getattr(ctypes.CDLL(name), "__cxa_demangle")
        except (OSError, AttributeError):
            continue
        function.restype = ctypes.c_void_p
        function.argtypes = [ctypes.c_char_p, ctypes.c_char_p, ctypes.c_void_p, ctypes.POINTER(ctypes.c_int)]
        return lambda symbol: ask(function, symbol)
    return None


def ask(function: Callable[..., int | None], symbol: str) -> str:
    """Demangle one symbol; "" for what is none. The library allocates the answer, which is freed here."""
    status = ctypes.c_int(0)
    address = function(symbol.encode(), None, None, ctypes.byref(status))
    if not address:
        return ""
    text = ctypes.string_at(address).decode(errors="replace")
    free = ctypes.CDLL(None).free
    free.argtypes, free.restype = [ctypes.c_void_p], None
    free(address)
    return text


def by_tool(symbols: list[str]) -> dict[str, str]:
    """Demangle with binutils' c++filt; nothing without it."""
    try:
        done = subprocess.run(
            ["c++filt"], input="\n".join(symbols), capture_output=True, check=False, text=True, timeout=10
        )
    except (OSError, subprocess.SubprocessError):
        return {}
    lines = done.stdout.splitlines()
    return dict(zip(symbols, lines, strict=True)) if done.returncode == 0 and len(lines) == len(symbols) else {}
