"""Prints vLLM's key of compiled graphs under the adapter's descriptor, for each that is named.

python compile_key.py '["", "one.json", "other.json"]'
"""

from __future__ import annotations

import json
import os
import sys


class Own:
    """A user's additional_config that is no dict."""

    wish = 3

    def compute_hash(self):
        return "own"


def main(files):
    from vllm.config import VllmConfig
    from vllm.platforms import current_platform

    from vllm_adapter.broker import plugin
    from vllm_adapter.engine import registries

    keys = []
    for file in files:
        registries.reset()
        os.environ["VA_CAPABILITY"] = file
        plugin.register()
        row = []
        for given in ({}, {"wish": 3}, Own()):
            config = VllmConfig(additional_config=given)
            current_platform.check_and_update_config(config)  # again: it must not add up
            row.append(config.compute_hash())
        assert config.additional_config.wish == 3
        keys.append(row)
    print("RESULT", json.dumps(keys))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
