"""What a replay runs again: cases of its own choice, the device's among them."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from vllm_adapter_conformance.certificate import replay

pytestmark = pytest.mark.null

CASE = SimpleNamespace(id="x")


@pytest.mark.parametrize("count", [1, 2, 5])
def test_a_replay_opens_the_device_whatever_is_drawn(count):
    levels = ("L0",) * 200 + ("L1",)
    items = [
        SimpleNamespace(id=f"{level}.a[{n}]", rule=SimpleNamespace(id="a", level=level), case=CASE)
        for n, level in enumerate(levels)
    ]
    for _ in range(20):
        chosen = replay._draw(SimpleNamespace(items=items), {"a"}, count)
        assert len(chosen) == count and any(id.startswith("L1") for id in chosen)
    assert len(replay._draw(SimpleNamespace(items=items[:9]), {"a"}, count)) == count
