"""AMD: ROCm's driver, its user space, and what a HIP program says of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from vllm_adapter.doctor.finding import Evidence, Finding, Severity
from vllm_adapter.doctor.rule import Box, Rule, finding, quoted
from vllm_adapter.doctor.rules._where import rocm
from vllm_adapter.doctor.text_rule import TextRule
from vllm_adapter.driver_versions import parse_version

_OVERRIDE: Final = "HSA_OVERRIDE_GFX_VERSION"
_FAULT: Final = (
    r"Memory access fault by GPU|HIP error: (?:invalid device function|unspecified launch failure)"
    r"|hipErrorInvalidDeviceFunction|HSA_STATUS_ERROR_(?:ILLEGAL_INSTRUCTION|INVALID_ISA)"
)


def _driver_window(box: Box) -> Iterator[Finding]:
    """Pairs that are outside of AMD's window by any reading of their numbers.

    A driver's number may be the package's or the module's own, so that most cannot be held
    against ROCm's: up to ROCm 6.3 the window is two releases, later about a year.
    """
    driver, torch = box.facts.driver("amdgpu"), box.facts.torch
    told = box.facts.driver("rocm")
    release = torch.hip if torch and torch.hip else told.version if told else None
    own, theirs = (
        parse_version(text) if text else None
        for text in (driver.version if driver else None, release)
    )
    if driver is None or own is None or theirs is None or len(theirs) < 2:
        return
    major, rocm_release = own[0][1], (theirs[0][1], theirs[1][1])
    if not (
        (major >= 30 and (6, 0) <= rocm_release <= (6, 3))
        or (major == 5 and rocm_release >= (7, 0))
    ):
        return
    yield finding(
        "VA1109",
        [
            Evidence(f"kernel driver {driver.version}", driver.source),
            Evidence(f"ROCm {release}", "host facts"),
        ],
        f"the kernel driver {driver.version} and ROCm {release} are years apart, and AMD supports "
        "such a pair in neither direction",
        severity=Severity.WARNING,
    )


def _forced_arch(box: Box) -> Iterator[Finding]:
    """Code of another architecture, by a variable, and a fault that such code gives."""
    value = box.facts.variable(_OVERRIDE)
    faults = [quoted(line) for line, _ in box.told(_FAULT, ("fault by gpu", "hip", "hsa_status"))]
    if value and faults:
        yield finding(
            "VA1222",
            [*faults[:2], Evidence(f"{_OVERRIDE}={value}", "environment")],
            f"{_OVERRIDE}={value} makes the runtime load code of gfx{value.replace('.', '')} on "
            "a device of another architecture, and the device faults",
            f"unset {_OVERRIDE} and install a torch and vLLM that hold code for the device",
        )


RULES: Final = (
    Rule("VA1109", _driver_window),
    Rule("VA1222", _forced_arch),
    TextRule(
        "VA1110",
        ("rock module is not loaded", "amdgpu not found in modules", "driver not initialized",
         "driver_not_loaded", "status_no_drv"),
        r"(?i)ROCk module is NOT loaded|amdgpu not found in modules"
        r"|Driver not initialized \(amdgpu|AMDSMI_STATUS_(?:DRIVER_NOT_LOADED|NO_DRV)",
        "the amdgpu kernel module is not loaded on this host (a container has no modules of its "
        "own)",
        "`modprobe amdgpu` on the host; install amdgpu-dkms for the running kernel; look for a "
        "blacklist under /etc/modprobe.d",
        on=rocm,
    ),
    TextRule(
        "VA1111",
        ("no hip gpus", "no rocm-capable", "hiperrornodevice", "no devices found"),
        r"(?i)No HIP GPUs are available|no ROCm-capable device is detected|hipErrorNoDevice"
        r"|Could not initialize Tensile host: No devices found",
        "HIP counts no device in this process: /dev/kfd and /dev/dri/renderD* are not in the "
        "container or may not be opened, or a visible-devices variable hides all",
        "start the container with `--device /dev/kfd --device /dev/dri --group-add video "
        "--group-add RENDER` (RENDER by number: `stat -c %g /dev/kfd`), check `rocminfo` inside, "
        "and unset HIP_VISIBLE_DEVICES and ROCR_VISIBLE_DEVICES",
        on=rocm,
    ),
    TextRule(
        "VA1111",
        ("hsa api call failure",),
        r"hsa api call failure at",
        "ROCm's runtime cannot open its devices: /dev/kfd is not there, or this user is not in "
        "the group that owns it",
        "check `ls -ln /dev/kfd /dev/dri` against `id -G`; add the group by its number",
        on=rocm,
    ),
    TextRule(
        "VA1203",
        ("tensilelibrary", "hipblaslt"),
        r"(?i)Cannot read \S*TensileLibrary\S*(?:.*GPU arch : (?P<arch>gfx\w+))?",
        "rocBLAS has no kernels for this GPU's architecture {arch}",
        "install the ROCm (or torch wheel) whose rocBLAS lists the architecture: look in "
        "lib/rocblas/library for its name",
    ),
    TextRule(
        "VA1410",
        ("hipipc", "hip error: invalid device context"),
        r"(?i)hipIpc\w+[^\n]*(?:fail|error|invalid)",
        "processes cannot share device memory here: the container lacks the host's IPC "
        "namespace, or its seccomp profile forbids it",
        "start with `--ipc=host --cap-add SYS_PTRACE --security-opt seccomp=unconfined`",
    ),
)  # fmt: skip
