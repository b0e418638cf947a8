"""Reads address zero while it probes."""

import ctypes

from vllm_adapter import hookimpl


class Plugin:
    """One hook."""

    @hookimpl
    def probe(self):
        ctypes.string_at(0)
