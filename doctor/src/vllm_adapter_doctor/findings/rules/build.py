"""Builds: torch, vLLM and extensions that have no code for this device, or are for another one."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from vllm_adapter.contract.finding import Evidence
from vllm_adapter.hostfacts.facts import Line
from vllm_adapter_doctor.devices.box_device import Device
from vllm_adapter_doctor.devices.build_rules import NO_CODE, build_archs, code_verdicts
from vllm_adapter_doctor.devices.device_names import capability, described
from vllm_adapter_doctor.devices.rules import is_display_only
from vllm_adapter_doctor.devices.verdict import Outcome
from vllm_adapter_doctor.findings.host import ExaminedHost, quoted
from vllm_adapter_doctor.findings.rule import Data, RuleHit
from vllm_adapter_doctor.vendor_data.driver_tables import serves

_EXTENSIONS: Final = (
    r"(?i)\b(?P<name>flashinfer|flash_attn|xformers|punica|sgl_kernel|deep_gemm|bitsandbytes|"
    r"auto_gptq|exllama\w*|awq\w*|mamba_ssm|causal_conv1d|aiter)\b"
)
_NO_IMAGE: Final = (
    r"no kernel image is available|invalid device function|CUDA error 209|cudaErrorNoKernelImage"
    r"|hipErrorNoBinaryForGpu|Unable to find code object for"
)
_NO_IMAGE_WORDS: Final = (
    "no kernel image", "invalid device function", "cuda error 209", "nokernelimage",
    "nobinaryforgpu", "find code object",
)  # fmt: skip
_CUDART: Final = r"libcudart\.so(?:\.(?P<major>[.\d]+))?: cannot open shared object file"


def no_kernel_image(box: ExaminedHost, data: Data) -> Iterator[RuleHit]:
    """Whose kernel it is: an extension's, LoRA's, or torch's own where its list lacks the device.

    `data` has what to do for new and old devices.
    """
    lines = [line for line, _ in box.program_lines(_NO_IMAGE, _NO_IMAGE_WORDS)]
    if not lines:
        return
    named = next((m["name"] for line in lines if (m := re.search(_EXTENSIONS, line.text))), None)
    torch = box.facts.torch
    build = f"torch {torch.version}" if torch and torch.version else "the installed torch"
    values = {"name": named or "", "build": build, "remedy": _remedy(box, data)}
    served = [has for one in box.devices if (has := _has_code(box, one)) is not None]
    lacking = [one for one in box.devices if _has_code(box, one) is False]
    if lacking:
        values["box_device"] = described(lacking)
    if named:
        case = "extension"
    elif box.has_line(r"(?i)enable[_-]lora|\blora\b|punica"):
        case = "lora"
    elif (torch and torch.hip) or any("HIP" in line.text for line in lines[:3]):
        case = "rocm"
    elif served and all(served):
        case = "other extension"
    else:
        case = "torch"
        if box.has_line(r"is not compatible with the current PyTorch"):
            return  # torch itself has named the device
    yield RuleHit([quoted(line) for line in lines[:3]], values, case)


def _remedy(box: ExaminedHost, data: Data) -> str:
    numbers = [float(n) for one in box.facts.accelerators if (n := capability(one))]
    if numbers and max(numbers) >= 10:
        return str(data["new"])
    if numbers and min(numbers) < 7.5:
        return str(data["old"])
    return str(data["other"])


def _has_code(box: ExaminedHost, device: Device) -> bool | None:
    """Whether torch's list serves a device; None where the list or the architecture is unknown."""
    return serves(build_archs(box.facts)[0], (device.arch or "").partition(":")[0])


