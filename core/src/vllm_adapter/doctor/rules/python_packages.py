"""Python packages that are missing, not built, or of releases that do not go together."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from vllm_adapter.doctor.finding import Evidence, Finding, Severity
from vllm_adapter.doctor.rule import Box, Rule, finding, quoted
from vllm_adapter.doctor.text_rule import TextRule

_KNOWN: Final = (
    r"(?:vllm|torch|transformers|tokenizers|triton|numpy|numba|scipy|flash_attn|flashinfer|xformers|"
    r"sgl_kernel|sglang|ray|xgrammar|outlines\w*|llguidance|lmformatenforcer|compressed_tensors|"
    r"huggingface_hub|safetensors|accelerate|pydantic\w*|fastapi|starlette|uvicorn|uvloop|prometheus\w*|"
    r"jsonschema|openai|msgspec|zmq|cloudpickle|psutil|tiktoken|sentencepiece|mistral_common|gguf|"
    r"einops|cv2|PIL|av|librosa|soundfile|amdsmi|pynvml|aiter|bitsandbytes|deepspeed|apex|"
    r"habana_frameworks|vllm_hpu_extension|intel_extension_for_pytorch|oneccl_bindings_for_pytorch|"
    r"libtpu|torch_xla|jax|tpu_inference|neuronxcc|transformers_neuronx|tbe|te|acl|mindie\w*|decorator|"
    r"setuptools\w*|pkg_resources|packaging|importlib_metadata|attr|sympy|yaml|cffi|mooncake|lmcache|"
    r"depyf|partial_json_parser|blake3|py_cpuinfo|cpuinfo|six|distutils|deep_gemm|deep_ep|"
    r"vllm_\w+|torch_\w+|triton_\w+|torchvision|torchaudio|datasets|modelscope|peft|timm)"
)
"""Packages of vLLM and of the vendors: a module of the user's own is not our matter."""
_MODULE: Final = rf"No module named '(?P<module>{_KNOWN}(?:\.[\w.]+)?)'"
_NAME: Final = rf"cannot import name '(?P<name>\w+)' from '(?P<module>{_KNOWN}(?:\.[\w.]+)?)'"
_WARNED: Final = r"Failed to import (?:from )?vllm\._C\b"
_KERNELS: Final = (
    r"No module named 'vllm\._(?:C\w*|rocm_C|moe_C)'|cannot import name '_C' from 'vllm'"
)
_RAISED: Final = r"\b(?:ModuleNotFoundError|ImportError): No module named"
_GENERATED: Final = r"No module named '(?P<module>[\w.]*\._(?:version|build_info|C))'"
_PLUGINS: Final = ("vllm-ascend", "vllm-gaudi", "vllm-metax", "vllm-spyre", "vllm-musa")


def _torch_missing(box: Box) -> Iterator[Finding]:
    said = [line for line, _ in box.lines(r"^\W*PyTorch version\s*[*`]*:\s*N/A")]
    said += [line for line, _ in box.told(r"No module named 'torch'", ("named 'torch'",))]
    for line in said[:1]:
        yield finding(
            "VA1208",
            [quoted(line)],
            "there is no torch in this environment; it decides nothing about the hardware",
        )


def _kernels_missing(box: Box) -> Iterator[Finding]:
    """vLLM's compiled module. A platform that has none of its own warns of it, and is healthy."""
    said = [line for line, _ in box.told(_KERNELS, ("vllm._", "'_c' from"))]
    failed = [line for line in said if not re.search(_WARNED, line.text)]
    torch = box.facts.torch
    wanted = bool(torch and (torch.cuda or torch.hip)) and box.other_runtime in (None, "rocm")
    lines = failed or (said if wanted else [])
    if lines and not box.says(r"Failed to import from vllm\._C with ImportError"):
        yield finding(
            "VA1209",
            [quoted(lines[0])],
            "vLLM's compiled module is not in the installed package",
            "install a vLLM wheel for this device and Python; do not start Python inside vLLM's "
            "source folder; a source tree has to be built",
        )


