"""Statuses of a C library as typed errors, with its own sentence."""

from __future__ import annotations

import pickle

import pytest

from vllm_adapter.c_abi import abi
from vllm_adapter.c_abi.status import error_of
from vllm_adapter.contract.codes import CODES
from vllm_adapter.errors import (
    DeviceError,
    DeviceLost,
    ForkedDevice,
    LaunchFailed,
    NoSuchDevice,
    OutOfMemory,
    UnsupportedCase,
)

pytestmark = pytest.mark.static
KINDS = {
    abi.INVALID: DeviceError,
    abi.NO_DEVICE: NoSuchDevice,
    abi.OUT_OF_MEMORY: OutOfMemory,
    abi.UNSUPPORTED: UnsupportedCase,
    abi.LAUNCH: LaunchFailed,
    abi.DEVICE_LOST: DeviceLost,
    abi.NOT_DEVICE: DeviceError,
    abi.FORKED: ForkedDevice,
    abi.INTERNAL: DeviceError,
}


@pytest.mark.parametrize(("status", "kind"), KINDS.items())
def test_a_status_is_one_typed_error_with_the_library_s_sentence(status, kind):
    error = error_of(status, "libx.so: allocate", " the fan\n  is off ")
    assert type(error) is kind
    assert error.message == "libx.so: allocate: the fan is off"
    assert error.hint
    assert error.code in CODES
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


@pytest.mark.parametrize("status", KINDS)
def test_a_library_without_a_sentence_gets_ours(status):
    message = error_of(status, "libx.so: open", "").message
    assert message.startswith("libx.so: open: ")
    assert len(message) > len("libx.so: open: ")


@pytest.mark.parametrize("status", [42, -1, abi.NOT_READY])
def test_a_status_that_the_header_lacks_is_told(status):
    error = error_of(status, "libx.so: open", "")
    assert type(error) is DeviceError
    assert f"status {status}, which vllm_adapter.h does not have" in error.message
