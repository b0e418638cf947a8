"""Builds and packages: torch, vLLM and extensions that do not fit the box or each other."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from vllm_adapter.doctor.finding import Evidence, Finding, Severity
from vllm_adapter.doctor.rule import Box, Rule, TextRule, finding, quoted

_SITE: Final = re.compile(r"(?:site|dist)-packages/(?P<package>[A-Za-z0-9_]+)")
_PROVIDERS: Final = (
    # beginning of the symbol, who should have it, what to do
    ("__nvJitLink", "nvidia-nvjitlink", "unset LD_LIBRARY_PATH where it points at an older CUDA"),
    ("_ZN3atb", "Ascend's nnal (ATB)", "install the nnal and CANN of this torch_npu's release"),
    ("aclnn", "CANN", "install the CANN of this torch_npu's release and source its set_env.sh"),
    ("acl", "CANN", "install the CANN of this torch_npu's release and source its set_env.sh"),
    ("Hccl", "CANN's HCCL", "install the CANN of this torch_npu's release"),
    ("nccl", "NCCL", "install the nvidia-nccl wheel that this torch names"),
    ("cudnn", "cuDNN", "install the nvidia-cudnn wheel that this torch names"),
    ("cublas", "cuBLAS", "unset LD_LIBRARY_PATH where it points at another CUDA"),
    ("cusparse", "cuSPARSE", "unset LD_LIBRARY_PATH where it points at another CUDA"),
    ("hip", "ROCm", "install the ROCm that this torch was built with"),
    ("hsa_", "ROCm", "install the ROCm that this torch was built with"),
    ("rocm_smi", "ROCm", "install the ROCm that this torch was built with"),
    ("_ZN5torch", "torch", "reinstall {package} for the torch that is installed"),
    ("_ZNK5torch", "torch", "reinstall {package} for the torch that is installed"),
    ("_ZN3c10", "torch", "reinstall {package} for the torch that is installed"),
    ("_ZNK3c10", "torch", "reinstall {package} for the torch that is installed"),
    ("_ZN2at", "torch", "reinstall {package} for the torch that is installed"),
    ("_ZNK2at", "torch", "reinstall {package} for the torch that is installed"),
    ("torch", "torch", "reinstall {package} for the torch that is installed"),
    ("iJIT", "Intel's ITT of MKL", "install mkl below 2024.1, or torch of another channel"),
    ("Py", "Python", "use a wheel for this Python"),
    ("_Py", "Python", "use a wheel for this Python"),
)
_UNDEFINED: Final = re.compile(
    r"(?P<library>[^\s:'\"(]+\.so[.\d]*)['\"]?: undefined symbol: (?P<symbol>\w+)"
    r"(?:, version (?P<version>[\w.+-]+))?"
)
_EXTENSIONS: Final = re.compile(
    r"(?i)\b(?P<name>flashinfer|flash_attn|xformers|punica|sgl_kernel|deep_gemm|bitsandbytes|"
    r"auto_gptq|exllama\w*|awq\w*|mamba_ssm|causal_conv1d|aiter)\b"
)
_NO_IMAGE: Final = re.compile(
    r"no kernel image is available|invalid device function|CUDA error 209|cudaErrorNoKernelImage"
)
_TARGETS: Final = ("cpu", "tpu", "neuron", "xpu", "hpu", "openvino")


def _undefined_symbol(box: Box) -> Iterator[Finding]:
    seen: set[tuple[str, str]] = set()
    for line, match in box.lines(_UNDEFINED):
        library, symbol = match["library"], match["symbol"]
        if (library, symbol) in seen:
            continue
        seen.add((library, symbol))
        found = _SITE.search(line.text[: match.end("library")])
        inner = re.findall(r"nvidia/(\w+)/lib", library)
        package = inner[-1] if inner else found["package"] if found else library.rsplit("/")[-1]
        cause, action = _disagreement(package, symbol, match["version"])
        yield finding("VA1205", [quoted(line)], cause, action)


def _disagreement(package: str, symbol: str, version: str | None) -> tuple[str, str]:
    mangled = symbol.startswith("_Z")
    torch_symbol = re.match(r"_ZNK?(?:5torch|3c10|2at|6caffe2)", symbol)
    if torch_symbol and re.search(r"KSs|RSs|Ss(?:[a-z]|$)", symbol) and "__cxx11" not in symbol:
        return (
            f"{package} was built with the old C++ ABI of strings (before cxx11), and the "
            "installed torch has the new one: they are builds of different torch releases",
            f"install the {package} wheel that was built for the installed torch (cxx11 ABI)",
        )
    if torch_symbol and "__cxx11" in symbol:
        return (
            f"{package} asks torch for a symbol with the new C++ ABI of strings (cxx11) that the "
            "installed torch does not have: it has the old ABI, or is another release",
            f"install the {package} wheel that was built for the installed torch",
        )
    for beginning, owner, action in _PROVIDERS:
        if symbol.startswith(beginning):
            named = f" ({version})" if version else ""
            return (
                f"{package} and {owner}{named} are of different releases: {package} asks for "
                f"{symbol}, which the {owner} that is loaded does not have",
                action.format(package=package),
            )
    other = version or ("a C++ library that it was built with" if mangled else "another library")
    return (
        f"{package} asks {other} for {symbol}, which the one that is loaded does not have: they "
        "are of different releases",
        f"reinstall {package} and what it needs as one set; unset LD_LIBRARY_PATH, `pip check`",
    )


def _no_kernel_image(box: Box) -> Iterator[Finding]:
    lines = [line for line, _ in box.lines(_NO_IMAGE)]
    if not lines:
        return
    device = _first_device(box)
    named = next((m["name"] for line in lines if (m := _EXTENSIONS.search(line.text))), None)
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
        torch = box.facts.torch
        build = torch.version if torch and torch.version else "the installed torch"
        yield finding(
            "VA1203",
            evidence,
            f"neither {build} nor the extension that failed has code for {device}",
            "compare the architecture with `torch.cuda.get_arch_list()`; install a torch build "
            "whose list has it; if it has, the package in the traceback lacks it",
        )


def _first_device(box: Box) -> str:
    known = next((one for one in box.facts.accelerators if one.name or one.arch), None)
    if known is None:
        return "this device"
    return " ".join(filter(None, (known.name, f"({known.arch})" if known.arch else None)))


def _vllm_and_torch(box: Box) -> Iterator[Finding]:
    """A CUDA vLLM beside a torch for the CPU."""
    torch, vllm = box.facts.torch, box.facts.vllm
    cuda_library = next(iter(box.lines(r"libcudart\.so[.\d]*: cannot open shared object")), None)
    if torch is None or torch.local is None or not torch.local.startswith("cpu"):
        return
    if box.facts.package("torch-xla") or box.facts.package("torch-npu"):
        return
    if (box.facts.variable("VLLM_TARGET_DEVICE") or "") in _TARGETS:
        return
    if vllm and vllm.version and re.search(r"\+(?:cpu|xpu|tpu|rocm|neuron)", vllm.version):
        return
    runtimes = [f"{n} {v}" for n, v in box.facts.packages if n.startswith("nvidia-cuda-runtime")]
    if cuda_library is None and not (vllm and vllm.version and runtimes):
        return
    evidence = [Evidence(f"torch {torch.version}", "host facts")]
    if cuda_library:
        evidence.append(quoted(cuda_library[0]))
    elif runtimes:
        evidence.append(Evidence(f"installed beside it: {runtimes[0]}", "host facts"))
    where = " In WSL a GPU is seen only with the CUDA build." if _wsl(box) else ""
    yield finding(
        "VA1202",
        evidence,
        "vLLM is the CUDA build, and torch is a build for the CPU: vLLM's libraries cannot be "
        f"loaded with it.{where}",
        "for NVIDIA: reinstall torch's CUDA build of the release that this vLLM names; for the "
        "CPU: install vLLM's CPU build; one fresh environment for the pair",
    )


def _wsl(box: Box) -> bool:
    return "wsl2" in box.facts.os.environment


def _torch_for_another_device(box: Box) -> Iterator[Finding]:
    """A torch without support for the accelerator that is here."""
    torch = box.facts.torch
    if torch is None or torch.version is None or torch.available:
        return
    if not (torch.local or "").startswith("cpu") and (torch.cuda or torch.hip or torch.xpu):
        return
    if any(box.facts.package(name) for name in ("torch-npu", "torch-xla", "torch-musa")):
        return
    vendors = {one.vendor for one in box.facts.accelerators if not one.integrated}
    wanted = sorted(vendors & {"cuda", "rocm", "xpu"})
    kernel = box.facts.os.release or ""
    cause = ""
    if wanted and (torch.local or "").startswith("cpu"):
        cause = f"torch {torch.version} has no {wanted[0]} support, and such a device is here"
        evidence = [Evidence(f"torch {torch.version}", "host facts")]
    elif re.search(r"nvidia", kernel) and (torch.local or "").startswith("cpu"):
        cause = (
            f"torch {torch.version} is a build for the CPU, on a kernel made for NVIDIA machines "
            f"({kernel}): either the GPUs were not given to this container, or torch is wrong"
        )
        evidence = [
            Evidence(f"torch {torch.version}", "host facts"),
            Evidence(f"kernel {kernel}", "host facts"),
        ]
    if cause:
        yield finding(
            "VA1201",
            evidence,
            cause,
            "install torch's build for this device (for NVIDIA the CUDA build), and start the "
            "container with its devices (`--gpus all`)",
            Severity.WARNING,
        )


def _torch_missing(box: Box) -> Iterator[Finding]:
    for line, _ in box.lines(r"^PyTorch version\s*:\s*N/A|No module named 'torch'$"):
        yield finding(
            "VA1208",
            [quoted(line)],
            "there is no torch in this environment; it decides nothing about the hardware",
        )
        return


def _plugin_release(box: Box) -> Iterator[Finding]:
    """vLLM and a plug-in that pairs with it release by release."""
    vllm = box.facts.vllm
    version = (vllm.version if vllm else None) or box.facts.package("vllm")
    for plugin in ("vllm-ascend", "vllm-gaudi", "vllm-metax", "vllm-spyre", "vllm-musa"):
        its = box.facts.package(plugin)
        if not (its and version):
            continue
        mine, theirs = (re.match(r"\d+\.\d+\.\d+", text) for text in (version, its))
        evidence = [Evidence(f"vLLM {version}, {plugin} {its}", "host facts")]
        if mine and theirs and mine[0] != theirs[0]:
            yield finding(
                "VA1211",
                evidence,
                f"{plugin} {its} is for vLLM {theirs[0]}, and vLLM {version} is installed",
                f"install {plugin} of vLLM's release, or vLLM {theirs[0]}",
            )
        elif mine and theirs and re.search(r"rc|dev|a\d|b\d", its.partition("+")[0]):
            yield finding(
                "VA1211",
                evidence,
                f"{plugin} {its} is a build from between releases: where an import fails, this "
                "pair is the first suspect, and not the hardware",
                f"use the {plugin} release that names vLLM {mine[0]}",
                Severity.NOTE,
            )


RULES: Final = (
    Rule("VA1205", _undefined_symbol),
    Rule("VA1203", _no_kernel_image),
    Rule("VA1202", _vllm_and_torch),
    Rule("VA1201", _torch_for_another_device),
    Rule("VA1208", _torch_missing),
    Rule("VA1211", _plugin_release),
    TextRule(
        "VA1206",
        r"(?P<library>lib(?!cuda\.|cudart)[\w+-]+\.so[.\d]*): cannot open shared object file",
        "the loader does not find {library} in this environment; in a container the host's "
        "packages do not count",
        "install the package that holds {library} in the image (libgomp.so.1: `apt-get install "
        "libgomp1`, or libgomp)",
        unless=(r"(?i)doesn't work for XPU device",),
    ),
    TextRule(
        "VA1210",
        r"(?P<library>lib\w*omp[\w.-]*): cannot allocate memory in static TLS block",
        "OpenMP's library is loaded too late, and often twice: torch's own copy and the system's",
        "import torch first, or `LD_PRELOAD` the libgomp of the message; keep one copy",
    ),
    TextRule(
        "VA1207",
        r"version `(?P<version>(?:GLIBC|GLIBCXX|CXXABI)_[\d.]+)' not found"
        r"(?: \(required by (?P<who>[^)]+)\))?",
        "a wheel needs {version}, and this system's library is older: {who}",
        "use a newer system or image, or build that package here",
    ),
    TextRule(
        "VA1209",
        r"No module named 'vllm\._C'|cannot import name '_C' from 'vllm'",
        "vLLM's compiled module is not in the installed package",
        "install a vLLM wheel for this device and Python; do not start Python inside vLLM's "
        "source folder; a source tree has to be built",
        unless=(r"Failed to import from vllm\._C with ImportError",),
    ),
    TextRule(
        "VA1212",
        r"No module named '(?P<module>[\w.]*\._(?:version|build_info|C))'",
        "{module} is made when the package is built, and is not there: a source tree that was "
        "never built",
        "install it with pip from its folder (`pip install -e .`), or use a wheel",
        unless=(r"No module named 'vllm\._C'",),
    ),
    TextRule(
        "VA1214",
        r"ModuleNotFoundError: No module named '(?P<module>(?!torch')[\w.]+(?<!\._version)"
        r"(?<!\._build_info)(?<!\._C))'",
        "the package that holds {module} is missing or too old",
        "install or upgrade it, then run `pip check`",
    ),
    TextRule(
        "VA1211",
        r"cannot import name '(?P<name>\w+)' from '(?P<module>vllm[\w.]*)'",
        "{name} is not in the installed {module}: vLLM and the package that imports it are of "
        "different releases",
    ),
    TextRule(
        "VA1213",
        r"op ?type (?P<op>\w+) is not found in this op store",
        "CANN has no binary of {op} for this chip: its kernels package is not installed",
        "install the kernels package of this chip and CANN release (for 310P: "
        "Ascend-cann-kernels-310p)",
    ),
    TextRule(
        "VA1203",
        r"(?P<name>[\w /()-]+?) with (?:CUDA|ROCm) capability (?P<arch>sm_\w+|gfx\w+) is not "
        r"compatible with the current PyTorch",
        "torch has no code for {name} ({arch})",
    ),
)
