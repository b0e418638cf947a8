"""Every entry point that our own distributions declare can be loaded, as a stranger would."""

from __future__ import annotations

import importlib_metadata
import pytest

from vllm_adapter.discovery.distributions import entry_points

pytestmark = pytest.mark.static

GROUPS = {
    "vllm_adapter.commands": "run",
    "vllm_adapter.before_open": "__call__",
    "vllm.platform_plugins": "__call__",
    "vllm.general_plugins": "__call__",
}


@pytest.mark.parametrize("group", GROUPS)
def test_it_is_loaded_as_importlib_loads_it(group):
    ours = [one for one in entry_points(group) if one.distribution.startswith("vllm-adapter-")]
    theirs = {one.name: one for one in importlib_metadata.entry_points(group=group)}
    assert ours
    for one in ours:
        assert one.load() is theirs[one.name].load()
        assert callable(getattr(one.load(), GROUPS[group]))
