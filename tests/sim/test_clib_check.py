"""What is refused before it is loaded, each with a sentence; what an older or newer library is."""

from __future__ import annotations

import errno
import platform
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from vllm_adapter.c_abi.library import Library
from vllm_adapter.discovery.probe.library import check_library, open_library
from vllm_adapter.errors import DeviceError, LibraryError

pytestmark = pytest.mark.sim

CHILD = "vllm_adapter.discovery.probe._library_child"


def refusal(path, **options):
    with pytest.raises(LibraryError) as caught:
        check_library(path, **options)
    return caught.value.message, caught.value.hint


def test_a_library_in_order_tells_what_it_is(faulty):
    facts = check_library(faulty())
    assert (facts.vendor, facts.version, facts.abi_version) == ("Faulty", "0", (1, 0))
    assert [(d.name, d.arch, d.capability) for d in facts.devices] == [
        ("Faulty one", "f1", (7, 1))
    ]
    assert facts.devices[0].unified
    assert "linear" not in facts.functions
    assert "fence" in facts.functions


def test_the_simulated_accelerator_is_in_order(sim_path):
    facts = check_library(sim_path)
    assert [device.arch for device in facts.devices] == ["sim48", "sim48"]
    assert "paged_attention" in facts.functions
    assert facts.devices[0].capability is None


def test_a_library_that_was_checked_is_loaded_once(faulty):
    assert open_library(faulty()) is open_library(faulty())


@pytest.mark.parametrize(
    ("fault", "sentence"),
    [
        ("NO_ENTRY", "exports no va_get_api"),
        ("OTHER_MAJOR", "offers ABI 2, and this release speaks ABI 1"),
        ("LYING_MAJOR", "was asked for ABI 1, and gives the table of ABI 9"),
        ("SHORT_TABLE", "has a table of"),
        ("NO_FENCE", "leaves required functions NULL: event_query, fence"),
        ("HALF_PINNED", "has one of allocate_pinned and free_pinned, and not the other"),
        ("UNDEFINED", "cannot be loaded: .*undefined symbol: of_another_library"),
        ("COUNT_FAILS", r"device_count: the fan is off"),
        ("COUNT_NEGATIVE", "device_count gives -3"),
        ("LOAD_CRASHES", "a child process was killed by SIGBUS when the library was loaded"),
        ("LOAD_EXITS", "a child process left with exit code 0 when the library was loaded"),
        ("ENTRY_CRASHES", "was killed by SIGABRT when the library was asked for its table"),
        (
            "COUNT_CRASHES",
            r"was killed by SIGSEGV \(it printed 'assertion failed: power'\) when the library was "
            "asked for device_count",
        ),
        ("INFO_EXITS", "left with exit code 3 when the library was asked for device_info of devi"),
    ],
)
def test_each_fault_is_refused_with_its_sentence(faulty, fault, sentence):
    path = faulty(fault)
    message, hint = refusal(path)
    assert re.search(sentence, message), message
    assert message.startswith(str(path)) or path.name in message
    assert hint


@pytest.mark.parametrize(
    ("fault", "when"), [("LOAD_HANGS", "loaded"), ("COUNT_HANGS", "asked for device_count")]
)
def test_a_library_that_hangs_is_given_up(faulty, fault, when):
    message, hint = refusal(faulty(fault), limit_s=2)
    assert f"a child process gave no answer within 2 s when the library was {when}" in message
    assert "_library_child" in hint


def test_the_command_in_the_hint_shows_the_crash(faulty):
    _, hint = refusal(faulty("COUNT_CRASHES"))
    command = hint.split("`")[1].split()
    done = subprocess.run(
        [sys.executable, *command[1:]], capture_output=True, text=True, check=False
    )
    assert "asked for device_count" in done.stdout
    assert "Fatal Python error: Segmentation fault" in done.stderr


def test_a_child_that_nobody_waits_for_ends_itself(faulty):
    command = (sys.executable, "-m", CHILD, "1", str(faulty("LOAD_HANGS")))
    done = subprocess.run([*command, "0"], capture_output=True, check=False)
    assert done.returncode == -signal.SIGALRM


def test_the_command_in_the_hint_shows_a_refusal_too(faulty):
    command = (sys.executable, "-m", CHILD, str(faulty("NO_FENCE")))
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("error: ")
    assert "leaves required functions NULL" in done.stderr


def changed(path, target, offset, data):
    raw = bytearray(path.read_bytes())
    raw[offset : offset + len(data)] = data
    target.write_bytes(raw)
    return target


