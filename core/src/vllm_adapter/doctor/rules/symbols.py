"""Two libraries that disagree about a symbol, and which packages they are of."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from vllm_adapter.doctor.finding import Finding
from vllm_adapter.doctor.rule import Box, Rule, finding, quoted

_SITE: Final = r"(?:site|dist)-packages/(?P<package>[A-Za-z0-9_]+)"
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
_UNDEFINED: Final = (
    r"(?P<library>[^\s:'\"(]+\.so[.\d]*)['\"]?: undefined symbol: (?P<symbol>\w+)"
    r"(?:, version (?P<version>[\w.+-]+))?"
)


def _undefined_symbol(box: Box) -> Iterator[Finding]:
    seen: set[tuple[str, str]] = set()
    for line, match in box.told(_UNDEFINED, ("undefined symbol",)):
        library, symbol = match["library"], match["symbol"]
        if (library, symbol) in seen:
            continue
        seen.add((library, symbol))
        found = re.search(_SITE, line.text[: match.end("library")])
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


RULES: Final = (Rule("VA1205", _undefined_symbol),)
