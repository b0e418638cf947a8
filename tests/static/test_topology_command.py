"""`vllm-adapter topology`: its tables, its exit codes, and the drawing."""

from __future__ import annotations

import json
import xml.etree.ElementTree as xml
from pathlib import Path

import pytest
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from topologies import host

from vllm_adapter.cli.main import main
from vllm_adapter_doctor.cli.drawing import draw
from vllm_adapter_doctor.topology.read import build

pytestmark = pytest.mark.static

REPORTS = Path(__file__).parents[1] / "data" / "reports"
SVG = "{http://www.w3.org/2000/svg}"
WORDS = ("NV18", "NV17", "NV2", "XGMI", "HCCS", "PIX", "PXB", "PHB", "NODE", "SYS", "")


def report(name: str) -> str:
    (path,) = REPORTS.glob(f"{name}*")
    return str(path)


def texts(svg: str) -> list[str]:
    return [element.text or "" for element in xml.fromstring(svg).iter(f"{SVG}text")]


def kinds(svg: str) -> list[str]:
    return [element.get("class") or "" for element in xml.fromstring(svg).iter()]


def test_a_sound_box(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["topology", "--report", report("topology-nvidia/01-")]) == 0
    out = capsys.readouterr().out
    assert "one NVLink domain of 8: GPU0-7, every pair NV18" in out
    assert "--numa-bind --numa-bind-nodes 0 0 0 0 1 1 1 1 --numa-bind-cpus 0-95,192-287" in out
    assert "NUMA node 1: {GPU4-7}" in out


def test_a_degraded_link_is_bad_news(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["topology", "--report", report("topology-nvidia/15-")]) == 1
    out = capsys.readouterr().out
    assert "degraded: GPU4 and GPU7: NV6" in out and "NIC1: switch to GPU0-3" in out


def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["topology", "--json", "--report", report("topology-amd/08-")]) == 0
    raw = json.loads(capsys.readouterr().out)
    assert raw["numa"][0]["flags"] == ["--numa-bind", "--numa-bind-nodes", "0", "1", "3", "2"]


def test_a_report_without_a_device_is_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "shopping.txt"
    path.write_text("milk, bread")
    assert main(["topology", "--report", str(path)]) == 1
    assert "no accelerator is seen in the report" in capsys.readouterr().out


def test_the_drawing_is_written_whole_or_not_at_all(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "box.svg"
    assert main(["topology", "--report", report("topology-amd/01-"), "--svg", str(path)]) == 0
    assert {f"GPU{n}" for n in range(8)} <= set(texts(path.read_text()))
    nowhere = tmp_path / "absent" / "box.svg"
    capsys.readouterr()
    assert main(["topology", "--report", report("topology-amd/01-"), "--svg", str(nowhere)]) == 2
    assert capsys.readouterr().out == "" and not nowhere.parent.exists()


def test_a_domain_where_all_are_joined_is_one_frame() -> None:
    svg = draw(build(host(16, lambda i, j: "NV6", node=lambda i: i // 8)))
    assert kinds(svg).count("frame") == 1 and "fabric" not in kinds(svg)
    assert "NVLink: NV6, all to all" in texts(svg)


def test_two_domains_are_two_frames() -> None:
    facts = host(16, lambda i, j: "NV18" if i // 8 == j // 8 else "SYS", node=lambda i: i // 4)
    assert kinds(draw(build(facts))).count("frame") == 2


def test_pairs_are_lines_with_their_lanes_and_weak_ones_are_marked() -> None:
    facts = host(4, lambda i, j: ("NV8" if i < 2 else "NV4") if i ^ 1 == j else "SYS")
    svg = draw(build(facts))
    assert kinds(svg).count("fabric") == 1 and kinds(svg).count("bad") == 1
    assert {"NV8", "NV4 !"} <= set(texts(svg))


def test_a_weak_device_and_a_missing_link_are_marked_inside_the_frame() -> None:
    weak = draw(build(host(8, lambda i, j: "NV17" if 3 in (i, j) else "NV18")))
    assert kinds(weak).count("box weak") == 1 and kinds(weak).count("frame") == 1
    missing = draw(build(host(8, lambda i, j: "SYS" if {i, j} == {2, 6} else "NV18")))
    assert "no link !" in texts(missing) and kinds(missing).count("bad") == 1


def test_switches_are_drawn_inside_their_node() -> None:
    svg = draw(build(host(4, lambda i, j: "PIX" if i ^ 1 == j else "SYS", node=lambda i: i // 2)))
    assert kinds(svg).count("island") == 2
    assert {"PCIe switch", "NUMA node 0", "NUMA node 1"} <= set(texts(svg))


def test_names_from_a_report_cannot_break_the_file() -> None:
    svg = draw(build(host(2, lambda i, j: "SYS", names=["<b>&\x07", 'x"\ud800'])))
    svg.encode("utf-8")
    xml.fromstring(svg)


@settings(max_examples=examples(40))
@given(st.data())
def test_boxes_never_overlap_and_stay_inside(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 17))
    cells = data.draw(st.lists(st.sampled_from(WORDS), min_size=40, max_size=40))
    nodes = data.draw(st.lists(st.none() | st.integers(0, 3), min_size=count, max_size=count))
    facts = host(count, lambda i, j: cells[(i * j + i + j) % 40], node=nodes.__getitem__)
    root = xml.fromstring(draw(build(facts)))
    boxes = [
        tuple(float(box.get(name) or 0) for name in ("x", "y", "width", "height"))
        for box in root.iter(f"{SVG}rect")
        if (box.get("class") or "").startswith("box")
    ]
    assert len(boxes) == count
    for at, (x, y, width, height) in enumerate(boxes):
        assert 0 <= x and x + width <= float(root.get("width") or 0)
        assert 0 <= y and y + height <= float(root.get("height") or 0)
        for a, b, c, d in boxes[at + 1 :]:
            assert x + width <= a or a + c <= x or y + height <= b or b + d <= y