def test_a_file_for_another_machine_is_not_even_asked(faulty, tmp_path):
    here = platform.machine()
    other, number = ("aarch64", 183) if here == "x86_64" else ("x86_64", 62)
    path = changed(faulty(), tmp_path / "other.so", 18, number.to_bytes(2, sys.byteorder))
    assert refusal(path)[0] == f"{path} is built for {other}, this machine is {here}"
    path = changed(faulty(), tmp_path / "strange.so", 18, (4242).to_bytes(2, sys.byteorder))
    assert "is built for machine number 4242" in refusal(path)[0]
    path = changed(faulty(), tmp_path / "narrow.so", 4, b"\x01")
    assert "is built for 32 bits, this Python runs with 64" in refusal(path)[0]
    path = changed(faulty(), tmp_path / "object.so", 16, (1).to_bytes(2, sys.byteorder))
    assert "is an object file that was not linked, and no shared library" in refusal(path)[0]
    path = changed(faulty(), tmp_path / "core.so", 16, (9).to_bytes(2, sys.byteorder))
    assert "is of ELF type 9" in refusal(path)[0]


@pytest.mark.skipif(sys.byteorder != "little", reason="the header is written for this order")
def test_the_other_byte_order_is_told(faulty, tmp_path):
    path = changed(faulty(), tmp_path / "big.so", 5, b"\x02")
    number = int.from_bytes(faulty().read_bytes()[18:20], "little").to_bytes(2, "big")
    changed(path, path, 18, number)
    assert "is big-endian, this machine is not" in refusal(path)[0]


def test_what_is_no_file_or_no_library(tmp_path):
    assert refusal(tmp_path / "none.so")[0] == f"there is no C library {tmp_path / 'none.so'}"
    assert "Is a directory" in refusal(tmp_path)[0]
    empty = tmp_path / "empty.so"
    empty.touch()
    assert "it is empty" in refusal(empty)[0]
    text = tmp_path / "text.so"
    text.write_text("GROUP ( libm.so.6 )")
    assert "it begins with b'GROUP ( '" in refusal(text)[0]
    cut = tmp_path / "cut.so"
    cut.write_bytes(b"\x7fELF\x02\x01\x01")
    assert "is no ELF shared library" in refusal(cut)[0]


def test_a_header_alone_is_refused_by_the_loader(faulty, tmp_path):
    path = tmp_path / "header.so"
    path.write_bytes(faulty().read_bytes()[:64])
    assert "cannot be loaded" in refusal(path)[0]


def test_a_name_without_a_folder_is_this_folder(faulty, monkeypatch):
    path = faulty()
    monkeypatch.chdir(path.parent)
    assert check_library(Path(path.name)).vendor == "Faulty"


def test_an_older_minor_version_has_a_shorter_table_and_its_rest_is_null(faulty):
    library = Library(faulty("OLDER_MINOR"))
    assert not library.has("unary")
    assert not library.api.unary
    assert library.has("fence")


def test_a_newer_minor_version_is_read_as_far_as_it_is_known(faulty):
    library = Library(faulty("NEWER_MINOR"))
    assert library.abi_version == (1, 1)
    assert library.device_count() == 1


def test_memory_that_is_none_and_statuses_that_are_none_are_told(faulty):
    from vllm_adapter.engine.runtime.c_library import device_bytes

    with pytest.raises(DeviceError, match="says OK and gives no memory"):
        device_bytes(Library(faulty()), 8, 0)
    with pytest.raises(DeviceError, match=r"allocate: the fan is off"):
        device_bytes(Library(faulty("STRANGE_STATUS")), 8, 0)


def test_no_child_process_no_loading(faulty, monkeypatch):
    path = faulty()

    def refused(*given, **options):
        raise OSError(errno.EAGAIN, "no more processes")

    monkeypatch.setattr(subprocess, "Popen", refused)
    assert "no child process can be started: no more processes" in refusal(path)[0]


@pytest.mark.parametrize(
    ("fault", "sentence"),
    [
        ("OTHER_DEVICE", r"gives a tensor of shape \[8\], device \(type 12, id 5\)"),
        ("OTHER_DTYPE", r"dtype \(code 1, bits 16, lanes 1\)"),
        ("OTHER_SIZE", r"gives a tensor of shape \[7\]"),
        ("NO_SHAPE", "gives a tensor of shape 1"),
    ],
)
def test_memory_that_torch_would_mistake_is_refused_and_given_back(faulty, capfd, fault, sentence):
    from vllm_adapter.engine.runtime.c_library import device_bytes

    with pytest.raises(DeviceError, match=sentence):
        device_bytes(Library(faulty(fault)), 8, 0)
    assert capfd.readouterr().out == "given back\n"


def test_memory_without_a_deleter_is_refused(faulty):
    from vllm_adapter.engine.runtime.c_library import device_bytes

    with pytest.raises(DeviceError, match="gives memory without a deleter"):
        device_bytes(Library(faulty("NO_DELETER")), 8, 0)
