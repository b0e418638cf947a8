"""The right adapter among several, on records and with installed packages."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from pathlib import Path

import pytest
from fake_dist import environment, install
from unseen.selection_cases import BUILDS, HOST_PCI, INSTALLED, SITUATIONS
from unseen.table import table_of

from vllm_adapter.broker.selection import choose
from vllm_adapter.settings import Settings

pytestmark = pytest.mark.device
table = table_of("selection")
SELECT = """
import json
from vllm_adapter.broker.selection import select
from vllm_adapter.settings import Settings

chosen = select(Settings.from_environ())
considered = {one.name: one.why_not for one in chosen.considered}
print(json.dumps([chosen.adapter, chosen.reason, considered]))
"""


@pytest.mark.parametrize("case", SITUATIONS, ids=lambda case: case.name)
def test_the_choice_among_records(case, tmp_path, table):
    settings = Settings.from_environ(dict(case.variables))
    records = [one.record(tmp_path) for one in case.seen]
    found = [
        choose(list(order), settings, BUILDS[case.build])
        for order in itertools.permutations(records)
    ]
    names = {one.adapter for one in found}
    said = all(word in found[0].reason for word in case.says)
    right = names == {case.chosen} and said and all(one.reason for one in found)
    table.append((case.name, "right" if right else "WRONG", f"{names}: {found[0].reason}"))
    assert names == {case.chosen}, found[0].reason
    assert said, found[0].reason
    for one in found[0].considered:
        assert bool(one.why_not) == (one.name != case.chosen)


def scaffold(vendor, folder, site):
    """`vllm-adapter new VENDOR`, installed."""
    made = folder / "made"
    made.mkdir(exist_ok=True)
    words = [sys.executable, "-m", "vllm_adapter.cli", "new", vendor]
    done = subprocess.run(
        words, cwd=made, env=environment(site), capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    name = vendor.lower().replace(" ", "_")
    source = next(made.glob(f"*{name.replace('_', '?')}/src"))
    install(source, site, name=f"vllm-adapter-{name.replace('_', '-')}", entry_name=name)


def host_vendor():
    """A PCI vendor of this machine, or none."""
    files = sorted(Path("/sys/bus/pci/devices").glob("*/vendor"))
    return files[0].read_text().strip().removeprefix("0x") if files else None


@pytest.mark.parametrize("case", INSTALLED, ids=lambda case: case.name)
def test_the_choice_among_installed_packages(case, site, tmp_path, table):
    for vendor in case.scaffolds:
        scaffold(vendor, tmp_path, site.path)
    for name, changes in case.made.items():
        text = json.dumps(changes)
        if HOST_PCI in text and host_vendor() is None:
            pytest.skip("this machine has no PCI device")
        site.make(name, **json.loads(text.replace(HOST_PCI, host_vendor() or "")))
    done = site.run("-c", SELECT, variables=case.variables)
    assert done.returncode == 0, done.stderr
    adapter, reason, considered = json.loads(done.stdout)
    right = adapter == case.chosen
    table.append((case.name, "right" if right else "WRONG", f"{adapter}: {reason}"))
    assert right, (reason, considered)
