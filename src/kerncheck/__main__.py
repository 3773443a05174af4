"""Entry of the command line. Imports only the standard library before it can catch: a broken installation exits 4."""

from __future__ import annotations

import sys

BUG = 4


def main() -> None:
    """Run the command line and exit with the documented code."""
    try:
        from kerncheck.cli import run  # noqa: PLC0415 - see above

        code = run(sys.argv[1:])
    except SystemExit:
        raise
    except BaseException as error:  # noqa: BLE001 - whatever it is, it is ours, and must not look like a finding
        import traceback  # noqa: PLC0415

        traceback.print_exc()
        sys.stderr.write(
            f"kerncheck: a bug in kerncheck or a broken installation ({type(error).__name__}): exit {BUG}\n"
        )
        code = BUG
    sys.exit(code)


if __name__ == "__main__":
    main()
