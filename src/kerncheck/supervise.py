"""Run probes in child processes and turn whatever happens to them into answers.

A child may raise, crash, exit, stand still or be slow; each is told apart, and none ends the run. A new child goes on
at the case after the one that killed the last. Children are started afresh (exec, not fork), in a session of their
own, with a pipe for answers and their output in a file, of which the end is kept as evidence.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from kerncheck.model.base import Broken, Missing

CHILD = Path(__file__).parent / "probes" / "child.py"
OUT_OF_MEMORY = frozenset({"MemoryError", "OutOfMemoryError"})  # Python's, and torch's for a full GPU
POLL_SECONDS = 0.1
TAIL_CHARACTERS = 4000

Answer = dict[str, Any] | Missing | Broken


@dataclass(frozen=True, kw_only=True)
class ProbeRun:
    """One child's work: a probe module, its options, and the cases that it walks. Limits are seconds."""

    label: str
    probe: str
    cases: tuple[dict[str, Any], ...]
    options: dict[str, Any] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)
    limit: float = 120.0
    setup_limit: float = 180.0
    python: str = ""


@dataclass(frozen=True, kw_only=True)
class Answers:
    """What came back: how the set-up went (None: well), and one answer for each case, in the order of the run."""

    run: ProbeRun
    setup: Missing | Broken | None
    cases: tuple[Answer, ...]
    seconds: float = 0.0


Progress = Callable[[str, str], None]
"""Called with a run's label and the name of the case that starts now ("" when the run ends)."""


class Activity:
    """Samples CPU time and input/output of a child's whole session, to tell a standstill from slow work."""

    def __init__(self, session: int) -> None:
        self._session = session
        self._samples: deque[tuple[float, int, int]] = deque(maxlen=4096)
        self._next = 0.0

    def sample(self) -> None:
        """Take a sample, at most two a second (walking /proc costs a few milliseconds)."""
        now = time.monotonic()
        if now >= self._next:
            self._next = now + 0.5
            self._samples.append((now, *session_usage(self._session)))

    def stood_still(self, window: float) -> bool:
        """Tell whether the last ``window`` seconds saw under 2 % of one CPU and no bytes read or written."""
        now = time.monotonic()
        old = [sample for sample in self._samples if sample[0] <= now - window]
        if not old:
            return False
        cpu, traffic = session_usage(self._session)
        ticks = (cpu - old[-1][1]) / os.sysconf("SC_CLK_TCK")
        return ticks < 0.02 * (now - old[-1][0]) and traffic == old[-1][2]


def session_usage(session: int) -> tuple[int, int]:
    """Return (clock ticks of CPU, bytes read and written) of all live processes of a session."""
    ticks = traffic = 0
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError, ValueError, IndexError):
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                if int(fields[3]) == session:  # man 5 proc: session, utime, stime, cutime, cstime
                    ticks += sum(int(value) for value in fields[11:15])
                    traffic += sum(int(line.split()[1]) for line in (entry / "io").read_text().splitlines()[:2])
    return ticks, traffic


