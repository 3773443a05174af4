"""Tell on stderr what runs now and for how long: live on a terminal, plain lines elsewhere."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from typing import TextIO

from kerncheck.supervise import Progress

PLAIN_EVERY = 5.0  # seconds between plain lines about one run that goes on
SILENT_UNTIL = 2.0  # nothing that ends sooner needs progress


class Board:
    """What runs now: each run's label, its case, and since when."""

    def __init__(self) -> None:
        self.started = time.monotonic()
        self.rows: dict[str, tuple[str, float]] = {}
        self.lock = threading.Lock()

    def update(self, label: str, case: str) -> None:
        """Note that a run is at a case; an empty case ends the run."""
        with self.lock:
            if not case:
                self.rows.pop(label, None)
            elif self.rows.get(label, ("",))[0] != case:
                self.rows[label] = (case, time.monotonic())

    def text(self) -> str:
        """Return one line for all that runs."""
        now = time.monotonic()
        with self.lock:
            parts = [f"{label}: {case} ({now - since:.0f} s)" for label, (case, since) in self.rows.items()]
        return f"[{now - self.started:4.0f} s] {' | '.join(parts)}" if parts else ""


@contextlib.contextmanager
def progress_on(stream: TextIO) -> Iterator[Progress]:
    """Yield the function that a supervisor calls; stop showing progress on the way out."""
    board, done = Board(), threading.Event()
    show = show_live if stream.isatty() else show_plain
    thread = threading.Thread(target=show, args=(board, stream, done), daemon=True)
    thread.start()
    try:
        yield board.update
    finally:
        done.set()
        thread.join(timeout=2)


def show_plain(board: Board, stream: TextIO, done: threading.Event) -> None:
    """Write a line every few seconds."""
    wait = SILENT_UNTIL
    while not done.wait(wait):
        wait = PLAIN_EVERY
        text = board.text()
        if text:
            stream.write(f"kerncheck {text}\n")
            stream.flush()


def show_live(board: Board, stream: TextIO, done: threading.Event) -> None:
    """Keep one status line current."""
    from rich.console import Console

    console = Console(file=stream)
    with console.status("kerncheck") as status:
        while not done.wait(0.25):
            status.update(board.text() or "kerncheck")
