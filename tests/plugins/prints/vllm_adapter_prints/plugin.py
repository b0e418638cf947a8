"""Healthy, but greets on stdout."""

import os

from vllm_adapter import hookimpl


class Plugin:
    """One hook."""

    @hookimpl
    def probe(self):
        os.write(1, b"ACME SDK 1.0, all rights reserved\n")
        print('["end", "prints", {}]', flush=True)
