"""Run flags: each vendor's nodes, groups and variables, with a reason; text that a shell reads."""

from __future__ import annotations

import json
import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllm_adapter.cli.main import main
from vllm_adapter.errors import InputError
from vllm_adapter.hostfacts.facts import (
    Accelerator,
    DeviceNode,
    HostFacts,
    Line,
    OsFacts,
    PciDevice,
)
from vllm_adapter.hostfacts.known_vendors import VENDORS
from vllm_adapter_doctor.containers.flags import DeviceRequest, command, notes, run_flags
from vllm_adapter_doctor.containers.pod import pod, pod_notes, to_yaml
from vllm_adapter_doctor.containers.recipes import RECIPES
from vllm_adapter_doctor.devices.inventory import inventory

pytestmark = pytest.mark.static

TEXT = (Line(1, "a report"),)


def order(*accelerators, take=None, wsl=False, **facts):
    host = HostFacts(accelerators=accelerators, report=TEXT, **facts)
    devices = inventory(host).devices
    chosen = devices if take is None else tuple(devices[i] for i in take)
    return DeviceRequest(accelerators[0].vendor, chosen, devices, host, wsl)


def some(vendor, count, source="tool", **more):
    return tuple(Accelerator(vendor, i, source, **more) for i in range(count))


def texts(asked, engine="docker"):
    return [flag.text for flag in run_flags(asked, engine)]


def test_nvidia_takes_all_or_a_quoted_list():
    assert "--gpus all" in texts(order(*some("cuda", 2)))
    assert "--gpus '\"device=0,2\"'" in texts(order(*some("cuda", 3), take=(0, 2)))
    podman = texts(order(*some("cuda", 3), take=(0, 2)), "podman")
    assert podman[:3] == [
        "--device nvidia.com/gpu=0",
        "--device nvidia.com/gpu=2",
        "--security-opt label=disable",
    ]


@pytest.mark.parametrize("name", ["Orin (nvgpu)", "NVIDIA Thor", "Xavier"])
def test_a_jetson_goes_by_runtime(name):
    jetson = order(*some("cuda", 1, name=name))
    assert texts(jetson)[:2] == ["--runtime nvidia", "-e NVIDIA_VISIBLE_DEVICES=all"]
    assert not any("--gpus" in flag for flag in texts(jetson))
    assert "--device nvidia.com/gpu=all" in texts(jetson, "podman")


@pytest.mark.parametrize("name", ["NVIDIA GB10", "NVIDIA RTX 6000 Ada Generation", None])
def test_what_is_no_jetson_goes_by_gpus(name):
    assert "--gpus all" in texts(order(*some("cuda", 1, name=name)))


def test_a_mig_instance_goes_by_uuid():
    instance = Accelerator("cuda", 0, "nvidia-smi", uuid="MIG-7", partition="1g.18gb")
    asked = order(instance)
    assert "--gpus '\"device=MIG-7\"'" in texts(asked)
    limits = pod(asked, "i")[0]["spec"]["containers"][0]["resources"]["limits"]
    assert limits == {"nvidia.com/mig-1g.18gb": 1}


def test_wsl_has_other_ways_in():
    asked = order(*some("cuda", 2), take=(0,), wsl=True)
    assert "--gpus all" in texts(asked)
    assert any("/dev/dxg" in note and "/usr/lib/wsl" in note for note in notes(asked, "docker"))
    amd = texts(order(*some("rocm", 1), wsl=True))
    assert "--device /dev/dxg" in amd and not any("/dev/kfd" in flag for flag in amd)
    assert any(flag.startswith("-v /usr/lib/wsl/lib/libdxcore.so:") for flag in amd)


def node(path, group):
    return DeviceNode(path, "char", True, True, group)


def test_groups_are_numbers_where_the_facts_show_them_and_else_asked_for():
    nodes = (node("/dev/kfd", 109), node("/dev/dri/renderD129", 109), node("/dev/dri/card0", 44))
    known = texts(order(*some("rocm", 1), nodes=nodes))
    assert known.count("--group-add 109") == 1 and "--group-add 44" not in known
    unknown = texts(order(*some("rocm", 1)))
    assert '--group-add "$(stat -c %g /dev/kfd)"' in unknown
    root = texts(
        order(*some("rocm", 1), nodes=(node("/dev/kfd", 0), node("/dev/dri/renderD128", 0)))
    )
    assert not any("--group-add" in flag for flag in root)


