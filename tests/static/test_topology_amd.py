"""What `rocm-smi --showtopo` and `amd-smi topology` say, whole, cut and damaged."""

from __future__ import annotations

import json
import re
from itertools import permutations
from pathlib import Path

import pytest
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from vllm_adapter.hostfacts.facts import HostFacts, LinkMatrix
from vllm_adapter_doctor.report.parsers.amd_topo import parse
from vllm_adapter_doctor.report.text import clean

pytestmark = pytest.mark.static

FOLDER = Path(__file__).parents[1] / "data" / "reports" / "topology-amd"
FILES = sorted(FOLDER.iterdir())
MI250X = "01-8gcd-mi250x-rocm-smi-showtopo-weights.txt"
MI300X = "06-8xmi300x-amd-smi-topology.txt"


def said(text: str) -> HostFacts:
    return parse(clean(text))


def read(name: str) -> str:
    return (FOLDER / name).read_text(encoding="utf-8")


def nodes(facts: HostFacts) -> dict[int, tuple[int, ...]]:
    return {device.index: device.numa_nodes for device in facts.accelerators}


def weights(matrix: LinkMatrix) -> dict[tuple[str, str], int | None]:
    return {(link.first, link.second): link.weight for link in matrix.links}


def test_rocm_smi_weights_types_hops_and_nodes() -> None:
    facts = said(read(MI250X))
    (matrix,) = facts.links
    assert matrix.vendor == "rocm" and matrix.devices == tuple(f"GPU{n}" for n in range(8))
    assert weights(matrix)["GPU1", "GPU7"] == 45 and weights(matrix)["GPU0", "GPU6"] == 15
    assert {link.text for link in matrix.links} == {"XGMI"}
    assert {link.hops for link in matrix.links} == {1}
    assert [node for (node,) in nodes(facts).values()] == [3, 3, 1, 1, 0, 0, 2, 2]


def test_link_types_without_weights() -> None:
    (matrix,) = said(read("03-8gcd-mi250-all-xgmi-link-type-only.txt")).links
    assert len(matrix.links) == 56
    assert {(link.text, link.weight, link.hops) for link in matrix.links} == {("XGMI", None, None)}


def test_amd_smi_tables_are_joined_by_address() -> None:
    facts = said(read(MI300X))
    links, peers = facts.links
    assert (links.kind, peers.kind) == ("links", "peer")
    assert {link.bandwidth_mb_s for link in links.links} == {50000}
    assert {link.text for link in peers.links} == {"ENABLED"}
    assert facts.accelerators[3].bdf == "0000:5c:00.0"


def test_rows_in_another_order_give_the_same_cells() -> None:
    text = read(MI300X)
    head, table = text.split("WEIGHT TABLE:\n")
    rows, rest = table.split("\n\n", 1)
    header, *body = rows.split("\n")
    body[1] = body[1].replace("0000:22:00.0 15 ", "0000:22:00.0 30 ", 1)
    turned = "\n".join([header, *reversed(body)])
    (links, _) = said(f"{head}WEIGHT TABLE:\n{turned}\n\n{rest}").links
    assert weights(links)["0000:22:00.0", "0000:0c:00.0"] == 30
    assert weights(links)["0000:bf:00.0", "0000:af:00.0"] == 15


def test_pcie_weights_and_permuted_nodes() -> None:
    facts = said(read("08-4xpcie-weight52-numa-permuted.txt"))
    assert nodes(facts) == {0: (0,), 1: (1,), 2: (3,), 3: (2,)}
    assert set(weights(facts.links[0]).values()) == {52}


def test_numa_part_alone_says_nothing_of_links() -> None:
    facts = said(read("09-8gpu-showtoponuma-only.txt"))
    assert facts.links == ()
    assert [node for (node,) in nodes(facts).values()] == [0] * 4 + [1] * 4


def test_hygon_has_the_same_tool_under_other_labels() -> None:
    facts = said(read(MI250X).replace("GPU", "HCU"))
    assert facts.links[0].vendor == "hygon"
    assert {device.vendor for device in facts.accelerators} == {"hygon"}
    assert nodes(facts)[6] == (2,)


def test_a_node_of_minus_one_is_unknown() -> None:
    line = "GPU[0]\t\t: (Topology) Numa Node: -1\nGPU[0]\t\t: (Topology) Numa Affinity: -1\nend"
    assert said(line) == HostFacts()


def test_a_range_is_no_node() -> None:
    assert said("GPU[0]\t: (Topology) Numa Affinity: 0-1\nend") == HostFacts()


def test_rocm_smi_json() -> None:
    raw = {
        "system": {
            "(Topology) Weight between DRM devices 0 and 1": "15",
            "(Topology) Link type between DRM devices 0 and 1": "XGMI",
        },
        "card0": {"(Topology) Numa Node": "1", "(Topology) Numa Affinity": "1"},
        "card1": {"(Topology) Numa Node": "-1", "(Topology) Numa Affinity": "-1"},
    }
    for indent in (None, 2):
        facts = said(json.dumps(raw, indent=indent))
        assert weights(facts.links[0]) == {("GPU0", "GPU1"): 15, ("GPU1", "GPU0"): 15}
        assert nodes(facts) == {0: (1,), 1: ()}


