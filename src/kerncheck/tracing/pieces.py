"""Cut a trace file into pieces of whole events, so that no more of it than one piece is ever in memory.

A piece ends behind an event of ``traceEvents``. Where that is gets guessed from the text and proved by decoding: a
wrong guess lies inside a string or inside brackets, and then what stands before it is no valid JSON. When guesses fail
the brackets are counted, which is slower and never wrong.
"""

from __future__ import annotations

import gzip
import re
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any, cast

import msgspec

from kerncheck.errors import UsageError

PIECE = 2**18
"""Bytes that are decoded at once, about 900 events. Pieces that leave the processor's cache cost more: of 2**17 to
2**23 bytes this was the fastest, and 2**23 took 1.7 times as long (545,615 events, benchmarks/trace_scale.py)."""
MOST_EVENT = 256 * 2**20
"""Bytes in which an event must end; also the most that may stand before or behind the events."""
MOST_FILE = 64 * 2**30
"""Bytes, decompressed. The largest trace in a public report had 2.2 GB (pytorch/kineto#595)."""
GUESSES = 3

KEY = re.compile(rb'"traceEvents"\s*:\s*\[')
SPLIT = re.compile(rb"\}\s*,(?=\s*\{)")
TOKEN = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|[{}\[\]]', re.DOTALL)
COMMA = re.compile(rb"\s*,")

Decode = Callable[[bytes], Any]


class Pieces:
    """The events of one file, piece by piece, and afterwards its head. Every fault is a UsageError of one line."""

    def __init__(self, path: Path, decode: Decode) -> None:
        self.path = path
        self.head: dict[str, Any] = {}
        self.bare = False  # whether the file is a list of events and nothing else
        self._decode = decode
        self._done = 0  # bytes of the file that lie before the buffer
        self._started = False

    def __iter__(self) -> Iterator[Any]:
        """Yield what ``decode`` makes of ``[event, event, ...]``, piece by piece."""
        try:
            with opened(self.path) as file:
                yield from self._pieces(file)
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise UsageError(f"{self.path}: broken gzip file ({error})") from None
        except OSError as error:
            raise UsageError(f"{self.path}: {error.strerror or error}") from None

    def _pieces(self, file: IO[bytes]) -> Iterator[Any]:
        buffer = b""
        while block := file.read(max(PIECE, len(buffer))):
            buffer = buffer + block if buffer else block
            if not self._started:
                buffer = self._begin(buffer)
            if self._started:
                cut, decoded = self._whole(buffer)
                if decoded is not None:
                    yield decoded
                self._done += cut
                buffer = buffer[cut:]
            self._bounded(buffer)
        yield from self._end(buffer)

    def _bounded(self, buffer: bytes) -> None:
        if len(buffer) > MOST_EVENT:
            raise self._fault(f"no event ends within {MOST_EVENT >> 20} MiB", 0)
        if self._done > MOST_FILE:
            raise self._fault(f"more than {MOST_FILE >> 30} GiB", 0)

    def _begin(self, buffer: bytes) -> bytes:
        """Find where the events begin: behind the key at the top level, or at the bracket of a plain array."""
        text = buffer.lstrip(b"\xef\xbb\xbf \t\r\n")
        if text[:1] == b"[":
            self.bare = True
            return self._start(buffer, buffer.index(b"[") + 1)
        for number, match in enumerate(KEY.finditer(buffer)):
            if number == GUESSES:
                break
            before = buffer[: match.start()].removeprefix(b"\xef\xbb\xbf")
            try:
                self.head = msgspec.json.decode(before + b'"traceEvents":0}', type=dict[str, Any])
            except (msgspec.DecodeError, RecursionError):
                continue
            return self._start(buffer, match.end())
        return buffer

    def _start(self, buffer: bytes, at: int) -> bytes:
        self._started = True
        self._done = at
        return buffer[at:]

    def _whole(self, buffer: bytes) -> tuple[int, Any]:
        """Return how many bytes the whole events at the start of the buffer take, and them, decoded; or 0, None."""
        for end, cut in guesses(buffer):
            try:
                return cut, self._decode(b"".join((b"[", memoryview(buffer)[:end], b"]")))
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                continue
        end, cut = last_whole(buffer)
        return (cut, self._decoded(buffer[:end])) if cut else (0, None)

    def _decoded(self, events: bytes) -> Any:  # noqa: ANN401 - whatever ``decode`` makes
        try:
            return self._decode(b"[" + events + b"]")
        except RecursionError:
            raise self._fault("nested too deeply", 0) from None
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            place = re.search(r"\(byte (\d+)\)", str(error))
            what = re.sub(r"^JSON is malformed: | \(byte \d+\)$", "", str(error))
            raise self._fault(what, int(place[1]) - 1 if place else 0) from None

    def _end(self, buffer: bytes) -> Iterator[Any]:
        """Yield the last events and read what stands behind them."""
        if not self._started:
            raise self._not_a_trace(buffer)
        end, behind = closing(buffer)
        if end < 0:
            self._decoded(whole_part(buffer))
            raise self._fault("the file ends inside of its events: it is truncated", len(buffer))
        yield self._decoded(buffer[:end])
        self._tail(buffer[behind:], behind)

    def _tail(self, tail: bytes, behind: int) -> None:
        text = tail.strip()
        if self.bare and not text:
            return
        try:
            self.head |= msgspec.json.decode(b'{"traceEvents":0' + text, type=dict[str, Any])
        except (msgspec.DecodeError, RecursionError):
            raise self._fault("behind its events the file is truncated or not valid JSON", behind) from None
        if self.head.pop("traceEvents") != 0:
            raise self._fault("it holds a second list traceEvents", behind)

    def _not_a_trace(self, buffer: bytes) -> UsageError:
        if not buffer.strip():
            return UsageError(f"{self.path}: the file is empty")
        try:
            msgspec.json.decode(buffer)
        except RecursionError:
            return self._fault("nested too deeply", 0)
        except msgspec.DecodeError as error:
            return UsageError(f"{self.path}: not valid JSON: {error}")
        hint = "give a trace of torch.profiler (export_chrome_trace)"
        return UsageError(f"{self.path}: no profiler trace: it has no list traceEvents", hint)

    def _fault(self, what: str, at: int) -> UsageError:
        return UsageError(f"{self.path}: not a readable trace: {what} (near byte {self._done + at})")


