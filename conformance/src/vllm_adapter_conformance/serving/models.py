"""Folders that vLLM loads: tiny random models, and a tokenizer whose words are token numbers.

Torch and transformers are imported where a folder is written, and not before.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from vllm_adapter_conformance.models.shape import VOCABULARY, ModelShape

LONG: Final = 2048
"""Positions of the server's model, so that a request can last."""
_CHAT: Final = "{% for message in messages %}{{ message['content'] }} {% endfor %}"


def save(shape: ModelShape, seed: int, folder: Path, *, form: str) -> Path:
    """Saves a model with its tokenizer.

    `form`: generate; embed (its body); server; mixture (of experts, as wide as the model);
    experts, which is a mixture's configuration alone: it must be refused before weights are read.
    """
    from vllm_adapter_conformance.models import tiny

    model = tiny.plain(shape, seed)
    if form in ("experts", "mixture"):
        config = _with_experts(model.config)
        made = config if form == "experts" else tiny.drawn(config, seed)
        made.save_pretrained(folder)
        return folder
    if form == "server":
        model.config.max_position_embeddings = LONG
    body: Any = model.model if form == "embed" else model
    body.save_pretrained(folder)
    _tokenizer().save_pretrained(folder)
    return folder


def words(tokens: Sequence[int]) -> str:
    """Tokens as the text that the tokenizer turns into them."""
    return " ".join(map(_word, tokens))


def tokens_of(text: str) -> list[int]:
    """The tokens of a text that the tokenizer made."""
    return [int(word.removeprefix("w")) for word in text.split()]


def _word(token: int) -> str:
    """All of one length: a special token is found inside of any longer word."""
    return f"w{token:03d}"


def _tokenizer() -> Any:
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import WhitespaceSplit
    from transformers import PreTrainedTokenizerFast

    known = {_word(number): number for number in range(VOCABULARY)}
    pad, begin, end = map(_word, range(3))
    plain = Tokenizer(WordLevel(known, unk_token=pad))
    plain.pre_tokenizer = WhitespaceSplit()
    made = PreTrainedTokenizerFast(
        tokenizer_object=plain, pad_token=pad, bos_token=begin, eos_token=end, unk_token=pad
    )
    made.chat_template = _CHAT
    return made


def _with_experts(config: Any) -> Any:
    from transformers import Qwen3MoeConfig

    sizes = config.to_dict()
    names = [
        *("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "head_dim"),
        *("num_attention_heads", "num_key_value_heads", "max_position_embeddings"),
    ]
    made = Qwen3MoeConfig(
        **{name: sizes[name] for name in names},
        num_experts=4,
        num_experts_per_tok=2,
        moe_intermediate_size=64,
    )
    made.architectures = ["Qwen3MoeForCausalLM"]
    return made