def test_shared_memory_and_capabilities_only_where_they_are_needed():
    one, two = texts(order(*some("rocm", 1))), texts(order(*some("rocm", 2)))
    assert "--shm-size 4g" in one and "--ipc=host" in two and "--ulimit memlock=-1" in two
    assert "--cap-add SYS_PTRACE" in two and not any("SYS_PTRACE" in flag for flag in one)
    assert not any("privileged" in flag for flag in (*one, *two))


def test_where_nodes_give_all_devices_a_variable_chooses():
    assert "-e HIP_VISIBLE_DEVICES=1" in texts(order(*some("rocm", 2), take=(1,)))
    assert "-e ZE_AFFINITY_MASK=0" in texts(order(*some("xpu", 2), take=(0,)))
    assert not any("VISIBLE" in flag for flag in texts(order(*some("rocm", 2))))


def test_ascend_nodes_mounts_and_numbers():
    npus = tuple(Accelerator("ascend", n, "npu-smi info", card=n, die=0) for n in (4, 5))
    asked = order(*npus)
    flags = texts(asked)
    assert flags[:2] == ["--device /dev/davinci4", "--device /dev/davinci5"]
    assert (
        "--device /dev/davinci_manager" in flags and "-v /etc/hccn.conf:/etc/hccn.conf:ro" in flags
    )
    driver = "/usr/local/Ascend/driver"
    assert f"-v {driver}/version.info:{driver}/version.info:ro" in flags
    assert any("`ls /dev/davinci*`" in note for note in notes(asked, "docker"))
    single = texts(order(*npus, take=(1,)))
    assert single[0] == "--device /dev/davinci5" and not any("hccn" in flag for flag in single)


def test_dies_have_nodes_of_their_own():
    dies = tuple(
        Accelerator("ascend", n, "npu-smi info", card=n, die=d) for n in (0, 1) for d in (0, 1)
    )
    here = tuple(node(f"/dev/davinci{n}", 1000) for n in range(4))
    asked = order(*dies, nodes=here)
    assert texts(asked)[:4] == [f"--device /dev/davinci{n}" for n in range(4)]
    assert not any("`ls" in note for note in notes(asked, "docker"))


def test_an_xpu_mounts_its_bus_paths():
    flags = texts(order(*some("xpu", 1)))
    assert "-v /dev/dri/by-path:/dev/dri/by-path:ro" in flags and "--device /dev/dri" in flags


def test_gaudi_has_a_runtime_of_its_own():
    flags = texts(order(*some("gaudi", 8), take=(3,)))
    assert flags[:2] == ["--runtime habana", "-e HABANA_VISIBLE_DEVICES=3"]
    assert "--cap-add SYS_NICE" in flags


@pytest.mark.parametrize(
    ("vendor", "key"),
    [
        ("cuda", "nvidia.com/gpu"),
        ("rocm", "amd.com/gpu"),
        ("ascend", "huawei.com/Ascend910"),
        ("gaudi", "habana.ai/gaudi"),
        ("musa", "mthreads.com/gpu"),
        ("metax", "metax-tech.com/gpu"),
        ("mlu", "cambricon.com/mlu"),
        ("hygon", "hygon.com/dcu"),
    ],
)
def test_pods_ask_for_the_plugins_key(vendor, key):
    fragment, reasons = pod(order(*some(vendor, 2)), "img")
    container = fragment["spec"]["containers"][0]
    assert container["resources"]["limits"] == {key: 2}
    assert {"name": "shm", "mountPath": "/dev/shm"} in container["volumeMounts"]
    assert fragment["spec"]["volumes"][0]["emptyDir"]["medium"] == "Memory"
    assert all(reason.why for reason in reasons)


def test_keys_that_depend_on_the_driver_or_the_family():
    def key(asked):
        return next(iter(pod(asked, "i")[0]["spec"]["containers"][0]["resources"]["limits"]))

    assert key(order(*some("xpu", 1, driver="i915"))) == "gpu.intel.com/i915"
    assert key(order(*some("xpu", 1, driver="xe"))) == "gpu.intel.com/xe"
    guess = pod(order(*some("xpu", 1)), "i")[1][0]
    assert guess.source == "" and "i915" in guess.why
    assert key(order(*some("ascend", 1, name="310P3"))) == "huawei.com/Ascend310P"


