"""Packages that matter, vLLM and its plug-ins, by metadata alone."""

from __future__ import annotations

import sys

import pytest

from vllm_adapter.hostfacts.facts import VllmFacts
from vllm_adapter_doctor.live.packages import read_packages, read_vllm

pytestmark = pytest.mark.static
PLUGINS = """\
[console_scripts]
x = y:z

[vllm.platform_plugins]
ascend = vllm_ascend:register

[vllm.general_plugins]
ascend_models = vllm_ascend:models
"""


@pytest.fixture
def install(tmp_path, monkeypatch):
    """A function that puts a distribution's metadata on the path, before all others."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def to_device(folder, **files):
        path = tmp_path / folder
        path.mkdir()
        for name, text in files.items():
            (path / name).write_text(text)

    return to_device


def test_versions_by_normalised_name(install):
    install("torch_npu-2.9.0.post1.dist-info", METADATA="Name: torch_npu\nVersion: 2.9.0\n")
    install("vllm_ascend-0.13.0rc1.dist-info", METADATA="Name: vllm_ascend\n")
    install("unrelated-1.0.dist-info", METADATA="Name: unrelated\nVersion: 1.0\n")
    packages = dict(read_packages()[0])
    assert packages["torch-npu"] == "2.9.0.post1"
    assert packages["vllm-ascend"] == "0.13.0rc1"
    assert "unrelated" not in packages


def test_the_first_on_the_path_counts(install):
    install("torch-9.9.9.dist-info", METADATA="Name: torch\nVersion: 9.9.9\n")
    assert dict(read_packages()[0])["torch"] == "9.9.9"


def test_an_older_kind_of_metadata(install):
    install("aiter.egg-info", **{"PKG-INFO": "Metadata-Version: 1.0\nName: aiter\nVersion: 0.1\n"})
    assert dict(read_packages()[0])["aiter"] == "0.1"


@pytest.mark.parametrize("text", ["", "\0", "Name:\n"])
def test_damaged_metadata_hides_nothing_else(install, text):
    install("torch_npu-2.9.0.dist-info")
    install("broken.egg-info", **{"PKG-INFO": text})
    install("sglang-.dist-info", METADATA=text)
    packages = dict(read_packages()[0])
    assert packages["torch-npu"] == "2.9.0"
    assert "sglang" not in packages


def test_plug_ins_of_vllm_and_no_other_entry_points(install):
    install("vllm_ascend-0.13.0.dist-info", **{"entry_points.txt": PLUGINS})
    plugins = read_packages()[1]
    assert ("vllm.platform_plugins", "ascend", "vllm_ascend:register") in plugins
    assert ("vllm.general_plugins", "ascend_models", "vllm_ascend:models") in plugins
    assert {group for group, _, _ in plugins} == {"vllm.platform_plugins", "vllm.general_plugins"}


def test_vllm_s_version_and_build(install, tmp_path):
    (tmp_path / "vllm").mkdir()
    (tmp_path / "vllm/__init__.py").write_text("raise RuntimeError('imported')\n")
    install("vllm-0.32.0+rocm700.dist-info", METADATA="Name: vllm\nVersion: 0.32.0+rocm700\n")
    plugins = (("vllm.platform_plugins", "a", "b:c"),)
    assert read_vllm(plugins) == VllmFacts("0.32.0+rocm700", "vllm", "rocm", plugins)
    assert "vllm" not in sys.modules


def test_a_stand_in_for_vllm_is_no_vllm(monkeypatch):
    monkeypatch.setitem(sys.modules, "vllm", None)
    assert read_vllm(()) is None
