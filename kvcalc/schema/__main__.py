"""Write the schemas anew: python -m kvcalc.schema."""

from __future__ import annotations

from kvcalc.schema import FOLDER
from kvcalc.schema.generate import schemas

if __name__ == "__main__":
    for name, text in schemas().items():
        (FOLDER / f"{name}.schema.json").write_text(text, encoding="utf-8", newline="\n")
