"""Check that the README is current, or write it anew: python -m tests.docs --write."""

from __future__ import annotations

import sys

from tests.docs.readme import README, rendered

if __name__ == "__main__":
    old = README.read_text(encoding="utf-8")
    new = rendered(old)
    if "--write" in sys.argv:
        README.write_text(new, encoding="utf-8", newline="\n")
    elif new != old:
        sys.exit("README.md is stale: python -m tests.docs --write")
