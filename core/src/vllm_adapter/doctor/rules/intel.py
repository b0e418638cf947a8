"""Intel GPUs (XPU: level zero, SYCL, oneCCL) and Gaudi (HPU)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from vllm_adapter.doctor.finding import Evidence, Finding, Severity
from vllm_adapter.doctor.rule import Box, Rule, finding
from vllm_adapter.doctor.rules._where import xpu
from vllm_adapter.doctor.text_rule import TextRule

_RELEASE: Final = r"\d+\.\d+"


def _gaudi_releases(box: Box) -> Iterator[Finding]:
    """Gaudi's driver and its torch plug-in have one number, which the vendor pairs."""
    driver = box.facts.driver("habanalabs")
    plugin = box.facts.package("habana-torch-plugin")
    mine = re.match(_RELEASE, driver.version) if driver else None
    theirs = re.match(_RELEASE, plugin or "")
    if driver and mine and theirs and mine[0] != theirs[0]:
        yield finding(
            "VA1117",
            [
                Evidence(f"driver {driver.version}", driver.source),
                Evidence(f"habana-torch-plugin {plugin}", "host facts"),
            ],
            f"Gaudi's driver is of release {mine[0]}, and its software of {theirs[0]}",
            severity=Severity.WARNING,
        )


RULES: Final = (
    Rule("VA1117", _gaudi_releases),
    TextRule(
        "VA1111",
        ("xpu device", "no xpu", "no device of requested type", "error_device_not_found",
         "dpcppsetdevice", "ze_result_error_uninitialized", "failed to init level zero"),
        r"(?i)XPU device count is zero|No XPU devices? (?:are|is) (?:available|found)"
        r"|No XPU devices found|No device of requested type available"
        r"|(?:PI|UR_RESULT)_ERROR_DEVICE_NOT_FOUND|dpcppSetDevice: device_id is out of range"
        r"|zeInit[^\n]*fail|ZE_RESULT_ERROR_UNINITIALIZED|Failed to init Level Zero",
        "level zero gives this process no GPU: /dev/dri/renderD* is not in the container or may "
        "not be opened, the user-space driver is not installed, or a selector hides it",
        "`sycl-ls` must list level_zero:gpu; add `--device /dev/dri` and the render group by its "
        "number; install libze1 and libze-intel-gpu1 (intel-level-zero-gpu); source "
        "/opt/intel/oneapi/setvars.sh; unset ONEAPI_DEVICE_SELECTOR and ZE_AFFINITY_MASK",
        on=xpu,
    ),
    TextRule(
        "VA1705",
        ("out_of_device_memory", "out_of_resources", "native api returns: -5",
         "native api returns: 39", "native api returns: 40"),
        r"(?:UR_RESULT|ZE_RESULT|PI)_ERROR_OUT_OF_DEVICE_MEMORY|Native API returns: 39\b",
        "the GPU has no memory left for an allocation",
        "lower --gpu-memory-utilization, --max-model-len or --max-num-batched-tokens, or spread "
        "the model over more devices",
    ),
    TextRule(
        "VA1705",
        ("error_out_of_resources", "cl_out_of_resources", "returns: 40", "returns:40"),
        r"(?:UR_RESULT|ZE_RESULT|PI)_ERROR_OUT_OF_RESOURCES|CL_OUT_OF_RESOURCES"
        r"|(?:Native API|UR backend) returns: ?40\b",
        "Intel's runtime ran out of a resource of the GPU: mostly memory, also one allocation "
        "above 4 GiB, or a kernel that needs more than the device has",
        "lower --gpu-memory-utilization and --max-num-batched-tokens; set "
        "UR_L0_ENABLE_RELAXED_ALLOCATION_LIMITS=1 for large allocations; upgrade the driver",
    ),
    TextRule(
        "VA1709",
        ("error_device_lost", "gpu hang", "returns: 20", "returns:20"),
        r"(?:UR_RESULT|ZE_RESULT)_ERROR_DEVICE_LOST|(?:Native API|UR backend) returns: ?20\b",
        "the GPU hung or was reset under this program, and its context is gone",
        "`dmesg | grep -iE 'xe|i915'` has the reset; end the process; upgrade kernel, GuC "
        "firmware and the compute runtime; for long kernels raise or switch off the driver's "
        "hang check (xe: job_timeout_ms)",
    ),
    TextRule(
        "VA1410",
        ("/dev/dri/by-path", "ipc_handle", "ze_ipc", "zememopenipchandle", "drmfd", "pidfd"),
        r"(?i)could not open (?:device )?directory:? ?/dev/dri/by-path"
        r"|opendir failed[^\n]*/dev/dri/by-path|zeMem(?:Open|Get)IpcHandle[^\n]*(?:fail|error)"
        r"|pidfd_(?:getfd|open)[^\n]*(?:fail|not permitted|denied)",
        "oneCCL's processes cannot share GPU memory: the container has /dev/dri without by-path, "
        "or no right to exchange file handles",
        "start with `-v /dev/dri/by-path:/dev/dri/by-path --device /dev/dri --ipc=host --cap-add "
        "SYS_PTRACE`, or set CCL_ZE_IPC_EXCHANGE=sockets; CCL_TOPO_P2P_ACCESS=0 where the "
        "platform has no peer access",
    ),
    TextRule(
        "VA1708",
        ("already acquired", "device acquire failed", "device or resource busy", "habanalabs"),
        r"(?i)synStatus[= ]\d+ \[Device already acquired\]|(?<!not found\] )Device acquire failed"
        r"|/dev/(?:accel/accel|hl)\w*[^\n]*Device or resource busy"
        r"|habanalabs[^\n]*[Dd]evice is (?:busy|in use)",
        "no free Gaudi device could be taken: another process holds it (a device serves one "
        "process), a stopped container has not let it go, or a collective's setup failed",
        "`hl-smi` shows the holders; `lsof /dev/accel/accel*` on the host; end them, and set "
        "HABANA_VISIBLE_DEVICES (container) to free modules",
    ),
    TextRule(
        "VA1111",
        ("synstatus", "no hpu", "no devices found", "hpu is not available"),
        r"(?i)synStatus[= ]\d+ \[(?:Device not found|No device)[^\]]*\]"
        r"|No HPU (?:devices?|is) (?:available|found)",
        "Gaudi's runtime counts no device in this process",
        "`hl-smi` on the host; start the container with `--runtime=habana -e "
        "HABANA_VISIBLE_DEVICES=all --cap-add=sys_nice`",
    ),
    TextRule(
        "VA1110",
        ("habanalabs", "habana driver"),
        r"(?i)habanalabs? driver is not loaded|habanalabs?\b[^\n]*(?:module"
        r"|driver)[^\n]*not (?:found|loaded)"
        r"|Please make sure.{0,40}habana\w* driver",
        "the habanalabs kernel module is not loaded on this host",
        "`modprobe habanalabs` (and habanalabs_en, habanalabs_cn, habanalabs_ib); install "
        "habanalabs-dkms for the running kernel",
    ),
)  # fmt: skip
