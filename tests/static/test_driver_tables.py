"""Versions, and the tables of drivers, toolkits and torch builds, row by row."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllm_adapter_doctor.vendor_data.driver_tables import (
    cuda_of_driver,
    decode_cuda,
    full_driver,
    minimum_driver,
    rocm_targets,
    serves,
    toolkit_table,
    wheel_archs,
)
from vllm_adapter_doctor.vendor_data.driver_versions import begins_with, older, parse_version

pytestmark = pytest.mark.static


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("535.104.12", ((1, 535), (1, 104), (1, 12))),
        ("24.1.rc3", ((1, 24), (1, 1), (0, 3))),
        ("24.1.RC3.b080", ((1, 24), (1, 1), (0, 3))),
        ("6.12.12", ((1, 6), (1, 12), (1, 12))),
        ("30.10.1", ((1, 30), (1, 10), (1, 1))),
        ("v1.19.0-5c9", ((1, 1), (1, 19))),
        ("550.54.15-0ubuntu1", ((1, 550), (1, 54), (1, 15))),
        ("7.2.53211-671d39a3bb", ((1, 7), (1, 2), (1, 53211))),
        ("N/A", None),
        ("ERR!", None),
        ("1.2 beta", None),
        ("\u0661.2", None),
        ("", None),
        (None, None),
    ],
)
def test_versions_are_read(text, parts):
    assert parse_version(text) == parts


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("525.60.12", "525.60.13"),
        ("525", "525.60.13"),
        ("99.9", "525"),
        ("24.1.rc3", "24.1"),
        ("24.1.rc2", "24.1.rc3"),
        ("24.1.rc3", "24.1.0.1"),
        ("6.4.3", "30.10"),
    ],
)
def test_older_is_by_parts(first, second):
    first, second = parse_version(first), parse_version(second)
    assert older(first, second) and not older(second, first)


def test_missing_parts_are_zero():
    assert parse_version("24.1") == parse_version("24.1.0.0")
    assert not older(parse_version("580"), parse_version("580.0"))


@given(st.text(max_size=12), st.text(max_size=12))
def test_no_text_makes_it_raise(first, second):
    parsed = parse_version(first)
    if parsed is not None:
        assert not older(parsed, parsed)
    assert begins_with(first, second) in (True, False)


def test_begins_with_compares_whole_parts():
    assert begins_with("12.8.1", "12.8") and begins_with("12", "12")
    assert not begins_with("12.8", "1") and not begins_with("12", "12.8")


@pytest.mark.parametrize(
    ("runtime", "driver"),
    [
        ("13.0", "580"),
        ("13.2", "580"),
        ("12.0", "525.60.13"),
        ("12.9", "525.60.13"),
        ("11.8", "450.80.02"),
        ("11.0", "450.36.06"),
        ("10.2", "440.33"),
        ("10.1", "418.39"),
        ("10.0", "410.48"),
        ("9.2", None),
    ],
)
def test_a_runtime_needs_the_minimum_of_its_major(runtime, driver):
    assert minimum_driver(runtime) == driver


TOOLKITS = """
13.3.1 610.43.02|13.3.0 610.43.02|13.2.2 595.71.05|13.2.1 595.58.03|13.2.0 595.45.04
13.1.2 590.48.01|13.1.1 590.48.01|13.1.0 590.44.01|13.0.3 580.126.20|13.0.2 580.95.05
13.0.1 580.82.07|13.0.0 580.65.06|12.9.2 575.57.08|12.9.1 575.57.08|12.9.0 575.51.03
12.8.2 570.211.01|12.8.1 570.124.06|12.8.0 570.26|12.6.3 560.35.05|12.6.2 560.35.03
12.6.1 560.35.03|12.6.0 560.28.03|12.5.1 555.42.06|12.5.0 555.42.02|12.4.1 550.54.15
12.4.0 550.54.14|12.3.2 545.23.08|12.3.1 545.23.08|12.3.0 545.23.06|12.2.2 535.104.05
12.2.1 535.86.09|12.2.0 535.54.03|12.1.1 530.30.02|12.1.0 530.30.02|12.0.1 525.85.12
12.0.0 525.60.13|11.8.0 520.61.05|11.7.1 515.48.07|11.7.0 515.43.04|11.6.2 510.47.03
11.6.1 510.47.03|11.6.0 510.39.01|11.5.2 495.29.05|11.5.1 495.29.05|11.5.0 495.29.05
11.4.4 470.82.01|11.4.3 470.82.01|11.4.2 470.57.02|11.4.1 470.57.02|11.4.0 470.42.01
11.3.1 465.19.01|11.3.0 465.19.01|11.2.2 460.32.03|11.2.1 460.32.03|11.2.0 460.27.04
"""


@pytest.mark.parametrize("row", TOOLKITS.strip().replace("\n", "|").split("|"))
def test_what_a_toolkit_fully_works_with(row):
    toolkit, driver = row.split()
    assert full_driver(toolkit) == driver


def test_a_toolkit_without_a_number_has_no_driver():
    assert full_driver("13.4.1") is None and full_driver("12.7") is None
    assert full_driver("12.4") == "550.54.14"


def test_toolkits_and_branches_agree():
    for toolkit, driver in toolkit_table("cuda", "packed").items():
        assert toolkit.startswith(cuda_of_driver(driver) + "."), (toolkit, driver)
    assert len(toolkit_table("cuda", "branches")) == 23
    for branch, cuda in toolkit_table("cuda", "branches").items():
        minimum = parse_version(minimum_driver(cuda))
        assert not older(parse_version(f"{branch}.999"), minimum), (branch, cuda)


BRANCH_ROWS = (
    "450=11.0 455=11.1 460=11.2 465=11.3 470=11.4 495=11.5 510=11.6 515=11.7 520=11.8 525=12.0 "
    "530=12.1 535=12.2 545=12.3 550=12.4 555=12.5 560=12.6 565=12.7 570=12.8 575=12.9 580=13.0 "
    "590=13.1 595=13.2 610=13.3"
)


@pytest.mark.parametrize("row", BRANCH_ROWS.split())
def test_what_a_branch_reports(row):
    branch, cuda = row.split("=")
    assert cuda_of_driver(f"{branch}.12.03") == cuda


@pytest.mark.parametrize("driver", ["387.26", "615.1", "30.10.1", "N/A"])
def test_an_unknown_branch_is_unknown(driver):
    assert cuda_of_driver(driver) is None


@pytest.mark.parametrize(("number", "cuda"), [(11040, "11.4"), (12080, "12.8"), (13000, "13.0")])
def test_integers_of_the_cuda_api(number, cuda):
    assert decode_cuda(number) == cuda


WHEEL_ROWS = [
    ("2.5.1+cu118", "x86_64", "37 50 60 61 70 75 80 86 90", False),
    ("2.5.0+cu121", "x86_64", "50 60 61 70 75 80 86 90 90a", False),
    ("2.5.0+cu124", "x86_64", "50 60 61 70 75 80 86 90 90a", False),
    ("2.6.0+cu118", "x86_64", "37 50 60 70 75 80 86 90", False),
    ("2.6.0+cu124", "x86_64", "50 60 70 75 80 86 90", False),
    ("2.7.0+cu126", "x86_64", "50 60 70 75 80 86 90", False),
    ("2.7.0+cu128", "x86_64", "75 80 86 90 100 120 +120", False),
    ("2.8.0+cu126", "x86_64", "50 60 70 75 80 86 90", True),
    ("2.14.0+cu126", "x86_64", "50 60 70 75 80 86 90", True),
    ("2.8.0+cu128", "x86_64", "70 75 80 86 90 100 120", True),
    ("2.10.0+cu128", "x86_64", "70 75 80 86 90 100 120", True),
    ("2.11.0+cu128", "x86_64", "75 80 86 90 100 120", True),
    ("2.8.0+cu129", "x86_64", "70 75 80 86 90 100 120 +120", True),
    ("2.13.0+cu129", "x86_64", "75 80 86 90 100 120", True),
    ("2.9.0+cu130", "x86_64", "75 80 86 90 100 120 +120", True),
    ("2.14.0+cu130", "x86_64", "75 80 86 90 100 120 +120", True),
    ("2.12.0+cu132", "x86_64", "75 80 86 90 100 120 +120", True),
    ("2.9.1+cu126", "aarch64", "80 90", True),
    ("2.11.0+cu128", "aarch64", "80 90 100 120", True),
    ("2.12.0+cu129", "aarch64", "80 90 100 120", True),
    ("2.13.0+cu130", "aarch64", "80 90 100 110 120 +120", True),
    ("2.14.0+cu132", "aarch64", "80 90 100 110 120 +120", True),
]


@pytest.mark.parametrize(("torch", "machine", "archs", "sure"), WHEEL_ROWS)
def test_archs_of_a_torch_wheel(torch, machine, archs, sure):
    named = tuple(f"compute_{a[1:]}" if a[0] == "+" else f"sm_{a}" for a in archs.split())
    assert wheel_archs(torch, machine) == (named, sure)


@pytest.mark.parametrize(
    "torch", ["2.12.0+cu128", "2.15.0+cu126", "2.13.0", "2.13.0+cpu", "2.4.1+das.opt1.dtk25041"]
)
def test_a_wheel_that_is_not_built_is_unknown(torch):
    assert wheel_archs(torch) is None


@pytest.mark.parametrize(
    ("torch", "arch", "runs"),
    [
        ("2.7.0+cu128", "sm_70", False),  # V100, gone from the first cu128 wheel
        ("2.8.0+cu128", "sm_70", True),
        ("2.11.0+cu128", "sm_70", False),
        ("2.14.0+cu126", "sm_70", True),
        ("2.13.0+cu130", "sm_70", False),
        ("2.14.0+cu126", "sm_61", True),  # P40 by the same major
        ("2.14.0+cu126", "sm_89", True),  # Ada by sm_86
        ("2.14.0+cu126", "sm_120", False),
        ("2.11.0+cu128", "sm_120", True),
        ("2.11.0+cu128", "sm_121", True),  # GB10
        ("2.11.0+cu128", "sm_103", True),  # B300
        ("2.11.0+cu128", "sm_110", False),  # Thor
        ("2.5.0+cu124", "sm_90", True),
    ],
)
def test_machine_code_runs_on_its_major(torch, arch, runs):
    built, _ = wheel_archs(torch)
    assert serves(built, arch) is runs


def test_what_code_serves():
    assert serves(("sm_90a",), "sm_90") and not serves(("sm_100a",), "sm_103")
    assert serves(("compute_90",), "sm_100") and not serves(("compute_120",), "sm_100")
    assert serves(("gfx942:sramecc+:xnack-", "gfx90a"), "gfx942")
    assert serves(("gfx1100",), "gfx1101") is False
    assert serves(("gfx11-generic",), "gfx1101") is None
    assert serves((), "sm_90") is None and serves(("sm_90",), "dav-c220") is None


@pytest.mark.parametrize(
    ("rocm", "archs"),
    [
        *((f"6.{minor}", "gfx908 gfx90a gfx942 gfx1030 gfx1100") for minor in range(4)),
        ("6.4.1", "gfx1200 gfx1201"),
        ("7.0", "gfx950"),
        ("7.1.0", "gfx950 gfx942 gfx90a gfx908 gfx1201 gfx1200 gfx1101 gfx1100 gfx1030"),
        ("7.2.3", "gfx950 gfx942 gfx90a gfx908 gfx1201 gfx1200 gfx1101 gfx1100 gfx1030"),
    ],
)
def test_targets_of_rocm(rocm, archs):
    assert set(archs.split()) <= set(rocm_targets(rocm))


def test_targets_that_rocm_dropped_or_nobody_read():
    assert not {"gfx940", "gfx941"} & set(rocm_targets("7.0"))
    assert "gfx950" not in rocm_targets("6.3")
    assert all("gfx906" not in rocm_targets(rocm) for rocm in ("6.0", "6.3", "7.0", "7.2"))
    assert rocm_targets("10.2") is None and rocm_targets("6.4.0") is None


@pytest.mark.parametrize(
    ("rocm", "drivers"),
    [
        ("7.0", "30.10"),
        ("7.1", "30.20 30.10 6.4"),
        ("7.2", "30.30 30.20 30.10 6.4"),
        ("6.3", "6.1 6.2 6.3"),
    ],
)
def test_drivers_of_rocm(rocm, drivers):
    assert set(drivers.split()) <= set(toolkit_table("hip", "drivers")[rocm])
