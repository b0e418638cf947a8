"""A plug-in that only looks where it is."""

from __future__ import annotations

from vllm_adapter import hookimpl
from vllm_adapter_hostile.notes import note

note("plugin")


class Plugin:
    @hookimpl
    def open_runtime(self):
        note("open")
        return None  # core's own
