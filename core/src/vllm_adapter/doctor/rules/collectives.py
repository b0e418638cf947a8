"""Collectives and ports: NCCL, RCCL, HCCL, oneCCL, gloo, Ray's devices."""

from __future__ import annotations

from typing import Final

from vllm_adapter.doctor.finding import Severity
from vllm_adapter.doctor.text_rule import TextRule

RULES: Final = (
    TextRule(
        "VA1901",
        ("ej0003", "ei0019", "failed to bind the ip port", "hcclsocket"),
        r"\bEJ0003\b|\bEI0019\b|Failed to bind the IP port"
        r"|\[HcclSocket\]\[Listen\][^\n]*fail|listen on ip\[[^\n]*port\[\d+\] fail",
        "another job on this host holds the port that HCCL listens on",
        "set HCCL_IF_BASE_PORT to a free range (HCCL_NPU_SOCKET_PORT_RANGE for the NPU's own "
        "cards), or end the other job",
    ),
    TextRule(
        "VA1909",
        ("address already in use", "eaddrinuse", "error while attempting to bind"),
        r"(?i)bind on address \('[^']*', (?P<server>\d+)\)[^\n]*|EADDRINUSE[^\n]*"
        r"|(?:bind|listen)[^\n]*address already in use|address already in use[^\n]*"
        r"|server socket has failed to (?:listen|bind)[^\n]*",
        "another program on this host listens on the port that was asked for {server}",
        "`ss -ltnp` shows which; end it, or take another port: --port for the server, "
        "VLLM_PORT or --master-port (29500 by default) for its workers",
    ),
    TextRule(
        "VA1902",
        ("nccl warn", "ibv_", "no socket interface", "socketstartconnect", "no route to host",
         "connectfullmesh", "unable to find address for"),
        r"NCCL WARN .*(?:Connection (?:refused|timed out|reset)|No (?:socket )?interface found|"
        r"No route to host|Call to connect[^\n]*failed|Net\b[^\n]*error)|\bibv_\w+ failed"
        r"|Bootstrap : no socket interface found|Call to ibv_\w+ failed"
        r"|socketStartConnect: Connect to \S+ failed"
        r"|Gloo connectFullMesh failed[^\n]*|[Uu]nable to find (?:address for|interface)[^\n]*",
        "the collective library could not reach its peers over the network that it chose",
        "name the interface that joins the hosts: NCCL_SOCKET_IFNAME and GLOO_SOCKET_IFNAME (and "
        "HCCL_SOCKET_IFNAME); NCCL_IB_HCA for cards, NCCL_IB_DISABLE=1 to try without RDMA; open "
        "the ports between the hosts; VLLM_HOST_IP for the address of each",
        unless=(r"(?i)ibv_reg_mr\w* failed[^\n]*Cannot allocate memory",),
    ),
    TextRule(
        "VA1902",
        ("got completion from peer", "port_down", "state: down", "link down", "ibv_wc",
         "transport retry counter exceeded"),
        r"NET/IB[^\n]*Got completion[^\n]*(?:error|status=1[0-9])[^\n]*|IBV_WC_RETRY_EXC_ERR"
        r"|transport retry counter exceeded|state:\s+PORT_DOWN|mlx\d_\w+ port \d+ ==> \w+ "
        r"\(Down\)",
        "an RDMA card lost its peer, or its port is down",
        "`ibstat`, `ibv_devinfo` and `ibdev2netdev` show the ports; check cable and switch; leave "
        "a dead card out with NCCL_IB_HCA=^mlx5_N; for RoCE set NCCL_IB_GID_INDEX",
    ),
    TextRule(
        "VA1914",
        ("watchdog caught collective operation timeout", "collective operation timeout",
         "monitoredbarrier", "timed out waiting for clients"),
        r"Watchdog caught collective operation timeout[^\n]*"
        r"|Timed out waiting for clients[^\n]*|monitoredBarrier[^\n]*timed? ?out[^\n]*",
        "a collective waited for other ranks in vain: a rank died or is far behind",
        "look for the first error of all ranks, above this one; NCCL_DEBUG=INFO shows where they "
        "stand; where a link hangs try NCCL_P2P_DISABLE=1",
    ),
    TextRule(
        "VA1915",
        ("unhandled system error", "unhandled cuda error", "ncclsystemerror",
         "ncclunhandledcudaerror", "ncclinternalerror", "ncclinvalidusage"),
        r"(?i)(?:NCCL error[^\n]*: )?(?P<what>unhandled (?:system|cuda) error|"
        r"nccl(?:System|UnhandledCuda|Internal)Error|internal error - please report[^\n]*nccl)",
        "NCCL or RCCL failed ({what}); its own log says why",
        "run again with NCCL_DEBUG=INFO and read the first NCCL WARN line; in containers check "
        "/dev/shm (`--ipc=host`) and memlock first",
        Severity.WARNING,
        unless=(
            r"(?i)/dev/shm|shared memory|ibv_|Connection (?:refused|timed out)|No route to host"
            r"|no kernel image|invalid device ordinal|out of memory|driver version is "
            r"insufficient",
        ),
    ),
    TextRule(
        "VA1806",
        ("peer access is not supported", "peer mapping", "p2p is disabled", "peer access"),
        r"(?i)peer access is not supported between these two devices"
        r"|peer mapping resources exhausted",
        "two devices cannot reach each other's memory, and the program counts on it",
    ),
    TextRule(
        "VA1605",
        ("required gpus exceeds", "larger than the number of available gpus",
         "number of visible devices", "cannot provide a placement group", "world size"),
        r"(?i)number of required (?P<kind>\w+) exceeds the total number of available \w+"
        r"|World size \((?P<want>\d+)\) is larger than the number of available \w+ "
        r"\((?P<have>\d+)\)"
        r"|local_world_size \((?P<local>\d+)\)[^\n]*visible devices \((?P<seen>[1-9]\d*)\)"
        r"|Cannot provide a placement group",
        "more devices were asked for than this process sees {want}{local}",
        "make --tensor-parallel-size times --pipeline-parallel-size the number of visible "
        "devices; check the visible-devices variable, the container's devices, and `ray status`",
    ),
    TextRule(
        "VA1806",
        ("custom allreduce is disabled because",),
        r"Custom allreduce is disabled because your platform lacks GPU P2P capability[^\n]*",
        "the GPUs have no peer access, and vLLM uses NCCL instead of its own reduction",
        "nothing; --disable-custom-all-reduce silences it",
        Severity.NOTE,
    ),
)  # fmt: skip