def no_code(box: ExaminedHost, data: Data) -> Iterator[RuleHit]:
    """Before any error: torch's list against the devices, as their own verdict has it.

    One beside others that is taken for the display's does not count.
    """
    if box.has_line(_NO_IMAGE) or box.has_line(r"is not compatible with the current PyTorch"):
        return  # said with that text as evidence
    found: dict[Outcome, list[Device]] = {}
    for device in box.devices:
        for one in code_verdicts(device.arch, box.facts, device.vendor):
            if one.code == NO_CODE and not is_display_only(device, box.devices):
                found.setdefault(one.outcome, []).append(device)
    for outcome, lacking in found.items():
        names = ", ".join(dict.fromkeys(f"{one.title} ({one.arch})" for one in lacking))
        source = lacking[0].reported.source if lacking[0].reported else "PCI"
        torch = box.facts.torch
        yield RuleHit(
            [Evidence(f"torch {torch.version if torch else ''}; {names}", source)],
            {"names": names, "remedy": _remedy(box, data)},
            "sure" if outcome is Outcome.REFUSE else "unsure",
        )


def vllm_and_torch(box: ExaminedHost, data: Data) -> Iterator[RuleHit]:
    """A CUDA vLLM beside a torch for the CPU, or for another major version of CUDA."""
    torch, vllm = box.facts.torch, box.facts.vllm
    missing = next(iter(box.program_lines(_CUDART, ("libcudart",))), None)
    if missing and "cpu" not in box.builds:
        yield _other_major(box, missing[0], missing[1])
        return
    if torch is None or "cpu" not in box.builds:
        return
    if box.other_runtime or (box.facts.variable("VLLM_TARGET_DEVICE") or "") in data["targets"]:
        return
    if vllm and vllm.version and re.search(data["other_vllm"], vllm.version):
        return
    runtimes = [f"{n} {v}" for n, v in box.facts.packages if n.startswith("nvidia-cuda-runtime")]
    if missing is None and not (vllm and vllm.version and runtimes):
        return
    evidence = [Evidence(f"torch {torch.version}", "host facts")]
    if missing:
        evidence.append(quoted(missing[0]))
    elif runtimes:
        evidence.append(Evidence(f"installed beside it: {runtimes[0]}", "host facts"))
    yield RuleHit(evidence, {"where": "WSL" if box.wsl else ""}, "cpu")


def _other_major(box: ExaminedHost, line: Line, match: re.Match[str]) -> RuleHit:
    torch = box.facts.torch
    wanted = (match["major"] or "").partition(".")[0]
    own = ((torch.cuda if torch else None) or "").partition(".")[0]
    built = ""
    if torch and (torch.cuda or torch.hip or torch.xpu):
        built = f"CUDA {torch.cuda}" if torch.cuda else "ROCm" if torch.hip else "Intel's XPU"
    values = {
        "wanted": wanted or "(some release)",
        "suffix": wanted or "12",
        "major": wanted or "of one major version",
        "built": built,
    }
    case = "broken" if own and own == wanted else "another build" if built else "no build"
    return RuleHit([quoted(line)], values, case)


def for_another_device(box: ExaminedHost, data: Data) -> Iterator[RuleHit]:
    """A torch without support for the accelerator that is here."""
    torch = box.facts.torch
    if torch is None or torch.version is None or torch.available:
        return
    wanted = sorted(box.vendors & set(data["vendors"]))
    plain = "cpu" in box.builds or (
        not (torch.cuda or torch.hip or torch.xpu)
        and box.has_line(r"CUDA used to build PyTorch\s*[*`]*:\s*None")
        and not box.has_line(r"(?i)Is XPU available\s*:\s*True|XPU used to build PyTorch\s*:\s*\d")
    )
    built = next((name for name in data["vendors"] if name in box.builds), None)
    kernel = box.facts.os.release or ""
    evidence = [Evidence(f"torch {torch.version}", "host facts")]
    values = {"wanted": " or ".join(wanted), "built": built or "", "kernel": kernel}
    if wanted and plain:
        yield RuleHit(evidence, {**values, "wanted": wanted[0]}, "plain")
    elif torch.available is False and built and wanted and built not in wanted:
        yield RuleHit(evidence, values, "another")
    elif plain and re.search(data["kernels"], kernel):
        evidence.append(Evidence(f"kernel {kernel}", "host facts"))
        yield RuleHit(evidence, values, "kernel")
