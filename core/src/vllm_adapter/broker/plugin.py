"""vLLM's two entry points into this project. Vendors' adapters never register with vLLM.

vLLM calls `platform` (group `vllm.platform_plugins`) twice in every process, possibly while it is
being imported, and `register` (group `vllm.general_plugins`) once. Both entries have one name,
since VLLM_PLUGINS filters all groups by name. Nothing here imports vllm or torch before vLLM has.

# upstream: vllm@0.32 platforms/__init__.py:238, plugins/__init__.py:84
"""

from __future__ import annotations

import functools
import importlib
import os
import sys
from typing import Any, Final

from vllm_adapter.broker.selection import PLATFORMS, Selection, refusal
from vllm_adapter.broker.selection_file import shared_selection
from vllm_adapter.discovery.adapter import one_line
from vllm_adapter.errors import DeviceRefused
from vllm_adapter.settings import Fallback, Settings

OPERATORS: Final = "vllm_adapter.engine.integrations.vllm.operators"
PRINTED_TOPICS: Final = "_VA_SAID"
"""In the environment: the topics on which a process has spoken, so that its children are quiet."""


def platform() -> str | None:
    """The dotted class of our platform; None where vLLM stays as it is. Never raises."""
    selection = _selection()
    return None if selection is None else selection.platform


def register() -> None:
    """Puts the chosen adapter's operators into vLLM, if vLLM runs on our platform.

    Raises:
        DeviceRefused: VA_REQUIRE_DEVICE names another device than the one vLLM runs on, or
            VA_ADAPTERS names adapters, and none of them serves.
        VllmAdapterError: an operator was refused under VA_FALLBACK=error, or the device that vLLM
            does not know cannot be opened.
    """
    required = os.environ.get("VA_REQUIRE_DEVICE", "").strip()
    selection = _selection()
    active = importlib.import_module("vllm.platforms").current_platform
    if required and active.device_type != required:
        why = f": {selection.reason}" if selection else ""
        raise DeviceRefused(
            f"VA_REQUIRE_DEVICE is {required}, and vLLM runs on "
            f"{active.device_type or 'no known device'}{why}",
            hint="see `vllm-adapter doctor --vllm`, or unset VA_REQUIRE_DEVICE",
        )
    if selection is None:
        return
    settings = Settings.from_environ()
    refused = refusal(selection, settings)
    if refused is not None:
        raise refused
    if selection.platform is None:
        return
    if not _is_ours(active, selection.platform):
        # Under VLLM_TARGET_DEVICE=cpu vLLM asks no platform plug-in, and still calls this one.
        running = type(active).__name__
        if settings.adapters.order:
            raise DeviceRefused(
                f"VA_ADAPTERS names {' and '.join(settings.adapters.order)}, and vLLM runs on "
                f"{running}, not on our platform",
                hint="unset VLLM_TARGET_DEVICE, or VA_ADAPTERS",
            )
        _print_once(
            "platform", f"no operator is replaced: vLLM runs on {running}, not on our platform"
        )
        return
    try:
        importlib.import_module(OPERATORS).register(selection)
    except Exception as error:
        # On a device that vLLM does not know there is nothing of its own to stay with.
        if selection.shape == "generic" or settings.fallback is Fallback.ERROR:
            raise
        text = f"{type(error).__name__}: {one_line(error)}"
        _print_once("operators", f"operators stay vLLM's own: {text}")


@functools.cache
def _selection() -> Selection | None:
    """The selection of this process tree; None if it could not be made."""
    try:
        selection, warnings = shared_selection(Settings.from_environ())
    except Exception as error:
        text = f"{type(error).__name__}: {one_line(error)}"
        _print_once("selection", f"steps aside, vLLM stays as it is: {text}")
        return None
    sentences = [f"warning: {sentence}" for sentence in (*warnings, *selection.warnings)]
    if selection.platform is None:
        # A tie is for somebody to decide; the other reasons may well be as one wants it.
        mark = "warning: " if selection.tied else ""
        sentences.append(f"{mark}steps aside, vLLM stays as it is: {selection.reason}")
        for one in selection.considered:
            sentences.append(f"  {one.name} ({one.status}): {one.why_not or selection.reason}")
    else:
        sentences.append(
            f"adapter {selection.adapter} serves {selection.device}: {selection.reason}"
        )
    _print_once("selection", *sentences)
    return selection


def forget() -> None:
    """Has this process choose anew; what its children inherited stays in the environment."""
    _selection.cache_clear()


def _is_ours(active: Any, platform: str) -> bool:
    """Whether vLLM's platform is the class we named, which vLLM then has imported."""
    module = sys.modules.get(PLATFORMS)
    return module is not None and isinstance(active, getattr(module, platform.rpartition(".")[2]))


def _print_once(topic: str, *sentences: str) -> None:
    """Prints on stderr, unless this process or one above it has spoken on the topic."""
    said = os.environ.get(PRINTED_TOPICS, "").split(",")
    if topic in said:
        return
    os.environ[PRINTED_TOPICS] = ",".join(filter(None, [*said, topic]))
    for sentence in sentences:
        print(f"vllm-adapter: {sentence}", file=sys.stderr, flush=True)
