"""Which form of weights a chip is asked for, and which it takes: without torch.

A float of eight bits is taken where the chip multiplies it natively, in the flavour of its
descriptor; weights of eight and four bits are unpacked by the kernel, and need no unit of their
own. What is not taken falls to the next form, and each step down has its reason.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, get_args

from vllm_adapter.contract.capability import Capability
from vllm_adapter.contract.decision import Reject

Quantize = Literal["auto", "fp8", "int8", "int4", "none"]
QUANTIZE: Final = get_args(Quantize)
FORMS: Final[dict[str, tuple[str, ...]]] = {
    "auto": ("fp8", "int8"),
    "fp8": ("fp8", "int8"),
    "int8": ("int8",),
    "int4": ("int4", "int8"),
    "none": (),
}
"""What is tried for each word, in turn; after the last a weight stays as it is."""
MOST_PERPLEXITY: Final[dict[str, float]] = {"fp8": 1.01, "int8": 1.01, "int4": 1.08}
"""Perplexity that a form may cost, as a multiple of that of the weights as they are."""


@dataclass(frozen=True, slots=True)
class FormOffer:
    """A form of weights, and the scheme that stands for it on a chip, or why none does."""

    form: str
    scheme: str | None
    reject: Reject | None = None


def offers(capability: Capability, asked: str) -> tuple[FormOffer, ...]:
    """The forms that `asked` names, best first, each with the chip's scheme or its refusal."""
    return tuple(_offer(capability, form) for form in FORMS[asked])


def form_of(scheme: str) -> str:
    """The word for a scheme: "fp8" for either float."""
    return "fp8" if scheme.startswith("float8") else scheme


def _offer(capability: Capability, form: str) -> FormOffer:
    if form != "fp8":
        return FormOffer(form, form)
    numerics = capability.numerics
    if not numerics.native_fp8:
        return FormOffer(
            form,
            None,
            Reject(
                "the chip has no units for floats of eight bits",
                "/numerics/native_fp8",
                numerics.native_fp8,
                True,
            ),
        )
    if numerics.fp8_flavour is None:
        return FormOffer(
            form,
            None,
            Reject(
                "nobody said which float of eight bits the chip has",
                "/numerics/fp8_flavour",
                None,
                "e4m3fn or e4m3fnuz",
            ),
        )
    return FormOffer(form, f"float8_{numerics.fp8_flavour}")
