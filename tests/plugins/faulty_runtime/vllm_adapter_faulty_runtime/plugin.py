"""Gives the runtime with the fault."""

from __future__ import annotations

import os

from vllm_adapter import hookimpl


class Plugin:
    @hookimpl
    def open_runtime(self):
        from vllm_adapter_faulty_runtime import faults

        return faults.FAULTS[os.environ.get("FAULTY_RUNTIME", "none")]()
