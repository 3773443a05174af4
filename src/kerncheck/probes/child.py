"""Entry of every probe child: ``PYTHON -B child.py REPLY_FD``, with the request as JSON on stdin.

The judged interpreter need not have kerncheck installed. This script makes a stand-in package ``kerncheck`` whose
path is the folder that this file lies in, so that ``kerncheck.probes``, ``.compat``, ``.devices`` and ``.kernels``
import under their real names while nothing else of the parent's environment (msgspec, click, ...) can be seen.
"""

import os
import sys
import types


def bootstrap() -> None:
    """Put the stand-in package in place; drop this script's folder, whose names would shadow the user's."""
    sys.path.pop(0)
    here = os.path.dirname(os.path.abspath(__file__))
    package = types.ModuleType("kerncheck")
    package.__path__ = [os.path.dirname(here)]
    sys.modules["kerncheck"] = package


if __name__ == "__main__":
    bootstrap()
    from kerncheck.probes import worker

    worker.main(int(sys.argv[1]))
