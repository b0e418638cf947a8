"""Builds: torch, vLLM and extensions that have no code for this device, or are for another one."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from vllm_adapter.doctor.finding import Evidence, Finding, Severity
from vllm_adapter.doctor.rule import Box, Rule, finding, quoted
from vllm_adapter.doctor.rules._names import arch, capability
from vllm_adapter.doctor.text_rule import TextRule
from vllm_adapter.driver_tables import serves, wheel_archs
from vllm_adapter.host.facts import Accelerator, Line

_EXTENSIONS: Final = (
    r"(?i)\b(?P<name>flashinfer|flash_attn|xformers|punica|sgl_kernel|deep_gemm|bitsandbytes|"
    r"auto_gptq|exllama\w*|awq\w*|mamba_ssm|causal_conv1d|aiter)\b"
)
_NO_IMAGE: Final = (
    r"no kernel image is available|invalid device function|CUDA error 209|cudaErrorNoKernelImage"
    r"|hipErrorNoBinaryForGpu|Unable to find code object for"
)
_CUDART: Final = r"libcudart\.so(?:\.(?P<major>[.\d]+))?: cannot open shared object file"
_OWN: Final = ("ascend", "tpu", "gaudi", "musa", "mlu", "enflame", "neuron")
_TARGETS: Final = ("cpu", "tpu", "neuron", "xpu", "hpu", "openvino")


def _no_kernel_image(box: Box) -> Iterator[Finding]:
    words = (
        "no kernel image",
        "invalid device function",
        "cuda error 209",
        "nokernelimage",
        "nobinaryforgpu",
        "find code object",
    )
    lines = [line for line, _ in box.told(_NO_IMAGE, words)]
    if not lines:
        return
    device = _first_device(box)
    named = next((m["name"] for line in lines if (m := re.search(_EXTENSIONS, line.text))), None)
    evidence = [quoted(line) for line in lines[:3]]
    if named:
        yield finding(
            "VA1204",
            evidence,
            f"the {named} that is installed has no code for {device}: torch itself is not the one",
            f"use another backend than {named} (for attention: VLLM_ATTENTION_BACKEND), or build "
            f"{named} for this architecture",
        )
    elif box.says(r"(?i)enable[_-]lora|\blora\b|punica"):
        yield finding(
            "VA1204",
            evidence,
            f"LoRA is on, and its kernels need compute capability 8.0 or later, which {device} "
            "does not have; the base model is not concerned",
            "switch LoRA off on this device, or merge the adapter into the weights",
        )
    else:
        yield _lacking(box, evidence, device)


def _lacking(box: Box, evidence: list[Evidence], device: str) -> Finding:
    """torch itself, where its list is known to lack the device; else an extension, or unknown."""
    torch = box.facts.torch
    build = f"torch {torch.version}" if torch and torch.version else "the installed torch"
    served = [has for one in box.facts.accelerators if (has := _has_code(box, one)) is not None]
    if (torch and torch.hip) or any("HIP" in one.text for one in evidence):
        return finding(
            "VA1203",
            evidence,
            f"the torch, vLLM or image that runs here was built for other AMD architectures than "
            f"that of {device}",
            "`rocminfo | grep gfx` against `torch.cuda.get_arch_list()`; take an image or wheel "
            "that lists it, or build vLLM with PYTORCH_ROCM_ARCH of this device (gfx908 is MI100, "
            "gfx90a MI200, gfx942 MI300, gfx1100 RX 7900)",
        )
    if served and all(served):
        return finding(
            "VA1204",
            evidence,
            f"{build} has code for {device}, so that the extension which failed (vLLM's own "
            "kernels, or a package in the traceback) lacks it",
            "install the wheel of that package for this architecture, or build it with "
            "TORCH_CUDA_ARCH_LIST set to it",
        )
    return finding(
        "VA1203",
        evidence,
        f"neither {build} nor the extension that failed has code for {device}",
        _remedy(box) + "; if `torch.cuda.get_arch_list()` has the architecture, the package in "
        "the traceback lacks it",
    )


def _remedy(box: Box) -> str:
    numbers = [float(n) for one in box.facts.accelerators if (n := capability(one))]
    if numbers and max(numbers) >= 10:
        return "install a torch build for CUDA 12.8 or newer (cu128, cu130), which has sm_100/120"
    if numbers and min(numbers) < 7.5:
        return "install a cu126 build of torch, the last whose list goes down to sm_50"
    return "install a torch build whose list has this architecture"


def _has_code(box: Box, device: Accelerator) -> bool | None:
    """Whether torch's list serves a device; None where the list or the architecture is unknown."""
    torch, code = box.facts.torch, arch(device)
    if torch is None or code is None:
        return None
    built = torch.archs
    if not built and torch.version and torch.cuda and device.vendor == "cuda":
        local = torch.local or f"cu{torch.cuda.replace('.', '')}"
        known = wheel_archs(
            f"{torch.version.partition('+')[0]}+{local}", box.facts.os.machine or "x86_64"
        )
        built = known[0] if known else ()
    return serves(built, code) if built else None