class Child:
    """One running probe child and what it has said so far."""

    def __init__(self, run: ProbeRun, cases: list[dict[str, Any]], python: str) -> None:
        reader, writer = os.pipe()
        self.output: IO[str] = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115 - closed in close()
        environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", **run.environment}
        self.process = subprocess.Popen(
            [python, "-B", str(CHILD), str(writer)],
            stdin=subprocess.PIPE,
            stdout=self.output,
            stderr=self.output,
            pass_fds=(writer,),
            env=environment,
            start_new_session=True,
        )
        os.close(writer)
        self._reader, self._buffer = reader, b""
        self.activity = Activity(self.process.pid)
        self._send({"probe": run.probe, "options": run.options, "cases": cases})

    def _send(self, request: dict[str, Any]) -> None:
        assert self.process.stdin is not None  # noqa: S101 - opened with PIPE above
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.write(json.dumps(request).encode())
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()

    def lines(self) -> Iterator[dict[str, Any] | None]:
        """Yield answers as they come, and None at least every POLL_SECONDS; end when the child has ended."""
        while True:
            ready, _, _ = select.select([self._reader], [], [], POLL_SECONDS)
            data = os.read(self._reader, 1 << 16) if ready else b""
            self._buffer += data
            *whole, self._buffer = self._buffer.split(b"\n")
            yield from (json.loads(line) for line in whole)
            if not data and self.process.poll() is not None:
                return  # whoever else may still hold the pipe: the child itself has ended, and all is read
            if ready and not data:
                time.sleep(POLL_SECONDS)  # the pipe is closed but the process lives on
            self.activity.sample()
            yield None

    def stack(self) -> str:
        """Ask the child for its Python stack (SIGUSR1, faulthandler) and return the end of its output."""
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGUSR1)
        time.sleep(0.3)
        return self.tail()

    def tail(self) -> str:
        """Return the end of what the child printed. Read in place: the child may still write at the shared offset."""
        file, most = self.output.fileno(), 4 * TAIL_CHARACTERS  # four bytes: the longest character in UTF-8
        end = os.fstat(file).st_size
        return os.pread(file, most, max(0, end - most)).decode(errors="replace")[-TAIL_CHARACTERS:]

    def kill(self) -> None:
        """End the child and everything in its session's process group."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def close(self) -> None:
        """Free the pipe and the output file."""
        os.close(self._reader)
        self.output.close()


class Supervisor:
    """Starts children and can end them all at once, from any thread."""

    def __init__(self, python: str, progress: Progress | None = None) -> None:
        self._python = python
        self._progress = progress or (lambda _label, _case: None)
        self._live: set[Child] = set()
        self._lock = threading.Lock()
        self._stopped = False

    def stop(self) -> None:
        """End every child; later ones are not started."""
        self._stopped = True
        with self._lock:
            for child in self._live:
                child.kill()

    def run(self, run: ProbeRun) -> Answers:
        """Walk all cases of a run, with as many children as it takes."""
        walk = Walk(run)
        while walk.pending and walk.setup is None and not self._stopped:
            self._one_child(walk)
        self._progress(run.label, "")
        return walk.answers()

    def _one_child(self, walk: Walk) -> None:
        walk.skip_hopeless()
        if not walk.pending:
            return
        cases = list(walk.run.cases[walk.next_case :])
        child = Child(walk.run, cases, walk.run.python or self._python)
        with self._lock:
            self._live.add(child)
        try:
            walk.begin(child)
            for line in child.lines():
                if line is not None:
                    walk.take(line)
                    self._progress(walk.run.label, walk.current_name)
                elif walk.overdue():
                    walk.give_up(child)
                    break
            child.kill()
            walk.settle(child)
        finally:
            if child.process.poll() is None:  # interrupted in this very thread
                child.kill()
            with self._lock:
                self._live.discard(child)
            child.close()


class Walk:
    """The state of one run over its children: which case runs, since when, and what was answered."""

    def __init__(self, run: ProbeRun) -> None:
        self.run = run
        self._started = time.monotonic()
        self.setup: Missing | Broken | None = None
        self.next_case = 0
        self._first = 0
        self._current: int | None = None
        self._since = time.monotonic()
        self._found: dict[int, Answer] = {}
        self._ended = False

    @property
    def pending(self) -> bool:
        """Whether a case is left to run."""
        return self.next_case < len(self.run.cases)

    @property
    def current_name(self) -> str:
        """The name of the case that runs now, for progress."""
        if self._current is None or self._current < 0:
            return "start"
        return str(self.run.cases[self._current].get("name", self._current))

    def begin(self, _child: Child) -> None:
        """A new child starts at the first case that has no answer."""
        self._first, self._current, self._since = self.next_case, -1, time.monotonic()
        self._ended = False

    def skip_hopeless(self) -> None:
        """Do not try a case whose ``needs`` names a case that killed or blocked a child: it would do so again."""
        named = {self.run.cases[index].get("name"): answer for index, answer in self._found.items()}
        while self.pending:
            answer = named.get(self.run.cases[self.next_case].get("needs", ""))
            if not isinstance(answer, Missing | Broken):
                return
            self._answer(self.next_case, Missing(reason=f"not tried, since what it needs failed: {why(answer)}"))

    def overdue(self) -> bool:
        """Tell whether the case that runs now has passed its limit."""
        limit = self.run.setup_limit if self._current == -1 else self.run.limit
        return self._current is not None and time.monotonic() - self._since > limit

    def take(self, line: dict[str, Any]) -> None:
        """Note one line of the child."""
        event, case = line["event"], line["case"]
        index = case if case < 0 else case + self._first
        if event == "start":
            self._current, self._since = index, time.monotonic()
        elif event == "end":
            self._current, self._ended = None, True
        else:
            self._answer(index, read_answer(line, time.monotonic() - self._since))
            self._current, self._since = None, time.monotonic()

    def give_up(self, child: Child) -> None:
        """The case is past its limit: a standstill is an observation, slow work is merely not finished."""
        seconds = time.monotonic() - self._since
        limit = self.run.setup_limit if self._current == -1 else self.run.limit
        if child.activity.stood_still(min(10.0, limit / 2)):
            message = f"stood still: no result after {seconds:.0f} s, no CPU use, no input or output"
            answer: Answer = Broken(how="stood_still", message=message, detail=child.stack(), seconds=seconds)
        else:
            answer = Missing(
                reason=f"not finished after {seconds:.0f} s (busy, so slow rather than stuck); see --timeout"
            )
        self._answer(self._current if self._current is not None else self.next_case, answer)
        self._current = None

    def settle(self, child: Child) -> None:
        """The child has ended: the case that it was in, if any, died with it."""
        if self._current is not None:
            self._answer(self._current, read_death(child, time.monotonic() - self._since))
        elif not self._ended and self.next_case == self._first and self.setup is None:
            self.setup = read_death(child, 0.0)
        self._current = None

    def _answer(self, index: int, answer: Answer) -> None:
        if index >= 0:
            self._found[index] = answer
            self.next_case = index + 1
        elif not isinstance(answer, dict):
            self.setup = answer

    def answers(self) -> Answers:
        """Return one answer for each case; those never reached say why."""
        reason = "interrupted" if self.setup is None else f"the probe could not start: {why(self.setup)}"
        cases = tuple(self._found.get(index, Missing(reason=reason)) for index in range(len(self.run.cases)))
        return Answers(run=self.run, setup=self.setup, cases=cases, seconds=time.monotonic() - self._started)


def why(answer: Missing | Broken) -> str:
    """Return one line about what went wrong."""
    if isinstance(answer, Missing):
        return answer.reason
    return f"{answer.exception}: {answer.message}" if answer.exception else answer.message


def read_answer(line: dict[str, Any], seconds: float) -> Answer:
    """Turn a child's line into an answer."""
    if line["event"] == "done":
        return line["value"] if isinstance(line["value"], dict) else {}
    if line["exception"] in OUT_OF_MEMORY:
        return Missing(reason=f"out of memory ({line['exception']}: {line['message'][:200]})")
    exited = line["event"] == "exit"
    return Broken(
        how="exit" if exited else "raised",
        message=f"exited with code {line['code']}" if exited else line["message"],
        exception=line["exception"],
        chain=tuple(line["chain"]),
        detail=line["detail"],
        exit_code=line["code"] if exited else None,
        seconds=seconds,
    )


def read_death(child: Child, seconds: float) -> Missing | Broken:
    """Turn the end of a child that did not answer into an observation."""
    code, tail = child.process.returncode, child.tail()
    if code == -signal.SIGKILL:
        return Missing(reason="killed by SIGKILL from outside (most often the kernel's out-of-memory killer)")
    if code < 0:
        name = signal.Signals(-code).name
        return Broken(how="signal", message=f"killed by {name}", detail=tail, signal=-code, seconds=seconds)
    return Broken(how="exit", message=f"exited with code {code}", detail=tail, exit_code=code, seconds=seconds)
