"""Ends the process, with the exit code of success."""

import os

from vllm_adapter import hookimpl


class Plugin:
    """One hook."""

    @hookimpl
    def probe(self):
        os._exit(0)
