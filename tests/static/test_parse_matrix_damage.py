"""Any link matrix, any damage: the same answer or none, never a wrong one."""

from __future__ import annotations

import pytest
from examples import examples
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from matrix_text import (
    CASES,
    DAMAGES,
    LEGEND,
    STYLES,
    Printed,
    aligned,
    facts_of,
    printed,
    single,
    wrapped,
)

from vllm_adapter_doctor.report.parsers._common import cpu_list

pytestmark = pytest.mark.static


def check(text: str, truth: Printed, *, exact: bool) -> None:
    """Equal to the truth; where `exact` is False, unknown is right too."""
    facts = facts_of(text)
    if not exact and not facts.links:
        assert facts.accelerators == ()
        return
    (found,) = facts.links
    assert found.devices == truth.labels[: truth.devices]
    links = {(link.first, link.second): link.text for link in found.links}
    for (first, second), word in links.items():
        assert word in {truth.link(first, second), truth.link(second, first)}
    if exact:
        assert all(word == truth.link(*pair) for pair, word in links.items())
        assert len(links) == len(truth.labels) * (len(truth.labels) - 1)
    below = [int(v[2]) for v in truth.values if len(v) > 2 and v[2].isdigit()]
    for device, values in zip(facts.accelerators, truth.values, strict=True):
        cpu, numa, memory = (*values, "", "", "")[:3]
        numa, memory = numa.replace("N/A", ""), memory.replace("N/A", "")
        named = cpu_list(numa) or ()
        lower = tuple(node for node in named if below and node < min(below))
        assert device.cpus in {cpu_list(cpu)} | (set() if exact else {()})
        assert device.numa_nodes in {named, lower} | (set() if exact else {()})
        assert device.memory_nodes in {cpu_list(memory)} | (set() if exact else {()})


SLOW = settings(max_examples=examples(120), suppress_health_check=[HealthCheck.too_slow])


@SLOW
@given(printed(full=True), st.sampled_from(STYLES), st.lists(st.sampled_from(DAMAGES), max_size=3))
def test_no_value_is_lost_to_blanks_and_prefixes(truth, style, damages):
    lines = style(truth.lines())
    for damage in damages:
        lines = damage(lines)
    check("\n".join(lines) + LEGEND, truth, exact=True)


@SLOW
@given(printed(), st.sampled_from(STYLES), st.lists(st.sampled_from(DAMAGES), max_size=2))
def test_a_blank_cell_never_takes_its_neighbours_value(truth, style, damages):
    lines = style(truth.lines())
    for damage in damages:
        lines = damage(lines)
    check("\n".join(lines) + LEGEND, truth, exact=False)


@SLOW
@given(printed(), st.sampled_from(STYLES), st.data())
def test_a_table_cut_anywhere_is_never_wrong(truth, style, data):
    text = "\n".join(style(truth.lines())) + LEGEND
    end = data.draw(st.integers(0, len(text)))
    check_part(text[:end], truth)


@SLOW
@given(printed(full=True), st.sampled_from(STYLES), st.data())
def test_rows_may_be_missing(truth, style, data):
    lines = style(truth.lines())
    gone = data.draw(st.sets(st.integers(0, len(lines) - 1), max_size=len(lines) - 1))
    kept = [line for at, line in enumerate(lines) if at not in gone]
    check_part("\n".join(kept) + LEGEND, truth)


@SLOW
@given(printed(), st.integers(20, 200))
def test_wrapped_lines_are_never_wrong(truth, width):
    check_part("\n".join(wrapped(truth.lines(), width)) + LEGEND, truth)


@SLOW
@given(printed(), st.sampled_from((2, 10, 30)), st.randoms(use_true_random=False))
def test_lost_tabs_are_never_wrong(truth, percent, random):
    lines = (
        "".join(c for c in x if c != "\t" or random.random() * 100 > percent)
        for x in truth.lines()
    )
    check_part("\n".join(lines) + LEGEND, truth)


@SLOW
@given(printed(), st.integers(10, 150))
def test_the_edge_of_a_screen_is_never_wrong(truth, width):
    assume(not any(values[2:] == ("2",) or values[2:] == ("18",) for values in truth.values))
    lines = (line[:width] for line in aligned(truth.lines()))
    check_part("\n".join(lines) + LEGEND, truth)


@SLOW
@given(printed(words=("ETH", "HT", "NV1", "NV18", "SYS")), st.sampled_from(STYLES), st.data())
def test_a_piece_of_a_table_is_never_wrong(truth, style, data):
    text = "\n".join(style(truth.lines())) + LEGEND
    start = data.draw(st.integers(0, len(text)))
    check_part(text[start : data.draw(st.integers(start, len(text)))], truth)


def check_part(text: str, truth: Printed) -> None:
    """No link, node or CPU that is not the truth's; devices may be missing."""
    facts = facts_of(text)
    for table in facts.links:
        for link in table.links:
            assert link.text in {
                truth.link(link.first, link.second),
                truth.link(link.second, link.first),
            }
        assert set(table.devices) <= set(truth.labels[: truth.devices])
    for device in facts.accelerators:
        cpu, numa, memory = (*truth.values[device.index], "", "", "")[:3]
        assert device.cpus in {(), cpu_list(cpu)}
        assert len(device.numa_nodes) != 1 or device.numa_nodes[0] in (cpu_list(numa) or ())
        assert device.memory_nodes in {(), cpu_list(memory)}


@SLOW
@given(printed(full=True, words=("SYS", "NODE", "PHB", "PXB", "PIX")), st.integers(72, 120))
def test_wrapping_loses_few_links(truth, width):
    facts = facts_of("\n".join(wrapped(truth.lines(), width)) + LEGEND)
    (found,) = facts.links
    links = {(link.first, link.second): link.text for link in found.links}
    assert len(links) == len(truth.labels) * (len(truth.labels) - 1)


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.name[:20])
def test_cases_cut_anywhere_are_never_wrong(path):
    text = path.read_bytes().decode()
    whole = facts_of(text)
    links = {(t.kind, k.first, k.second): k.text for t in whole.links for k in t.links}
    devices = {(d.vendor, d.index): d for d in whole.accelerators}
    for end in range(0, min(len(text), 4000), 211):
        part = facts_of(text[:end])
        for table in part.links:
            for link in table.links:
                assert links[table.kind, link.first, link.second] == link.text
        for device in part.accelerators:
            known = devices[device.vendor, device.index]
            assert device.cpus in {(), known.cpus}
            assert len(device.numa_nodes) != 1 or device.numa_nodes == known.numa_nodes


@SLOW
@given(st.text(max_size=300) | st.text("GPUNICX01 \t\n|/SYNVA-,", max_size=300))
def test_no_text_raises(text):
    facts_of(text)


@SLOW
@given(st.lists(st.sampled_from([*single(["x"]), "GPU0", "GPU1", "X", "SYS", "NV1", "\n", "\t"])))
def test_no_words_raise(words):
    facts_of(" ".join(words))


def test_styles_are_what_they_say():
    assert aligned(["a\tb"]) == ["a       b"]
    assert wrapped(["abcd"], 2) == ["ab", "cd"]
