"""Data types, quantisations and attention kernels that a device does not have."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from vllm_adapter.doctor.finding import Evidence, Finding, Severity
from vllm_adapter.doctor.rule import Box, Rule, finding, quoted
from vllm_adapter.doctor.rules._names import arch, below, capability
from vllm_adapter.doctor.text_rule import TextRule

_FP8_REFUSED: Final = (
    r"fp8e4(?:nv|b8|m3\w*) not supported in (?:this architecture|CUDA arch)"
    r"|(?i:(?:fp8|float8|_scaled_mm)[^\n]*(?:requires|only supported|is supported on)[^\n]*"
    r"(?:capability|GPUs?\b|devices?\b|sm_?)[^\n]*(?:8\.9|\b89\b|9\.0|Hopper|Ada\b|H100|MI3))"
    r"|(?i:quantization method fp8[^\n]*(?:not supported|Minimum capability))"
)
_NO_BFLOAT16: Final = {"310p": "Ascend 310P", "910a": "Ascend 910A"}


def _fp8(box: Box) -> Iterator[Finding]:
    lines = [quoted(line) for line, _ in box.told(_FP8_REFUSED, ("fp8", "float8", "_scaled_mm"))]
    if not lines:
        return
    device = next((one for one in box.facts.accelerators if arch(one)), None)
    named = f"{device.name or device.vendor} ({arch(device)})" if device else "this device"
    yield finding(
        "VA1302",
        lines[:2],
        f"{named} has no native FP8 (e4m3): on NVIDIA it starts at compute capability 8.9, on "
        "AMD at gfx942",
        "use weight-only FP8 (W8A16 by Marlin, from 8.0), INT8, or FP16: FP16 weights take twice "
        "the bytes of FP8",
    )


def _float16_only(box: Box) -> Iterator[Finding]:
    """Devices below compute capability 8.0, and NPUs without bfloat16: good to know."""
    found: dict[str, Evidence] = {}
    for one in box.facts.accelerators:
        code = (one.arch or "").lower()
        name = one.name or one.vendor
        if below(one, 8.0):
            text = f"{name}: compute capability {capability(one)}"
            found.setdefault(text, Evidence(text, one.source))
        elif one.vendor == "ascend" and any(key in code for key in _NO_BFLOAT16):
            found.setdefault(name, Evidence(f"{name} ({code})", one.source))
    if found and not box.says(r"(?i)bfloat16 is only supported"):
        yield finding(
            "VA1301",
            found.values(),
            f"{', '.join(found)}: float16 only; a request for bfloat16 is refused",
            severity=Severity.NOTE,
        )


RULES: Final = (
    Rule("VA1302", _fp8),
    Rule("VA1301", _float16_only),
    TextRule(
        "VA1301",
        ("bfloat16 is only supported",),
        r"(?i)bfloat16 is only supported on GPUs with compute capability of at least 8\.0\. Your "
        r"(?P<name>.+?) GPU has compute capability (?P<cc>\d+\.\d+)",
        "{name} has compute capability {cc}, and bfloat16 needs 8.0",
        "use float16: `--dtype float16` (half)",
    ),
    TextRule(
        "VA1301",
        ("bfloat16", "bf16"),
        r"(?i)\b(?:bfloat16|bf16|DT_BFLOAT16|DT_BF16)\b[^\n]*(?:is not supported|not support\b|"
        r"unsupported|is not implemented)[^\n]*\b(?:npu|310\w*|ascend\w*|MPS|this device"
        r"|architecture|"
        r"MUSA|gfx\w+)\b|type bf16 not supported in this architecture",
        "the device has no bfloat16",
        "use float16: `--dtype float16` (half)",
    ),
    TextRule(
        "VA1302",
        ("does not have native support for fp8",),
        r"Your GPU does not have native support for FP8 computation",
        "the device multiplies no FP8: weights are kept in it and computed in 16 bits",
        "nothing, unless throughput matters: INT8 (W8A8) or an unquantised checkpoint",
        Severity.NOTE,
    ),
    TextRule(
        "VA1303",
        ("e4m3fnuz",),
        r"(?i)e4m3fnuz[^\n]*e4m3fn\b|e4m3fn\b[^\n]*e4m3fnuz",
        "two flavours of FP8 meet: e4m3fn (largest value 448) and e4m3fnuz (240) have other bits",
        only=r"(?i)error|mismatch|expected",
    ),
    TextRule(
        "VA1304",
        ("has no attribute 'gptq", "has no attribute 'awq", "marlin"),
        r"has no attribute '(?P<op>gptq_marlin\w*|awq_marlin\w*|marlin_\w+|fp8_marlin\w*|"
        r"awq_dequantize|gptq_\w+|cutlass_scaled\w*)'",
        "the quantisation needs {op}, which this build of vLLM does not hold: its CPU build has "
        "no FP8 or GPTQ-Marlin kernels",
        "choose a bfloat16 or INT8 checkpoint for this platform; the warnings about XPU beside it "
        "mean nothing here",
    ),
    TextRule(
        "VA1304",
        ("quantization method", "quantization is currently not supported",
         "quantization is not supported"),
        r"(?i)quantization method (?P<method>(?!fp8)[\w-]+) is not supported for the "
        r"current GPU\. "
        r"Minimum capability: (?P<need>\d+)\. Current capability: (?P<have>\d+)",
        "{method} needs compute capability {need} (tens and units), and this device has {have}",
        "use a checkpoint in another format (AWQ and GPTQ run from 7.5, bitsandbytes from 7.0), "
        "or unquantised in float16",
    ),
    TextRule(
        "VA1304",
        ("quantization is currently not supported",),
        r"(?P<method>[\w-]+) quantization is currently not supported in (?P<where>\w+)"
        r"|(?P<other>[\w-]+) quantization is currently not supported in [^\n]*",
        "the platform {where} has no kernels for {method}{other}",
        "use a bfloat16 checkpoint, or a quantisation of the platform's own list",
    ),
    TextRule(
        "VA1304",
        ("is not supported for quantization method",),
        r"torch\.(?P<dtype>\w+) is not supported for quantization method (?P<method>[\w-]+)\. "
        r"Supported dtypes: \[(?P<all>[^\]]*)\]",
        "the kernels of {method} take {all}, and {dtype} was asked for",
        "`--dtype half` (float16), or the type that the message lists",
    ),
    TextRule(
        "VA1509",
        ("flashattention only supports", "no valid attention backend", "is not valid for this",
         "fa3 is only supported", "flashinfer requires", "flashmla is"),
        r"(?i)FlashAttention only supports Ampere GPUs or newer"
        r"|No valid attention backend found[^\n]*|Selected backend [\w.]+ is not valid for this "
        r"configuration[^\n]*|FA3 is only supported on[^\n]*|FlashInfer requires GPUs with sm\w+"
        r"|FlashMLA\w* is (?:only )?supported on[^\n]*",
        "the attention backend that was chosen does not run on this device, head size or "
        "data type",
        "leave --attention-backend (VLLM_ATTENTION_BACKEND) unset, so that vLLM picks one; below "
        "compute capability 8.0 it is TRITON_ATTN or FLEX_ATTENTION",
    ),
    TextRule(
        "VA1301",
        ("not implemented for dt_bfloat16",),
        r"not implemented for DT_BFLOAT16, should be in dtype support list",
        "an operator of this NPU has no bfloat16 (310P and 910A have none at all)",
        "use float16: `--dtype float16` (half)",
    ),
    TextRule(
        "VA1505",
        ("\" not implemented for '",),
        r"\"(?P<op>\w+)\" not implemented for '(?P<dtype>Half|BFloat16|Float8_e4m3fn\w*|Char)'",
        "this torch has no {op} for {dtype} on the device that the tensor is on: often a tensor "
        "that was left on the CPU",
        "use another --dtype (float32 or bfloat16 on a CPU), or a newer torch; where a device "
        "was expected, see why the CPU serves (`vllm-adapter doctor --vllm`)",
    ),
)  # fmt: skip
