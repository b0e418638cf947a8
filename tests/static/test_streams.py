"""stdout holds a document alone, whatever a vendor's code prints, and however."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

pytestmark = pytest.mark.static
PRINTS = """
import atexit, ctypes, os, sys
from vllm_adapter.cli import streams
from vllm_adapter.cli.output import emit_json
streams.prepare()
kept, c = sys.stdout, ctypes.CDLL(None)
with streams.stdout_to_stderr():
    print("by print")
    kept.write("by a stream kept\\n")
    os.write(1, b"by a descriptor\\n")
    c.printf(b"by printf, buffered\\n")
    os.system("echo by a child")
    atexit.register(lambda: print("at exit", flush=True))
    atexit.register(lambda: c.puts(b"by puts at exit"))
emit_json({"answer": 1})
"""


def test_only_the_document_is_on_stdout():
    done = subprocess.run(
        [sys.executable, "-c", PRINTS], capture_output=True, text=True, check=True
    )
    assert json.loads(done.stdout) == {"answer": 1}
    for said in (
        "by print",
        "by a stream kept",
        "by a descriptor",
        "by printf, buffered",
        "by a child",
        "at exit",
        "by puts at exit",
    ):
        assert said in done.stderr