def _no_code(box: Box) -> Iterator[Finding]:
    """Before any error: torch's list against the devices. Displays beside others do not count."""
    torch = box.facts.torch
    devices = [one for one in box.facts.accelerators if _has_code(box, one) is not None]
    lacking = [one for one in devices if _has_code(box, one) is False]
    if torch is None or not lacking or len(lacking) < len(devices):
        return
    names = ", ".join(dict.fromkeys(f"{one.name or one.vendor} ({arch(one)})" for one in lacking))
    if box.says(_NO_IMAGE) or box.says(r"is not compatible with the current PyTorch"):
        return  # said with that text as evidence
    yield finding(
        "VA1203",
        [Evidence(f"torch {torch.version}; {names}", lacking[0].source)],
        f"torch {torch.version} holds no code that runs on {names}",
        _remedy(box),
        Severity.WARNING,
    )


def _first_device(box: Box) -> str:
    known = next((one for one in box.facts.accelerators if one.name or one.arch), None)
    if known is None:
        return "this device"
    code = arch(known)
    return " ".join(filter(None, (known.name, f"({code})" if code else None)))


def _vllm_and_torch(box: Box) -> Iterator[Finding]:
    """A CUDA vLLM beside a torch for the CPU, or for another major version of CUDA."""
    torch, vllm = box.facts.torch, box.facts.vllm
    missing = next(iter(box.told(_CUDART, ("libcudart",))), None)
    if missing and (torch is None or not (torch.local or "").startswith("cpu")):
        yield from _other_major(box, missing[0], missing[1])
        return
    if torch is None or torch.local is None or not torch.local.startswith("cpu"):
        return
    if box.other_runtime or (box.facts.variable("VLLM_TARGET_DEVICE") or "") in _TARGETS:
        return
    if vllm and vllm.version and re.search(r"\+(?:cpu|xpu|tpu|rocm|neuron)", vllm.version):
        return
    runtimes = [f"{n} {v}" for n, v in box.facts.packages if n.startswith("nvidia-cuda-runtime")]
    if missing is None and not (vllm and vllm.version and runtimes):
        return
    evidence = [Evidence(f"torch {torch.version}", "host facts")]
    if missing:
        evidence.append(quoted(missing[0]))
    elif runtimes:
        evidence.append(Evidence(f"installed beside it: {runtimes[0]}", "host facts"))
    where = " In WSL a GPU is seen only with the CUDA build." if box.wsl else ""
    yield finding(
        "VA1202",
        evidence,
        "vLLM is the CUDA build, and torch is a build for the CPU: vLLM's libraries cannot be "
        f"loaded with it.{where}",
        "for NVIDIA: reinstall torch's CUDA build of the release that this vLLM names; for the "
        "CPU: install vLLM's CPU build; one fresh environment for the pair",
    )