def _modules_missing(box: Box) -> Iterator[Finding]:
    seen: set[str] = set()
    for line, match in box.told(_GENERATED, ("no module named",)):
        module = match["module"]
        if module not in seen and not re.search(_KERNELS, line.text):
            seen.add(module)
            yield finding(
                "VA1212",
                [quoted(line)],
                f"{module} is made when the package is built, and is not there: a source tree "
                "that was never built",
                "install it with pip from its folder (`pip install -e .`), or use a wheel",
            )
    for line, match in box.told(_MODULE, ("no module named",)):
        module = match["module"]
        if module in seen or module == "torch" or re.search(_GENERATED, line.text):
            continue
        if not re.search(_RAISED, line.text):
            continue  # a warning about an optional package
        if re.search(_KERNELS, line.text):
            continue
        seen.add(module)
        yield finding(
            "VA1214",
            [quoted(line)],
            f"the package that holds {module} is missing or too old",
            "install or upgrade it in this very environment (`python -m pip install ...`), then "
            "run `pip check`",
        )


def _names_missing(box: Box) -> Iterator[Finding]:
    """A name that another release has. A file of the user with a package's name is not it."""
    for line, match in box.told(_NAME, ("cannot import name",)):
        if "partially initialized" in line.text or re.search(_KERNELS, line.text):
            continue
        module, name = match["module"], match["name"]
        if module.partition(".")[0] == "vllm":
            yield finding(
                "VA1211",
                [quoted(line)],
                f"{name} is not in the installed {module}: vLLM and the package that imports it "
                "are of different releases",
            )
        else:
            owner = module.partition(".")[0]
            yield finding(
                "VA1221",
                [quoted(line)],
                f"{name} is not in the installed {module}: {owner} and the package that imports "
                "it are of different releases",
                f"install the {owner} that the importing package names (`pip show` and "
                "`pip check`), or upgrade both",
            )


def _plugin_release(box: Box) -> Iterator[Finding]:
    """vLLM and a plug-in that pairs with it release by release."""
    vllm = box.facts.vllm
    version = (vllm.version if vllm else None) or box.facts.package("vllm")
    for plugin in _PLUGINS:
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
    Rule("VA1208", _torch_missing),
    Rule("VA1209", _kernels_missing),
    Rule("VA1212", _modules_missing),
    Rule("VA1211", _names_missing),
    Rule("VA1211", _plugin_release),
    TextRule(
        "VA1216",
        ("numpy 1.x cannot be run", "numpy.dtype size changed", "_array_api not found",
         "numpy.core.multiarray failed"),
        r"compiled using NumPy 1\.x cannot be run in|numpy\.dtype size changed"
        r"|_ARRAY_API not found|numpy\.core\.multiarray failed to import",
        "a package was compiled for another major release of NumPy than the installed one",
        "`pip install 'numpy<2'`, or upgrade the package in the traceback to a build for NumPy 2",
    ),
    TextRule(
        "VA1220",
        ("torchvision::", "couldn't load custom c++ ops", "detected that pytorch and"),
        r"operator torchvision::nms does not exist|Couldn't load custom C\+\+ ops"
        r"|Could not run 'torchvision::\w+' with arguments from the 'CUDA' backend"
        r"|Detected that PyTorch and (?P<what>\w+) were compiled with different CUDA",
        "torchvision or torchaudio was built for another torch than the installed one {what}",
        "install torch, torchvision and torchaudio in one command from one index",
    ),
    TextRule(
        "VA1223",
        ("requires python", "requires a different python"),
        r"(?P<what>[\w.-]+)[^\n]* requires a different Python: (?P<have>[\d.]+) not in "
        r"'(?P<want>[^']+)'",
        "{what} is for Python {want}, and this is {have}",
        "make an environment with a Python in that range (`uv venv --python 3.12`)",
    ),
    TextRule(
        "VA1223",
        ("could not find a version that satisfies",),
        r"Could not find a version that satisfies the requirement (?P<what>(?:vllm|torch|triton|"
        r"flashinfer|xformers)[\w.+=<>~!-]*)",
        "the package index holds no {what} for this Python, processor or system",
        "`python -V` and `uname -m`; take a Python that the release's wheels are for (3.10 to "
        "3.13), the vendor's own index, or build it",
    ),
    TextRule(
        "VA1224",
        ("mismatches the version that was used to compile",),
        r"The detected CUDA version \((?P<toolkit>[\d.]+)\) mismatches the version that was used "
        r"to compile\s+PyTorch \((?P<torch>[\d.]+)\)",
        "an extension is compiled with the CUDA toolkit {toolkit} for a torch of CUDA {torch}",
        "point CUDA_HOME at a toolkit of CUDA {torch}, or install the torch of this toolkit's "
        "major version",
    ),
)  # fmt: skip
