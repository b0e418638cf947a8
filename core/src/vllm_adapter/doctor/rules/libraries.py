"""Shared libraries that the loader does not find, or finds too old."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from vllm_adapter.doctor.finding import Finding
from vllm_adapter.doctor.rule import Box, Rule, finding, quoted
from vllm_adapter.doctor.text_rule import TextRule

_MISSING: Final = (
    r"(?P<library>lib[\w+-]+(?:-[\w.]+)?\.so(?:\.\d+)*): cannot open shared object file"
    r"|(?:Library not loaded"
    r"|Could not load library)[: ]+\S*?(?P<other>lib[\w.+-]+\.(?:dylib|so[.\d]*))"
)
_ELSEWHERE: Final = (
    r"libcuda\.|libcudart|libascend_hal|libdrvdsmi_host|libdcmi|libc_sec|libmmpa|libnvidia-ml"
)
"""Those mean something else than a missing package: other rules' libraries."""
_SOURCED: Final = (
    (
        r"lib(?:hccl|ascendcl|runtime|opapi|ge_runner|graph|msprofiler|profapi|error_manager|acl\w*|"
        r"register|nnopbase|tiling_api|platform|ascend_protobuf|atb\w*|asdops\w*|mki|hccl_\w+|"
        r"op_plugin_atb)\.so",
        "CANN is not installed here, or its environment was not set up in this shell",
        "`source /usr/local/Ascend/ascend-toolkit/set_env.sh` (and nnal/atb/set_env.sh for "
        "libatb); install CANN toolkit and kernels of the release that this torch_npu names",
    ),
    (
        r"lib(?:sycl|ze_loader|ur_loader|mkl_sycl\w*|ccl|OpenCL|intel\w*|pti_view|imf|svml|irng|"
        r"umf|tcm|hwloc)\b",
        "Intel's runtime (oneAPI or the level-zero driver) is not installed here, or its "
        "environment was not set up in this shell",
        "`source /opt/intel/oneapi/setvars.sh`; libze_loader.so.1 is in libze1 (level-zero), "
        "libOpenCL.so.1 in ocl-icd-libopencl1; with pip: intel-sycl-rt of torch's release",
    ),
    (
        r"lib(?:amdhip64|hsa-runtime64|rocblas|hipblas\w*|rccl|MIOpen|rocsolver|roctx64|roctracer64|"
        r"amd_comgr|hiprtc|rocm_smi64|amd_smi|rocsparse|hipsparse\w*|hipfft|rocfft|hiprand|rocrand)\b",
        "ROCm's libraries of the major version that this build wants are not in this environment",
        "install ROCm of the release in torch's version (+rocmN.M) or use AMD's image; add "
        "/opt/rocm/lib to LD_LIBRARY_PATH",
    ),
    (
        r"lib(?:Synapse|hl_\w*|hcl|habana\w*)",
        "Gaudi's software is not installed in this environment",
        "use the vendor's PyTorch image of the driver's release, or install habanalabs-graph and "
        "habana-torch-plugin",
    ),
    (
        r"lib(?:mcruntime|mcblas|mccl|musart|mublas|mccl|mudnn|cnrt|cnnl|cndrv|cncl|topsrt)\b",
        "the vendor's runtime is not installed here, or its environment was not set up",
        "source the vendor's set-up file (MACA_PATH, MUSA_HOME, NEUWARE_HOME), and add its lib "
        "folder to LD_LIBRARY_PATH",
    ),
)
_PACKAGES: Final = (
    (r"libgomp\.so", "`apt-get install libgomp1`, or libgomp"),
    (r"libstdc\+\+\.so", "`apt-get install libstdc++6`, or libstdc++"),
    (r"libGL\.so", "`apt-get install libgl1`, or mesa-libGL"),
    (r"libnuma\.so", "`apt-get install libnuma1`, or numactl-libs"),
    (r"libtbb\w*\.so", "`apt-get install libtbb12`, or `pip install tbb`"),
    (r"libtcmalloc\w*\.so", "`apt-get install libtcmalloc-minimal4`, or gperftools-libs"),
    (r"libiomp5\.so", "`pip install intel-openmp`, and let LD_PRELOAD name its file"),
    (r"libibverbs|librdmacm|libmlx5", "`apt-get install libibverbs1 librdmacm1`"),
    (r"libmpi\w*\.so", "`apt-get install libopenmpi3`, or openmpi"),
    (r"libpython3", "`apt-get install libpython3.N` of this Python, or build it shared"),
    (r"libcudnn", "`pip install nvidia-cudnn-cu12` of torch's release (for CUDA 13: -cu13)"),
    (r"libnccl", "`pip install nvidia-nccl-cu12` of torch's release (for CUDA 13: -cu13)"),
    (r"libnv\w+|libcu\w+", "`pip install --force-reinstall torch` brings its nvidia-* packages; "
     "their CUDA major version must be that of the build"),
    (r"lib(?:torch|c10)\w*", "reinstall the package that asks for it, for the torch that is here"),
)  # fmt: skip