def test_a_pod_counts_intels_cards_and_not_their_stacks():
    pvc = Accelerator("xpu", 0, "xpu-smi", name="Data Center GPU Max 1550", bdf="0000:29:00.0")
    asked = order(pvc)
    assert len(asked.devices) == 2
    (count,) = pod(asked, "i")[0]["spec"]["containers"][0]["resources"]["limits"].values()
    assert count == 1


def test_a_pods_groups_are_numbers_or_said_to_be_unknown():
    nodes = (node("/dev/kfd", 109), node("/dev/dri/renderD128", 44))
    asked = order(*some("rocm", 1), nodes=nodes)
    assert pod(asked, "i")[0]["spec"]["securityContext"] == {"supplementalGroups": [44, 109]}
    assert any("not in the report" in note for note in pod_notes(order(*some("rocm", 1))))


def test_a_vendor_without_a_recipe_is_said():
    with pytest.raises(InputError, match="no container recipe is known for kunlunxin"):
        run_flags(order(*some("kunlunxin", 1)), "docker")


def test_every_item_says_why_and_its_kind_is_known():
    assert set(RECIPES) - {"cpu"} <= set(VENDORS)
    for name in set(RECIPES) - {"cpu"}:
        for count in (1, 2):
            for engine in ("docker", "podman"):
                for flag in run_flags(order(*some(name, count)), engine):
                    assert flag.why and flag.to_json()["source"]


@given(st.text(st.characters(exclude_categories=("Cs",)), min_size=1, max_size=30))
def test_any_image_name_is_one_word_of_the_shell(image):
    asked = order(*some("cuda", 2))
    text = command(asked, "docker", image, run_flags(asked, "docker"))
    assert shlex.split(text.replace("\\\n", ""))[-1] == image or "\\\n" in image


@given(
    st.recursive(
        st.text(max_size=12) | st.integers(-5, 5) | st.booleans(),
        lambda item: (
            st.dictionaries(st.text(max_size=6), item, max_size=3) | st.lists(item, max_size=3)
        ),
        max_leaves=8,
    )
)
def test_yaml_reads_as_what_was_written(value):
    yaml = pytest.importorskip("yaml")
    if isinstance(value, dict | list) and value:
        assert yaml.safe_load(to_yaml(value)) == value


def box_file(tmp_path, host):
    path = tmp_path / "box.json"
    path.write_text(json.dumps(host.to_json()))
    return str(path)


def test_the_command_prints_flags_reasons_and_that_nothing_was_run(tmp_path, capsys):
    host = HostFacts(accelerators=some("cuda", 2), report=TEXT)
    assert main(["container", "--report", box_file(tmp_path, host), "--image", "a b"]) == 0
    out = capsys.readouterr().out
    assert "docker run --rm -it \\\n  --gpus all \\\n" in out and "  'a b'\n" in out
    assert "no image was built or run here" in out and "an assumption" in out


def test_a_device_that_is_not_passed_through_yet_is_what_the_flags_are_for(tmp_path, capsys):
    pci = (PciDevice("0000:3b:00.0", "10de", "2335", "0x030200"),)
    other = (DeviceNode("/dev/dri/card0", "char", True, True),)
    path = box_file(tmp_path, HostFacts(pci=pci, nodes=other))
    assert main(["devices", "--report", path]) == 1
    assert "not passed through" in capsys.readouterr().out
    assert main(["container", "--report", path, "--json"]) == 0
    raw = json.loads(capsys.readouterr().out)
    assert raw["devices"] == ["cuda:0"] and raw["flags"][0]["flag"] == "--gpus all"


def test_a_pod_a_role_and_an_empty_box(tmp_path, capsys, monkeypatch):
    wsl = OsFacts("Linux", "5.15.90.1-microsoft-standard-WSL2")
    host = HostFacts(os=wsl, accelerators=some("cuda", 2), report=TEXT)
    path = box_file(tmp_path, host)
    assert main(["container", "--report", path, "--engine", "k8s", "--role", "m=cuda:1"]) == 0
    out = capsys.readouterr().out
    assert "nvidia.com/gpu: 1" in out and "CUDA_VISIBLE_DEVICES=1" in out
    assert main(["container", "--report", path, "--role", "m=cuda:7"]) == 2
    empty = box_file(tmp_path, HostFacts(report=TEXT))
    for policy, code in (("error", 1), ("warn", 1), ("allow", 0)):
        monkeypatch.setenv("VA_FALLBACK", policy)
        assert main(["container", "--report", empty]) == code
    assert "for the CPU" in capsys.readouterr().out