def test_amd_smi_json() -> None:
    bdfs = ["0000:0c:00.0", "0000:22:00.0"]
    raw = [
        {
            "gpu": 1 - at,  # the tool's number is not the place in the list
            "bdf": bdf,
            "links": [
                {
                    "gpu": 1 - other,
                    "bdf": bdfs[other],
                    "weight": 0 if other == at else 15,
                    "link_status": "ENABLED",
                    "link_type": "SELF" if other == at else "XGMI",
                    "num_hops": 0 if other == at else 1,
                    "bandwidth": "N/A" if other == at else "50000-64000",
                }
                for other in (0, 1)
            ],
        }
        for at, bdf in enumerate(bdfs)
    ]
    facts = said("$ amd-smi topology --json\n" + json.dumps(raw, indent=4))
    links, peers = facts.links
    assert links.indices == (1, 0) and peers.kind == "peer"
    assert [(link.weight, link.bandwidth_mb_s) for link in links.links] == [(15, 64000)] * 2


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_blanks_prefixes_and_endings_change_nothing(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    right = said(text)
    assert said(re.sub(r"[ \t]+", " ", text)) == right
    assert said(text.replace("\n", "\r\n")) == right
    prefixed = "".join(f"2026-01-02T03:04:05Z {line}\n" for line in text.splitlines())
    assert said(prefixed) == right


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
@settings(max_examples=examples(60))
@given(share=st.floats(0, 1))
def test_a_cut_report_never_says_anything_else(path: Path, share: float) -> None:
    text = path.read_text(encoding="utf-8")
    right, cut = said(text), said(text[: int(share * len(text))])
    for matrix in cut.links:
        whole = next(one for one in right.links if one.kind == matrix.kind)
        full = {(link.first, link.second): link for link in whole.links}
        assert matrix.devices == whole.devices
        for link in matrix.links:
            known = full[link.first, link.second]
            for name in ("text", "weight", "hops", "bandwidth_mb_s"):
                assert getattr(link, name) in (None, getattr(known, name))
    for index, found in nodes(cut).items():
        assert found in ((), nodes(right)[index])


def test_bandwidths_unknown_words_and_no_direct_link() -> None:
    text = (
        "=========== Bandwidth ===========\n       GPU0   GPU1   GPU2\n"
        "GPU0   N/A   50000-64000   0-0\nGPU1   50000-64000   N/A   0-0\n"
        "GPU2   0-0   0-0   N/A\n"
        "=========== Link Type between two GPUs ===========\n       GPU0   GPU1   GPU2\n"
        "GPU0   0   XGMI   Unknown\nGPU1   XGMI   0   PCIE\nGPU2   Unknown   PCIE   0\n"
        "=========== Weight between two GPUs ===========\n       GPU0   GPU1   GPU2\n"
        "GPU0   0   15   None\nGPU1   15   0   40\nGPU2   None   40   0\n=====\n"
    )
    (matrix,) = said(text).links
    found = {(link.first, link.second): link for link in matrix.links}
    assert found["GPU0", "GPU1"].bandwidth_mb_s == 64000 and found["GPU0", "GPU1"].weight == 15
    assert ("GPU0", "GPU2") not in found
    assert (found["GPU1", "GPU2"].text, found["GPU1", "GPU2"].weight) == ("PCIE", 40)


def test_a_damaged_row_is_left_out_and_told() -> None:
    text = read("08-4xpcie-weight52-numa-permuted.txt")
    damaged = text.replace("GPU1   52           0            52", "GPU1   52           0  ", 1)
    (matrix,) = said(damaged).links
    assert weights(matrix)["GPU1", "GPU2"] is None and weights(matrix)["GPU2", "GPU1"] == 52
    assert matrix.notes == ("the weight table's row of GPU1 is cut or damaged",)


@settings(max_examples=examples(150))
@given(st.text() | st.lists(st.sampled_from([
    "Weight between two GPUs", "LINK TYPE TABLE:", "GPU0 GPU1", "GPU0 0 15", "GPU1 XGMI 0",
    "GPU0 GPU0", '[{"gpu": 0, "bdf": 3, "links": [7]}]', "GPU[0] : (Topology) Numa Node: 99999",
    '"(Topology) Weight between DRM devices 0 and 0": "1"', "0000:0c:00.0 0000:22:00.0",
])).map("\n".join))  # fmt: skip
def test_no_text_makes_it_raise_or_link_a_device_with_itself(text: str) -> None:
    for matrix in said(text).links:
        assert len(set(matrix.devices)) == len(matrix.devices)
        pairs = set(permutations(matrix.devices, 2))
        assert all((link.first, link.second) in pairs for link in matrix.links)
