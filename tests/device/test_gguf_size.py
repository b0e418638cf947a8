"""The weights of a .gguf file, counted from its header."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllm_adapter.engine.integrations.transformers.gguf_size import weights

pytestmark = pytest.mark.device


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = tmp_path_factory.mktemp("gguf") / "tiny.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(2)
    writer.add_array("tokenizer.ggml.tokens", ["a", "bc", "é"])
    writer.add_array("tokenizer.ggml.scores", [0.5, 1.5, 2.5])
    writer.add_tensor("one", np.zeros((3, 5), dtype=np.float32))
    writer.add_tensor("two", np.zeros(7, dtype=np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_the_elements_of_all_tensors(file):
    assert weights(file) == 3 * 5 + 7


@given(cut=st.integers(0, 200), byte=st.integers(0, 255))
def test_damage_gives_none_or_a_number_and_never_a_fault(file, cut, byte):
    whole = file.read_bytes()
    broken = file.with_name("broken.gguf")
    broken.write_bytes(whole[:cut])
    assert weights(broken) in (None, 22)
    broken.write_bytes(whole[:cut] + bytes([byte]) + whole[cut + 1 :])
    found = weights(broken)
    assert found is None or found >= 0


def test_no_file(tmp_path):
    assert weights(tmp_path / "none.gguf") is None
    assert weights(tmp_path) is None
