"""Waits for a driver that never answers."""

import time

from vllm_adapter import hookimpl


class Plugin:
    """One hook."""

    @hookimpl
    def probe(self):
        time.sleep(3600)
