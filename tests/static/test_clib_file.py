"""What is read of a C library's file before anything of it is run; needs no compiler."""

from __future__ import annotations

import platform
import struct
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vllm_adapter.c_abi import elf
from vllm_adapter.c_abi.elf import check_file
from vllm_adapter.errors import LibraryError

pytestmark = pytest.mark.static


@pytest.fixture
def written(tmp_path, monkeypatch):
    """written(...) is a file with such a header, on a 64-bit x86_64 box with Linux."""
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(sys, "byteorder", "little")
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(elf.struct, "calcsize", lambda _: 8)

    def write(*, bits=2, order=1, kind=3, machine=62):
        file = tmp_path / "libx.so"
        halves = struct.pack(">HH" if order == 2 else "<HH", kind, machine)
        file.write_bytes(b"\x7fELF" + bytes([bits, order, 1]) + bytes(9) + halves)
        return file

    return write


def refusal(file):
    with pytest.raises(LibraryError) as caught:
        check_file(file)
    return caught.value.message.removeprefix(f"{file} ")


def test_a_shared_library_for_this_machine_passes(written, monkeypatch):
    check_file(written())
    monkeypatch.setattr(platform, "machine", lambda: "AMD64")
    check_file(written())
    monkeypatch.setattr(platform, "machine", lambda: "arm64")
    check_file(written(machine=183))


@pytest.mark.parametrize(
    ("header", "sentence"),
    [
        ({"machine": 183}, "is built for aarch64, this machine is x86_64"),
        ({"machine": 183, "order": 2}, "is built for aarch64, this machine is x86_64"),
        ({"machine": 4242}, "is built for machine number 4242, this machine is x86_64"),
        ({"order": 2}, "is big-endian, this machine is not"),
        ({"order": 7}, "is of an unknown byte order"),
        ({"bits": 1}, "is built for 32 bits, this Python runs with 64"),
        ({"bits": 9}, "is of an unknown word size"),
        ({"kind": 1}, "is an object file that was not linked, and no shared library"),
        ({"kind": 2}, "is a program, and no shared library"),
        ({"kind": 77}, "is of ELF type 77, and no shared library"),
    ],
)
def test_each_other_header_has_its_sentence(written, header, sentence):
    assert refusal(written(**header)) == sentence


def test_elsewhere_than_linux_nothing_is_loaded(written, monkeypatch):
    file = written()
    monkeypatch.setattr(sys, "platform", "darwin")
    assert refusal(file) == "is not loaded: C libraries are loaded on Linux only"


@settings(deadline=None)
@given(data=st.binary(max_size=64), magic=st.booleans())
def test_any_bytes_are_either_refused_with_a_sentence_or_pass(tmp_path_factory, data, magic):
    file = tmp_path_factory.mktemp("any") / "libx.so"
    file.write_bytes((b"\x7fELF" if magic else b"") + data)
    try:
        check_file(file)
    except LibraryError as error:
        assert error.message.startswith(str(file)) and error.hint
