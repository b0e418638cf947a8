"""What runtime a box is for, as conditions of rules: only what is known makes them false."""

from __future__ import annotations

from vllm_adapter.doctor.rule import Box


def cuda(box: Box) -> bool:
    """Not known to be for another vendor than NVIDIA."""
    if box.other_runtime or (box.vendors and "cuda" not in box.vendors):
        return False
    return not (box.facts.torch and (box.facts.torch.local or "").startswith("cpu"))


def cuda_known(box: Box) -> bool:
    """Known to be for NVIDIA."""
    torch = box.facts.torch
    return cuda(box) and bool("cuda" in box.vendors or (torch and torch.cuda))


def rocm(box: Box) -> bool:
    """Not known to be for another vendor than AMD."""
    if box.vendors:
        return "rocm" in box.vendors
    return box.other_runtime in (None, "rocm")


def xpu(box: Box) -> bool:
    """Not known to be for another vendor than Intel."""
    if box.vendors:
        return "xpu" in box.vendors
    return box.other_runtime in (None, "xpu")


def ascend(box: Box) -> bool:
    """Not known to be for another vendor than Huawei."""
    if box.vendors:
        return "ascend" in box.vendors
    return box.other_runtime in (None, "ascend")
