"""python -m kvcalc, and the `kvcalc` script."""

from __future__ import annotations

import sys

_INTERRUPTED = 130


def run() -> None:
    """Run the command line and leave with its exit code."""
    try:
        from kvcalc.cli.app import main  # the slow part of a start, which may be interrupted

        code = main()
    except KeyboardInterrupt:
        code = _INTERRUPTED
    sys.exit(code)


if __name__ == "__main__":
    run()
