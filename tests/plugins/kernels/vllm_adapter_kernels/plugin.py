"""The plug-in: one implementation beyond the descriptor."""

from __future__ import annotations

from typing import Any

from vllm_adapter import hookimpl


class Plugin:
    """Gives what the descriptor does not name."""

    @hookimpl
    def implementations(self) -> list[Any]:
        """Its embedding."""
        from vllm_adapter_kernels.functions import embedding

        return [embedding]
