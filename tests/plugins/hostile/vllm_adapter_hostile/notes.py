"""Notes in which processes this package is imported or called, and what those have loaded."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path


def note(what: str) -> None:
    """A file in the folder that NOTES names, if it does."""
    folder = os.environ.get("NOTES")
    if folder:
        seen = {
            "what": what,
            "pid": os.getpid(),
            "argv": sys.orig_argv,
            "environment": sorted(os.environ),
            "modules": sorted(sys.modules),
        }
        file = Path(folder, f"{os.getpid()}-{what}.json")
        if what == "import" or not file.exists():
            file.write_text(json.dumps(seen), "utf-8")
