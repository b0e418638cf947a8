"""What two processes that do not trust each other send: plain data, and nothing that runs."""

from __future__ import annotations

import os
import pickle
import socket
import struct
import time

import msgspec
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from vllm_adapter import errors
from vllm_adapter.engine.device_process.errors import RemoteError, raised, told, whence
from vllm_adapter.engine.device_process.wire import DTYPES, TimeIsUp, Wire, WireError, make_desk
from vllm_adapter.errors import UnsupportedCase, VllmAdapterError

pytestmark = pytest.mark.null

FLOAT = st.floats(allow_nan=False)
PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | FLOAT | st.text() | st.binary(),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(st.text(max_size=3) | st.integers(-9, 9), inner, max_size=4)
    ),
    max_leaves=12,
)

USED = (
    *("float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2"),
    *("int64", "int32", "int16", "int8", "uint8", "bool"),
)


class Pair:
    """Both ends in this process, and what a bad one can reach: its socket and the desk."""

    def __init__(self):
        ours, self.theirs = socket.socketpair()
        self.desk = make_desk()
        self.ours = Wire(ours, os.dup(self.desk))
        self.other = Wire(self.theirs, os.dup(self.desk))

    def through(self, message):
        self.other.send(7, message)
        number, found = self.ours.receive(time.monotonic() + 5)
        assert number == 7
        return found

    def close(self):
        self.ours.close()
        self.other.close()
        os.close(self.desk)


@pytest.fixture
def pair():
    made = Pair()
    yield made
    made.close()


@given(PLAIN)
def test_plain_data_comes_as_it_was_sent(message):
    pair = Pair()
    found = pair.through(message)
    pair.close()
    assert found == message and repr(found) == repr(message)


def test_long_bytes_and_the_tensors_of_every_dtype_come_bit_by_bit(pair):
    generator = torch.Generator().manual_seed(1)
    for name in USED:
        dtype = DTYPES[name]
        raw = torch.randint(0, 2, (96 * dtype.itemsize,), generator=generator)
        sent = raw.to(torch.uint8).view(dtype).view(4, 24).t()
        found = pair.through({name: sent, "one": [sent[:0], b"x" * 100_000]})
        assert found[name].dtype == dtype and found[name].shape == sent.shape
        same = (t.contiguous().view(torch.uint8) for t in (found[name], sent))
        assert torch.equal(*same), name
        assert found["one"][0].numel() == 0 and found["one"][1] == b"x" * 100_000


def test_what_is_no_plain_data_is_not_sent(pair):
    for odd in (object(), {1, 2}, print, os.environ):
        with pytest.raises(TypeError, match="plain data"):
            pair.other.send(1, [odd])


def test_what_was_received_does_not_change(pair):
    found = pair.through(torch.ones(1000))
    os.pwrite(pair.desk, bytes(4000), 0)
    assert found.eq(1).all()


class Runs:
    def __reduce__(self):
        return os.mkdir, ("must-not-be",)


@given(st.binary(max_size=200) | st.just(pickle.dumps(Runs())))
def test_a_head_of_any_bytes_is_a_message_or_a_fault(head):
    pair = Pair()
    pair.theirs.send(struct.pack("<QQ", 1, len(head)) + head)
    try:
        pair.ours.receive(time.monotonic() + 5)
    except WireError:
        pass
    finally:
        pair.close()
    assert not os.path.exists("must-not-be")


@pytest.mark.parametrize(
    "parts",
    [
        ["float32", [2**40], 0],
        ["float32", [4], 2**50],
        ["float32", [-1], 0],
        ["float32", [2.5], 0],
        ["object", [1], 0],
        ["float32", "4", 0],
        ["float32"],
    ],
)
def test_a_tensor_that_is_not_there_is_a_fault(parts, pair):
    inner = msgspec.msgpack.encode(parts)
    head = msgspec.msgpack.encode(msgspec.msgpack.Ext(2, inner))
    pair.theirs.send(struct.pack("<QQ", 1, len(head)) + head)
    with pytest.raises(WireError):
        pair.ours.receive(time.monotonic() + 5)


def test_silence_and_an_end_are_told_apart(pair):
    with pytest.raises(TimeIsUp):
        pair.ours.receive(time.monotonic() + 0.05)
    pair.theirs.send(b"half")
    pair.theirs.shutdown(socket.SHUT_RDWR)
    with pytest.raises(WireError, match="gone"):
        pair.ours.receive(time.monotonic() + 5)


@pytest.mark.parametrize(
    "kind",
    [
        found
        for found in vars(errors).values()
        if isinstance(found, type) and issubclass(found, VllmAdapterError)
    ],
)
def test_an_error_of_ours_stays_what_it_is(kind):
    found = raised(told(kind("it is late", hint="come earlier")))
    assert type(found) is kind
    assert (found.message, found.hint) == ("it is late", "come earlier")


def test_what_derives_from_one_of_ours_is_that_one_and_others_keep_their_name():
    class Refusal(UnsupportedCase):
        pass

    assert type(raised(told(Refusal("no", hint="yes")))) is UnsupportedCase
    try:
        raise KeyError("weights")
    except KeyError as error:
        found = raised(told(error))
    assert isinstance(found, RemoteError) and found.name == "KeyError"
    assert "weights" in str(found) and "test_device_process.py" in whence(found).place
    kinds = ["vllm_adapter.errors.annotations"]
    forged = raised({"kinds": kinds, "text": "", "hint": "", "place": "", "frames": ""})
    assert isinstance(forged, RemoteError)
