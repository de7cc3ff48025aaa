"""python -m kvcalc, and the `kvcalc` script."""

from __future__ import annotations

import sys


def run() -> None:
    """Run the command line and leave with its exit code."""
    from kvcalc.cli.app import main  # interrupting a slow import is a plain exit too

    sys.exit(main())


if __name__ == "__main__":
    run()
