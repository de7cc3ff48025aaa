"""Check that the README and docs/ are current, or write them anew: python -m tests.docs --write."""

from __future__ import annotations

import sys

from tests.docs import refusals
from tests.docs.readme import README, rendered

if __name__ == "__main__":
    for path, make in ((refusals.PAGE, lambda _: refusals.rendered()), (README, rendered)):
        old = path.read_text(encoding="utf-8") if path.exists() else ""
        new = make(old)
        if "--write" in sys.argv:
            path.parent.mkdir(exist_ok=True)
            path.write_text(new, encoding="utf-8", newline="\n")
        elif new != old:
            sys.exit(f"{path.name} is stale: python -m tests.docs --write")
