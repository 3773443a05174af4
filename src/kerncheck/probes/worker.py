"""The loop of a probe child: walk the cases, stream one JSON line for each start and each answer.

A probe module (one of ours by its bare name, any other by its dotted one) offers ``setup(options) -> state`` and
``run(case, state) -> dict`` (plain JSON data). The parent learns from the streamed lines which case was running when
a child died or stood still. Standard library only.
"""

from __future__ import annotations

import ctypes
import faulthandler
import gc
import importlib
import json
import os
import signal
import sys
import traceback
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

COLLECT_AFTER = 100_000
"""Allocations between two garbage collections. Hardly any of what an import makes is garbage: importing torch,
transformers and fla takes 7.2 CPU seconds with Python's default, 6.6 with this and 5.9 without collections, which are
therefore off until the probe is set up (the 2-core machine of benchmarks/verify.py)."""
PR_SET_PDEATHSIG = 1  # linux/prctl.h: end this process when its parent dies, however it dies


class Reply:
    """Writes JSON lines to the parent. Its own file descriptor, so that what libraries print cannot disturb it."""

    def __init__(self, descriptor: int) -> None:
        os.set_inheritable(descriptor, False)  # noqa: FBT003 - a compiler that the probe starts must not hold it
        self._descriptor = descriptor

    def send(self, **line: Any) -> None:
        """Write one line, whole."""
        data = (json.dumps(line, allow_nan=False) + "\n").encode()
        while data:
            data = data[os.write(self._descriptor, data) :]


def describe(error: BaseException) -> dict[str, Any]:
    """Return an exception as data: its type, its message, the chain of its causes and its traceback."""
    chain: list[str] = []
    step: BaseException | None = error
    while step and len(chain) < 12:  # a cycle of causes must end
        chain.append(f"{type(step).__name__}: {step}")
        step = step.__cause__ or step.__context__
    text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    return {"exception": type(error).__name__, "message": str(error), "chain": chain, "detail": text[-6000:]}


def guarded(reply: Reply, case: int, work: Callable[[], Any]) -> Any:
    """Run one piece of work; report what it raises, an exit included, as the answer of this case."""
    reply.send(event="start", case=case)
    try:
        value = work()
        answer = value if case >= 0 else None
        json.dumps(answer, allow_nan=False)  # a probe that answers with NaN is wrong: say so as its own answer
    except KeyboardInterrupt:
        raise
    except SystemExit as error:
        reply.send(event="exit", case=case, code=error.code if isinstance(error.code, int) else 1, **describe(error))
        return None
    except BaseException as error:  # pytest.skip and friends derive from BaseException
        reply.send(event="raised", case=case, **describe(error))
        return None
    reply.send(event="done", case=case, value=answer)
    return value


def tie_to_parent() -> None:
    """Die with the parent, and let the parent ask for our stack with SIGUSR1 (works while blocked in C code)."""
    try:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    except (OSError, AttributeError):
        pass  # not Linux: the parent still kills the process group
    faulthandler.register(signal.SIGUSR1, file=sys.stderr, all_threads=True)


def main(descriptor: int) -> None:
    """Read the request, set the probe up, run its cases."""
    tie_to_parent()
    gc.set_threshold(COLLECT_AFTER, 50, 50)
    gc.disable()
    reply = Reply(descriptor)
    request = json.loads(sys.stdin.read())
    ready = False

    def setup() -> Any:
        nonlocal ready
        name = request["probe"]
        module = importlib.import_module(name if "." in name else "kerncheck.probes." + name)
        state = module.setup(request["options"])
        ready = True
        return module, state

    prepared = guarded(reply, -1, setup)
    if not ready:
        return
    module, state = prepared
    gc.freeze()  # what was imported stays: no collection need look at it again
    gc.enable()
    for index, case in enumerate(request["cases"]):
        guarded(reply, index, lambda case=case: module.run(case, state))  # type: ignore[misc]
    reply.send(event="end", case=-1)
