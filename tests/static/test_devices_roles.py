"""Roles of several processes, their environments, and the command `devices`."""

from __future__ import annotations

import json

import pytest
from device_boxes import IGPU, TEXT, chosen, manager, reasons, smi
from hypothesis import given
from hypothesis import strategies as st

from vllm_adapter.cli.main import main
from vllm_adapter.errors import InputError
from vllm_adapter.hostfacts.device_facts import Health
from vllm_adapter.hostfacts.facts import Accelerator, HostFacts
from vllm_adapter_doctor.devices.roles import assign, parse_role

pytestmark = pytest.mark.static

ARC = Accelerator("xpu", 0, "xpu-smi discovery", name="Arc A770")
NPU = Accelerator("ascend", 1, "npu-smi info", name="910B4", card=1, die=0)
AIP = Accelerator("gaudi", 3, "hl-smi", name="HL-225")


def roles(box, *texts):
    return assign(box, [parse_role(text) for text in texts])


def env(role):
    return dict(role.environment.variables)


def test_each_role_is_a_process_with_its_own_variables():
    main_, light, cpu = roles(
        manager(smi(0), smi(1), ARC), "main=cuda:1,0", "light=xpu:0", "x=cpu"
    )
    assert env(main_) == {
        "VA_ADAPTERS": "cuda",
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUDA_VISIBLE_DEVICES": "1,0",
    }
    assert env(light) == {
        "VA_ADAPTERS": "xpu",
        "ZE_AFFINITY_MASK": "0",
        "ONEAPI_DEVICE_SELECTOR": "level_zero:gpu",
    }
    assert env(cpu) == {"VA_ADAPTERS": "cpu"}


def test_forms_of_the_other_vendors():
    amd = Accelerator("rocm", 2, "rocm-smi")
    (role,) = roles(manager(amd), "main=rocm:2")
    assert env(role)["HIP_VISIBLE_DEVICES"] == "2"
    assert role.environment.unset == ("ROCR_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")
    (role,) = roles(manager(NPU), "main=npu:0")
    assert env(role) == {"VA_ADAPTERS": "ascend", "ASCEND_RT_VISIBLE_DEVICES": "0"}
    (role,) = roles(manager(Accelerator("musa", 1, "mthreads-gmi")), "main=musa:1")
    assert env(role)["MUSA_VISIBLE_DEVICES"] == "1"
    (role,) = roles(manager(Accelerator("kunlunxin", 0, "xpu-smi")), "main=kunlunxin:0")
    assert "no variable is known" in role.environment.notes[0]


def test_gaudi_takes_module_ids_and_they_are_never_guessed():
    (role,) = roles(manager(AIP), "main=gaudi:3")
    assert env(role) == {"VA_ADAPTERS": "gaudi"} and "module ids" in role.environment.notes[0]
    known = Accelerator("gaudi", 3, "hl-smi", logical=6)
    (role,) = roles(manager(known), "main=gaudi:6")
    assert env(role)["HABANA_VISIBLE_MODULES"] == "6"


def test_a_mig_instance_goes_by_its_uuid():
    instance = smi(0, uuid="MIG-7", partition="1g.18gb")
    (role,) = roles(manager(instance), "main=cuda:0")
    assert env(role)["CUDA_VISIBLE_DEVICES"] == "MIG-7"
    nameless = smi(0, partition="1g.18gb")
    (role,) = roles(manager(nameless), "main=cuda:0")
    assert "CUDA_VISIBLE_DEVICES" not in env(role) and "UUID" in role.environment.notes[0]


def test_one_process_one_mig_instance():
    two = tuple(smi(0, uuid=f"MIG-{n}", gib=20, partition="3g.20gb") for n in (1, 2))
    box = manager(*two, smi(1, gib=24))
    choice = box.choose()
    assert chosen(choice) == ["cuda:0"] and "kind with the most memory" in choice.sentence
    assert "single MIG instance" in reasons(choice)["cuda:1"]
    assert "another kind" in reasons(choice)["cuda:2"]
    (role,) = roles(box, "main=cuda:2")
    assert env(role)["CUDA_VISIBLE_DEVICES"] == "1"


@pytest.mark.parametrize(
    ("texts", "said"),
    [
        (["main"], "cannot be read"),
        (["main=cuda"], "cannot be read"),
        (["main=cuda:"], "cannot be read"),
        (["main=cuda:0,"], "cannot be read"),
        (["main=cuda:0;rm"], "cannot be read"),
        (["main=cuda:0,0"], "twice"),
        (["main=cuda:9"], "not among the devices"),
        (["main=acme:0"], "not among the devices"),
        (["a=cuda:0", "b=cuda:1,0"], "two roles"),
        (["a=cpu", "b=cpu"], "two roles"),
        (["a=cuda:0", "a=cuda:1"], "given twice"),
    ],
)
def test_bad_roles_are_one_sentence(texts, said):
    with pytest.raises(InputError, match=said) as caught:
        roles(manager(smi(0), smi(1)), *texts)
    assert caught.value.hint


def test_a_role_on_a_dead_device_is_a_fault():
    (role,) = roles(manager(smi(0, health=Health(errors=("GPU is lost",)))), "main=cuda:0")
    assert "GPU is lost" in role.faults[0]


@given(st.text(max_size=24))
def test_any_text_is_a_role_or_an_input_error(text):
    try:
        request = parse_role(text)
    except InputError:
        return
    assert request.name and request.adapter


def box_file(tmp_path, host):
    path = tmp_path / "box.json"
    path.write_text(json.dumps(host.to_json()))
    return str(path)


def test_the_command_prints_a_table_reasons_and_roles(tmp_path, capsys, monkeypatch):
    monkeypatch.delenv("VA_FALLBACK", raising=False)
    path = box_file(tmp_path, HostFacts(accelerators=(smi(0), smi(1)), pci=(IGPU,), report=TEXT))
    assert (
        main(["devices", "--report", path, "--role", "main=cuda:0", "--role", "light=xpu:0"]) == 0
    )
    out = capsys.readouterr().out
    assert "cuda:1  NVIDIA H200" in out and "chosen: 2 x NVIDIA H200" in out
    assert "xpu:0 not used: an integrated GPU" in out
    assert "  export CUDA_VISIBLE_DEVICES=0\n" in out


def test_the_command_in_json_and_its_exit_codes(tmp_path, capsys, monkeypatch):
    path = box_file(tmp_path, HostFacts(pci=(IGPU,), report=TEXT))
    for policy, code in (("error", 1), ("warn", 1), ("allow", 0)):
        monkeypatch.setenv("VA_FALLBACK", policy)
        assert main(["devices", "--report", path, "--json"]) == code
        raw = json.loads(capsys.readouterr().out)
        assert raw["choice"]["cpu"] is (policy != "error")
        assert raw["devices"][0]["reasons"][0]["next_step"]
    assert main(["devices", "--report", path, "--role", "main=cuda:0"]) == 2
    assert "the devices are: xpu:0" in capsys.readouterr().err
