"""The register of VAnnnn codes. `vllm-adapter explain CODE` prints a page, offline.

VA0 manifest, descriptor, certificate and settings; VA1 host; VA2 runtime; VA3 operators and
models; VA4 plan; VA5 vLLM. A code is never reused for something else.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Code:
    """One page: what the code means, what causes it, what to do."""

    code: str
    title: str
    meaning: str
    action: str

    def page(self) -> str:
        """The page as plain text."""
        return f"{self.code}  {self.title}\n\n{self.meaning}\n\nWhat to do: {self.action}\n"


CODES: Final[Mapping[str, Code]] = {
    entry.code: entry
    for entry in (
        Code(
            "VA0001",
            "input that cannot be used",
            "A file, argument or folder that a command was given is missing or malformed. "
            "Nothing was changed.",
            "follow the hint; every command prints an example with --help.",
        ),
        Code(
            "VA0002",
            "a VA_* variable cannot be read",
            "An environment variable of ours has a value outside its language. It is never "
            "ignored: a setting that does nothing would be worse than a refusal.",
            "correct or unset the variable; README.md's docs list each one.",
        ),
        Code(
            "VA0101",
            "manifest cannot be used",
            "An adapter's adapter.json is missing, is not JSON, or breaks a rule of the manifest "
            "schema. The adapter is listed as broken; all others work.",
            "run `vllm-adapter validate PATH/adapter.json`, which names every fault.",
        ),
        Code(
            "VA0201",
            "capability descriptor cannot be used",
            "A descriptor is missing, is not JSON, has a newer major version, or uses a word that "
            "is not in its schema.",
            "run `vllm-adapter validate FILE`; convert an older format with `--convert`.",
        ),
        Code(
            "VA0301",
            "certificate cannot be used",
            "A certificate is missing, breaks its schema, its levels do not add up, or its digest "
            "does not fit its content: it was edited after it was written.",
            "ask for the original file, or certify again: `vllm-adapter certify NAME`.",
        ),
        Code(
            "VA0401",
            "adapter cannot be used here",
            "The adapter is not installed, is broken, incompatible, blocked, shadowed, or its "
            "device is not on this machine. `vllm-adapter list --probe` gives the reason.",
            "follow the next step that `vllm-adapter list --probe` prints for the adapter.",
        ),
        Code(
            "VA2001",
            "a device's runtime failed",
            "A call of the device's runtime reported a failure of its own.",
            "read the vendor's text in the message, then `vllm-adapter list --probe`.",
        ),
        Code(
            "VA2002",
            "no such device",
            "A device index lies outside the runtime's device count.",
            "count devices with `vllm-adapter list --probe`; check the visible-devices variable.",
        ),
        Code(
            "VA2003",
            "out of device memory",
            "The device could not give the bytes that were asked for. Nothing was allocated.",
            "free memory, take a shorter context or a smaller batch, or another device.",
        ),
        Code(
            "VA2004",
            "allocation used after free",
            "An allocation was used, or freed once more, after its free().",
            "a defect of the calling code: keep one owner for an allocation.",
        ),
        Code(
            "VA2005",
            "copy out of bounds",
            "A copy would leave the allocation it reads or writes. Nothing was copied.",
            "a defect of the calling code: check offset and length against the size.",
        ),
        Code(
            "VA3001",
            "no implementation for this case",
            "No implementation accepts this dtype, shape or feature of an operator under the "
            "current policy. The message names the pointer in the descriptor that refused.",
            "see all decisions with `vllm-adapter explain ADAPTER OP`; VA_FALLBACK=warn lets "
            "core's portable torch code step in.",
        ),
        Code(
            "VA3101",
            "model or generation mode refused",
            "The transformers integration does not serve this architecture, cache or generation "
            "mode, and would rather say so than compute something else.",
            "use a listed architecture, the default cache, and greedy or sampling generation.",
        ),
    )
}
