"""A pytest plugin for tests: notes the judge's process, and what it has loaded at its end."""

import json
import os
import sys
from pathlib import Path


def pytest_sessionfinish(session):
    seen = {"what": "judge", "pid": os.getpid(), "modules": sorted(sys.modules)}
    Path(os.environ["NOTES"], f"{os.getpid()}-judge.json").write_text(json.dumps(seen), "utf-8")