def _missing(box: Box) -> Iterator[Finding]:
    seen: set[str] = set()
    words = ("cannot open shared object", "library not loaded", "could not load library")
    for line, match in box.told(_MISSING, words):
        library = match["library"] or match["other"]
        if library in seen or re.match(_ELSEWHERE, library) or "work for XPU device" in line.text:
            continue
        seen.add(library)
        vendor = next((row for row in _SOURCED if re.match(row[0], library)), None)
        if vendor:
            yield finding(
                "VA1215", [quoted(line)], f"{library} is not found: {vendor[1]}", vendor[2]
            )
            continue
        package = next((text for names, text in _PACKAGES if re.match(names, library)), None)
        if package and re.match(r"lib(?:torch|c10)", library):
            yield finding(
                "VA1202",
                [quoted(line)],
                f"a package was built with a torch that has {library}, and the installed torch "
                "is another build",
                package,
            )
            continue
        yield finding(
            "VA1206",
            [quoted(line)],
            f"the loader does not find {library} in this environment; in a container the host's "
            "packages do not count",
            f"install the package that holds {library} in the image"
            + (f": {package}" if package else ""),
        )


RULES: Final = (
    Rule("VA1206", _missing),
    TextRule(
        "VA1210",
        ("static tls",),
        r"(?P<library>lib\w*omp[\w.-]*|lib[\w.-]+\.so[.\d]*): cannot allocate memory in "
        r"static TLS",
        "OpenMP's library is loaded too late, and often twice: torch's own copy and the system's "
        "({library})",
        "import torch first, or `LD_PRELOAD` the library of the message; keep one copy",
    ),
    TextRule(
        "VA1210",
        ("omp: error #15", "already initialized"),
        r"OMP: Error #15[^\n]*",
        "two copies of an OpenMP library are loaded in one program",
        "keep one: remove the second package (often conda's beside pip's); "
        "KMP_DUPLICATE_LIB_OK=TRUE hides it at the risk of wrong results",
    ),
    TextRule(
        "VA1207",
        ("' not found", "not found (required by"),
        r"version [`'](?P<version>(?:GLIBC|GLIBCXX|CXXABI|GOMP|GCC)_[\d.]+)' not found"
        r"(?: \(required by (?P<who>[^)]+)\))?",
        "a wheel needs {version}, and this system's library is older: {who}",
        "for GLIBC use a newer system or image, or build that package here; for GLIBCXX and "
        "CXXABI a newer libstdc++ is enough (`apt-get install libstdc++6`, conda-forge's "
        "libstdcxx-ng first on LD_LIBRARY_PATH)",
    ),
    TextRule(
        "VA1207",
        ("is not a supported wheel",),
        r"(?P<wheel>[\w.+-]+\.whl) is not a supported wheel on this platform",
        "{wheel} is for another system, processor or Python, or needs a newer C library",
        "`pip debug --verbose` lists the tags that fit; take the wheel of this Python and "
        "processor, or a newer system",
    ),
    TextRule(
        "VA1207",
        ("error loading shared library", "error relocating"),
        r"Error loading shared library (?P<library>\S+): No such file[^\n]*"
        r"|Error relocating /[^\n]*",
        "this system's C library is musl (Alpine), and the wheels are built for glibc {library}",
        "use an image with glibc (Debian, Ubuntu, a Red Hat kind)",
    ),
)