def opened(path: Path) -> IO[bytes]:
    """Open a file, through gzip if it begins like one, whatever its name says."""
    with path.open("rb") as file:
        packed = file.read(2) == b"\x1f\x8b"
    return cast("IO[bytes]", gzip.open(path, "rb")) if packed else path.open("rb")


def guesses(buffer: bytes) -> Iterator[tuple[int, int]]:
    """Yield (end of the last whole event, behind its comma), the likeliest first."""
    for window in (2**13, 2**16, 2**20, len(buffer)):
        found = list(SPLIT.finditer(buffer, max(0, len(buffer) - window)))[-GUESSES:]
        if found:
            yield from ((match.start() + 1, match.end()) for match in reversed(found))
            return


def last_whole(buffer: bytes) -> tuple[int, int]:
    """Count brackets from the start of an event; return (end of the last whole event, behind its comma), or zeros."""
    depth = end = cut = 0
    for token in TOKEN.finditer(buffer):
        mark = token[0]
        if mark in (b"{", b"["):
            depth += 1
        elif mark in (b"}", b"]"):
            depth -= 1
            if depth < 0:
                break
            if depth == 0:
                comma = COMMA.match(buffer, token.end())
                if comma:
                    end, cut = token.end(), comma.end()
    return end, cut


def whole_part(buffer: bytes) -> bytes:
    """Return the events of a truncated buffer that are whole."""
    return buffer[: last_whole(buffer)[0]]


def closing(buffer: bytes) -> tuple[int, int]:
    """Return (end of the last event, behind the bracket that closes the events) by counting brackets, or -1, -1."""
    depth = 0
    for token in TOKEN.finditer(buffer):
        mark = token[0]
        if mark in (b"{", b"["):
            depth += 1
        elif mark in (b"}", b"]"):
            depth -= 1
            if depth < 0:
                return (token.start(), token.end()) if mark == b"]" else (-1, -1)
    return -1, -1
