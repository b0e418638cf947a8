"""The child that `vllm_replay` starts: imports vLLM and asks again what vLLM asked at its start.

    python -m vllm_adapter_doctor.findings._vllm_child FILE

FILE receives one JSON object; vLLM's and vendors' banners on stdout and stderr stay there.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

PLATFORMS: Final = "vllm.platform_plugins"
GENERAL: Final = "vllm.general_plugins"


def main() -> None:
    """Writes the replay's record."""
    Path(sys.argv[1]).write_text(json.dumps(_replay()), encoding="utf-8")


def _replay() -> dict[str, Any]:
    try:
        platforms = importlib.import_module("vllm.platforms")
        envs = importlib.import_module("vllm.envs")
    except Exception as error:
        return {"import_failed": _raised(error)}
    allowed = envs.VLLM_PLUGINS
    plugins = [
        {"name": name, "group": None, "value": f"{function.__module__}:{function.__name__}"}
        | {"distribution": "vllm", "allowed": True, **_called(function)}
        for name, function in platforms.builtin_platform_plugins.items()
    ]
    for group in (PLATFORMS, GENERAL):
        for point in importlib.metadata.entry_points(group=group):
            plugins.append(_installed(point, group, allowed))
    record: dict[str, Any] = {"plugins": plugins, "allowed": allowed}
    record |= {"target_device": envs.VLLM_TARGET_DEVICE}
    # upstream: vllm@0.32 platforms/__init__.py:229
    record |= {"resolution": _called(platforms.resolve_current_platform_cls_qualname)}
    try:
        active = platforms.current_platform
        record["active"] = {
            "class": f"{type(active).__module__}.{type(active).__qualname__}",
            "device_type": active.device_type,
        }
    except Exception as error:
        record["active"] = {"raised": _raised(error)}
    return record


def _installed(point: Any, group: str, allowed: list[str] | None) -> dict[str, Any]:
    """An entry point: loaded if VLLM_PLUGINS lets vLLM load it, and called if it is a platform's.

    A general plug-in is not called: it changes vLLM, and this is a look only.
    """
    distribution = point.dist.name if point.dist else None
    found = {"name": point.name, "group": group, "value": point.value}
    found |= {"distribution": distribution, "allowed": allowed is None or point.name in allowed}
    if not found["allowed"]:
        return {**found, "returned": None, "raised": None}
    try:
        function = point.load()
    except Exception as error:
        return {**found, "returned": None, "raised": _raised(error), "at": "import"}
    return {**found, **(_called(function) if group == PLATFORMS else {})}


def _called(function: Callable[[], Any]) -> dict[str, Any]:
    try:
        returned = function()
    except Exception as error:
        return {"returned": None, "raised": _raised(error)}
    return {"returned": None if returned is None else str(returned), "raised": None}


def _raised(error: Exception) -> dict[str, Any]:
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if frame.filename != __file__ and not frame.filename.startswith("<frozen")
    ]
    last = frames[-1] if frames else None
    return {
        "error": type(error).__name__,
        "text": str(error),
        "where": f"{last.filename}:{last.lineno}" if last else None,
    }


if __name__ == "__main__":
    main()
