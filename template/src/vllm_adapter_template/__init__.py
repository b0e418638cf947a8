"""The cookiecutter template of an adapter, as package data."""

from __future__ import annotations

from pathlib import Path

__all__ = ["path"]


def path() -> Path:
    """The cookiecutter folder: what `cookiecutter` and `vllm-adapter new` take as the template."""
    return Path(__file__).parent / "cookiecutter"