def _other_major(box: Box, line: Line, match: re.Match[str]) -> Iterator[Finding]:
    torch = box.facts.torch
    wanted = (match["major"] or "").partition(".")[0]
    here = None
    if torch and (torch.cuda or torch.hip or torch.xpu):
        here = f"torch {torch.version} is built for " + (
            f"CUDA {torch.cuda}" if torch.cuda else "ROCm" if torch.hip else "Intel's XPU"
        )
    own = (torch.cuda or "").partition(".")[0] if torch else ""
    same = bool(own and own == wanted)
    yield finding(
        "VA1202",
        [quoted(line)],
        f"vLLM or an extension is built for CUDA {wanted or '(some release)'}, and its runtime "
        "library is not in this environment"
        + (
            ": torch's nvidia-* packages are not whole"
            if same
            else f": {here}"
            if here
            else ", so that torch is another build"
        ),
        f"`pip install nvidia-cuda-runtime-cu{wanted or '12'}` mends a broken install; otherwise "
        f"install torch and vLLM as a pair for CUDA {wanted or 'of one major version'}",
    )


def _torch_for_another_device(box: Box) -> Iterator[Finding]:
    """A torch without support for the accelerator that is here."""
    torch = box.facts.torch
    if torch is None or torch.version is None or torch.available:
        return
    packages = ("torch-npu", "torch-xla", "torch-musa")
    if any(box.facts.package(name) for name in packages) or box.other_runtime in _OWN:
        return
    wanted = sorted(box.vendors & {"cuda", "rocm", "xpu"})
    plain = (torch.local or "").startswith("cpu") or (
        not (torch.cuda or torch.hip or torch.xpu)
        and box.says(r"CUDA used to build PyTorch\s*[*`]*:\s*None")
        and not box.says(r"(?i)Is XPU available\s*:\s*True|XPU used to build PyTorch\s*:\s*\d")
    )
    built = "cuda" if torch.cuda else "rocm" if torch.hip else "xpu" if torch.xpu else None
    kernel = box.facts.os.release or ""
    evidence = [Evidence(f"torch {torch.version}", "host facts")]
    if wanted and plain:
        cause = f"torch {torch.version} has no {wanted[0]} support, and such a device is here"
    elif torch.available is False and built and wanted and built not in wanted:
        cause = (
            f"torch {torch.version} is a build for {built}, and the device here needs one for "
            f"{' or '.join(wanted)}"
        )
    elif plain and re.search(r"nvidia|tegra", kernel):
        cause = (
            f"torch {torch.version} is a build for the CPU, on a kernel made for NVIDIA machines "
            f"({kernel}): either the GPUs were not given to this container, or torch is wrong"
        )
        evidence.append(Evidence(f"kernel {kernel}", "host facts"))
    else:
        return
    yield finding(
        "VA1201",
        evidence,
        cause,
        "install torch's build for this device (CUDA for NVIDIA, +rocm for AMD, +xpu for Intel; "
        "on a Jetson the vendor's own wheel), and start the container with its devices",
        Severity.WARNING,
    )


RULES: Final = (
    Rule("VA1203", _no_kernel_image),
    Rule("VA1203", _no_code),
    Rule("VA1202", _vllm_and_torch),
    Rule("VA1201", _torch_for_another_device),
    TextRule(
        "VA1203",
        ("is not compatible with the",),
        r"(?:^|: )\s*(?P<name>[\w /()-]+?) with (?:CUDA|ROCm) capability (?P<arch>sm_\w+|gfx\w+) "
        r"is not compatible with the current PyTorch",
        "torch has no code for {name} ({arch})",
        "install a torch build whose list has {arch}: sm_100 and sm_120 need CUDA 12.8 or newer, "
        "sm_70 and older a cu126 build; see `torch.cuda.get_arch_list()`",
    ),
    TextRule(
        "VA1203",
        ("because it is too old",),
        r"Found GPU\d+ (?P<name>.{1,80}?) which is of (?:cuda|compute) capability (?P<cc>[\d.]+)",
        "{name} has compute capability {cc}, which this torch has no code for any more",
        "install a cu126 build of torch, whose list goes down to 5.0; vLLM's own kernels need "
        "7.0, most of them 7.5",
        only=r"no longer supports this GPU because it is too old",
    ),
)
