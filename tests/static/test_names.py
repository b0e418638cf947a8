"""One rule for names: what is valid can be opened, and what torch keeps is refused early."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllm_adapter.cli.main import main
from vllm_adapter.contract import manifest, torch_names
from vllm_adapter.contract.reading import Fault
from vllm_adapter.discovery import registry
from vllm_adapter.errors import ManifestError
from vllm_adapter.settings import Settings

pytestmark = pytest.mark.static

CLI = ("-m", "vllm_adapter.cli")
ASK = """
import json, pkgutil, re, torch
from torch.nn.utils.rnn import PackedSequence
try:
    torch.device("no such type")
except RuntimeError as error:
    said = str(error)
try:
    torch.device("nosuchtype")
except RuntimeError as error:
    said = str(error)
types = re.search("Expected one of (.*) device type", said)[1].split(", ")
names = set().union(*map(dir, (torch, torch.Tensor, torch.nn.Module, PackedSequence)))
names |= {module.name for module in pkgutil.iter_modules(torch.__path__)}
names |= {name.removeprefix("is_") for name in names}
taken = sorted(n for n in names if re.fullmatch("[a-z][a-z_]*", n) and n not in types)
print(json.dumps([torch.__version__, types, taken]))
"""


def raw(name="acme", **device):
    given = {"schema": "vllm-adapter/manifest/1.0", "name": name, "vendor": "A", "api": ">=1.0"}
    return given | ({"device": device} if device else {})


@pytest.mark.slow
def test_the_lists_are_what_the_installed_torch_has():
    done = subprocess.run([sys.executable, "-c", ASK], capture_output=True, text=True, check=True)
    version, types, taken = json.loads(done.stdout)
    assert types == list(torch_names.DEVICE_TYPES)
    if version.partition("+")[0] == torch_names.TORCH:
        assert taken == sorted(torch_names.TAKEN)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("acme", "acme"),
        ("acme2", "acme_two"),
        ("acme_2", "acme_two"),
        ("a10b", "a_one_zero_b"),
        ("x__y", "x__y"),
        ("acme_", "acme_"),
    ],
)
def test_a_device_type_is_made_of_the_name(name, kind):
    assert manifest.torch_type_of(name) == kind


@given(st.from_regex(r"[a-z][a-z0-9_]{0,20}", fullmatch=True))
def test_whatever_name_is_valid_makes_a_type_that_torch_reads(name):
    kind = manifest.torch_type_of(name)
    assert re.fullmatch("[a-z][a-z_]*", kind)
    if manifest.check_torch_type(kind) is None and manifest.check_name(name) is None:
        given = raw(name, library="libx.so")
        assert manifest.parse_manifest(given).device.torch_type == kind
        assert not manifest.check_torch_names(given)


@pytest.mark.parametrize("kind", [*torch_names.DEVICE_TYPES, "abs", "nn", "contiguous"])
def test_what_torch_keeps_is_refused_everywhere_with_one_sentence(
    site, monkeypatch, tmp_path, kind
):
    monkeypatch.syspath_prepend(site.path)
    package = site.make("acme", device={"library": "libx.so", "torch_type": kind})
    with pytest.raises(ManifestError, match=f"torch_type is '{kind}', a name that torch"):
        manifest.read_manifest(package / "adapter.json")
    (record,) = [r for r in registry.scan(Settings()) if r.name == "acme"]
    assert record.status is registry.Status.BROKEN
    assert f"is '{kind}', a name that torch {torch_names.TORCH} keeps" in record.reason


@pytest.mark.parametrize("name", ["maia", "ipu", "hpu", "vulkan"])
def test_a_name_that_is_torch_s_is_for_that_device_alone(tmp_path, capsys, name):
    assert manifest.check_torch_names(raw(name, torch_type=name)) == []
    for other in (raw(name), raw(name, library="x.so"), raw(name, torch_type="cpu")):
        (fault,) = manifest.check_torch_names(other)
        assert f"/name is '{name}', which is a device type of torch's own" in fault
    file = tmp_path / "adapter.json"
    file.write_text(json.dumps(raw(name, library="x.so")))
    for words in (["validate", str(file)], ["new", name.title(), "--output", str(tmp_path)]):
        assert main(words) == (1 if words[0] == "validate" else 2)
        said = "".join(capsys.readouterr())
        assert f"is '{name}', which is a device type of torch's own" in said


def test_a_device_type_with_a_digit_is_refused_with_the_one_to_write():
    with pytest.raises(Fault, match=r"/device/torch_type is 'acme2'; write .*: acme_two$"):
        manifest.parse_manifest(raw(torch_type="acme2"))
