"""Ascend: the driver, CANN and torch_npu, by the messages and numbers that they print.

Numbers are ACL's (aclrt) return codes, letters with digits the error codes of CANN's documents.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from vllm_adapter.doctor.finding import Evidence, Finding, Severity
from vllm_adapter.doctor.rule import Box, Rule, finding
from vllm_adapter.doctor.rules._where import ascend
from vllm_adapter.doctor.text_rule import TextRule

_RELEASE: Final = r"\d+\.\d+"
_HOST: Final = (
    "pass /dev/davinciN, /dev/davinci_manager, /dev/devmm_svm and /dev/hisi_hdc to the container, "
    "mount /usr/local/dcmi, /usr/local/bin/npu-smi, /usr/local/Ascend/driver and "
    "/etc/ascend_install.info (`vllm-adapter container` prints all of it)"
)


def _torch_npu(box: Box) -> Iterator[Finding]:
    """torch_npu is built for one release of torch, whose number it has."""
    torch = box.facts.torch
    version = (torch.version if torch else None) or box.facts.package("torch")
    plugin = box.facts.package("torch-npu")
    mine, theirs = (re.match(_RELEASE, text or "") for text in (version, plugin))
    if mine and theirs and mine[0] != theirs[0]:
        yield finding(
            "VA1220",
            [Evidence(f"torch {version}, torch_npu {plugin}", "host facts")],
            f"torch_npu {plugin} is built for torch {theirs[0]}, and torch {version} is here: "
            "another package has pulled it in",
            f"install torch {theirs[0]} again (its +cpu build is right), then `pip check`",
        )


RULES: Final = (
    Rule("VA1220", _torch_npu),
    TextRule(
        "VA1406",
        ("libascend_hal.so", "libdrvdsmi_host.so", "libdcmi.so", "dcmi"),
        r"(?P<what>lib(?:ascend_hal|drvdsmi_host|dcmi|c_sec|mmpa)\.so)[.\d]*: cannot open shared"
        r"|dcmi mod\w+ initiali[sz]e\w* failed[.,]? *(?:ret is -8005|ret=-8005)",
        "the host's Ascend driver is not reachable in here: its folder ({what}) or device nodes "
        "are not in this container",
        f"{_HOST}; then `export LD_LIBRARY_PATH=/usr/local/Ascend/driver/lib64/driver:"
        "/usr/local/Ascend/driver/lib64/common:$LD_LIBRARY_PATH`",
    ),
    TextRule(
        "VA1708",
        ("because the device is used", "ej0001"),
        r"(?i)dcmi mod\w+ initiali[sz]e\w* failed, because the device is used"
        r"|\bEJ0001\b[^\n]*",
        "another container or job holds this NPU: a device is given to one container at a time, "
        "and its communication process (HCCP) serves one job",
        "find the holder with `npu-smi info` on the host and end it (also processes left over by "
        "a crash: `npu-smi info -t proc-mem -i ID`), or take another device",
    ),
    TextRule(
        "VA1406",
        ("drvdeviceopen", "drvgetdevnum", "drvgetplatforminfo", "halgetdeviceinfo",
         "get device count", "no npu device", "no available npu"),
        r"(?i)drv(?:DeviceOpen|GetDevNum|GetPlatformInfo)\b[^\n]*(?:fail|error)"
        r"|halGetDeviceInfo[^\n]*fail|get device count[^\n]*(?:fail|error code)"
        r"|no (?:available )?npu devices?\b",
        "the Ascend driver answers with no device in this process",
        f"`npu-smi info` in the same place; {_HOST}; unset ASCEND_RT_VISIBLE_DEVICES once",
        on=ascend,
    ),
    TextRule(
        "VA1603",
        ("error code is 107001", "invalid device id"),
        r"(?i)error code is 107001|Set ?device failed[^\n]*invalid device ?id"
        r"|aclrtSetDevice[^\n]*107001",
        "the program asks for an NPU whose number is not among the visible ones: they are counted "
        "from 0 again within ASCEND_RT_VISIBLE_DEVICES and in a container",
        "set ASCEND_RT_VISIBLE_DEVICES to numbers that `npu-smi info` lists here, and use 0 to "
        "n-1 in the program",
        on=ascend,
    ),
    TextRule(
        "VA1112",
        ("507008", "507899", "soc version"),
        r"(?i)error code is 507(?:008|899)\b|aclInit\S* failed\W+(?:error code is )?507(?:008|899)"
        r"|(?:obtain|get) SOC version (?:response )?fail",
        "the driver refuses what CANN's runtime asks of it: the host's driver and firmware are "
        "older than (or do not belong to) the CANN of this environment",
        "compare `npu-smi info` (driver) and `cat /usr/local/Ascend/ascend-toolkit/latest/"
        "version.cfg` (CANN) with the table of CANN's release; upgrade driver, then firmware, on "
        "the host, and reboot",
        on=ascend,
    ),
    TextRule(
        "VA1704",
        ("507033", "failed to start the device", "tsd client wait"),
        r"(?i)error code is 507033|Failed to start the device\b|tsd client wait response fail",
        "CANN reached the driver and could not start the device's own processor (AICPU): driver "
        "and CANN do not fit, the operator package is damaged, or the device hangs",
        "read /var/log/npu/slog and ~/ascend/log/debug/plog; `npu-smi info -t health -i ID`; "
        "reset with `npu-smi set -t reset -i ID -c 0`; install CANN and its kernels package anew",
        on=ascend,
    ),
    TextRule(
        "VA1705",
        ("207001", "el0004", "failed to allocate memory", "hccl"),
        r"(?i)\bEL0004\b|(?:error code is|ret(?:Code)?\W{1,3})\s*(?:0x)?207001\b"
        r"|HCCL[^\n]*(?:out of memory|alloc\w* (?:device )?mem\w* fail)",
        "the NPU has no memory left for what CANN or HCCL allocates outside of torch: each "
        "communicator takes twice HCCL_BUFFSIZE (200 MB by default) at its first call, after "
        "vLLM has taken its share",
        "lower --gpu-memory-utilization (or HCCL_BUFFSIZE), and warm the communicators up before "
        "the KV cache is made",
        on=ascend,
    ),
    TextRule(
        "VA1914",
        ("ei0002", "ei0006", "ei0009", "ei0015", "getting socket times out", "get_socket_timeout",
         "wait socket establish timeout", "fftsplus task timeout"),
        r"\bEI00(?:02|06|09|15)\b|Getting socket times out|wait socket establish timeout"
        r"|hccl fftsplus task timeout",
        "an HCCL call waited for other ranks in vain: a rank died or started late, or the NPUs' "
        "network cards do not reach each other (link, address range, TLS setting)",
        "look for the first error of all ranks; then, for each device, `hccn_tool -i N -link -g`, "
        "`-net_health -g`, `-tls -g` (equal on all); raise HCCL_CONNECT_TIMEOUT where loading is "
        "slow",
    ),
    TextRule(
        "VA1902",
        ("link status: down", "net health status", "roce"),
        r"(?i)\blink status: DOWN\b|\bnet health status: (?!Success)\S[^\n]*"
        r"|RoCE[^\n]*link[^\n]*\bdown\b|link[^\n]*\bRoCE\b[^\n]*\bdown\b",
        "a network card of an NPU has no link (or no healthy one), so that HCCL reaches no other "
        "host",
        "check cable, optics and switch port; `hccn_tool -i N -optical -g`, `-ip -g`, `-netdetect "
        "-g`; inside one host HCCS serves without it",
    ),
    TextRule(
        "VA1902",
        ("ei0004", "ei0005"),
        r"\bEI000[45]\b",
        "HCCL's table of ranks is wrong, or the ranks disagree about a collective's parameters",
        "let the launcher write RANK_TABLE_FILE anew (or unset it), and start the same code and "
        "arguments on every rank",
    ),
    TextRule(
        "VA1707",
        ("hbm", "multi-bit ecc"),
        r"(?i)(?:HBM|DDR)[^\n]*(?:multi[- ]?bit|uncorrect\w*)[^\n]*ECC|UCE[^\n]*HBM"
        r"|HBM[^\n]*\bUCE\b",
        "the NPU's memory met an uncorrectable error",
        "`npu-smi info -t ecc -i ID`; drain and reset the device; replace it if the count grows",
        on=ascend,
    ),
    TextRule(
        "VA1213",
        ("op store",),
        r"op ?type (?P<op>\w+) is not found in this op store",
        "CANN has no binary of {op} for this chip: its kernels package is not installed",
        "install the kernels package of this chip and CANN release (for 310P: "
        "Ascend-cann-kernels-310p)",
    ),
    TextRule(
        "VA1213",
        ("verify the opp", "e30006"),
        r"(?i)Failed to verify the OPP|\bE30006\b",
        "CANN's operator package (OPP) is missing, damaged, or not the one of this chip",
        "source set_env.sh of CANN so that ASCEND_OPP_PATH is right, and install the kernels "
        "package of this chip and CANN release",
    ),
    TextRule(
        "VA1709",
        ("error code is 507014", "error code is 507046"),
        r"(?i)error code is 5070(?:14|46)\b",
        "a task on the NPU ran into its time limit and was stopped",
        "find the operator in ~/ascend/log/debug/plog; where any operator does it, "
        "`npu-smi info -t health -i ID` and a reset of the device",
        Severity.WARNING,
        on=ascend,
    ),
    TextRule(
        "VA1205",
        ("not in libopapi.so",),
        r"(?P<op>aclnn\w+?)(?:GetWorkspaceSize)?(?: or aclnn\w+)? not in libopapi\.so",
        "torch_npu (or the plug-in) calls {op}, which the CANN that is loaded does not have: CANN "
        "is older than they are",
        "install the CANN toolkit and kernels of the release that this torch_npu names, and "
        "source its set_env.sh",
    ),
    TextRule(
        "VA1705",
        ("ei0007",),
        r"\bEI0007\b[^\n]*",
        "HCCL could not get its buffers: the NPU has no memory left for them. Each communicator "
        "takes twice HCCL_BUFFSIZE (200 MB by default) at its first call, after vLLM has taken "
        "its share",
        "lower --gpu-memory-utilization (or HCCL_BUFFSIZE), and warm the communicators up before "
        "the KV cache is made",
    ),
)  # fmt: skip
