"""Tools' outputs that were cut, quoted or overwritten: less is known, but nothing wrong."""

from __future__ import annotations

import pytest
from device_samples import (
    DAMAGE,
    EVERY,
    SAMPLES,
    disagreements,
    no_last_bars,
    read,
    sample,
    single_blanks,
)
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st

pytestmark = pytest.mark.static

_TABLES = ("nvidia_smi", "vendor_tables", "npu_smi")
_PATHS = sorted({path for _, path in EVERY})


@given(one=st.sampled_from(EVERY), where=st.floats(0, 1))
@settings(max_examples=examples(100))
def test_a_text_cut_at_any_character(one, where):
    parser, path = one
    text = sample(path)
    assert not disagreements(read(parser, text[: round(where * len(text))]), read(parser, text))


@pytest.mark.parametrize(("parser", "path"), EVERY)
def test_a_text_cut_anywhere_gives_no_wrong_value(parser, path):
    text = sample(path)
    whole = read(parser, text)
    for end in range(0, len(text), 11):
        wrong = disagreements(read(parser, text[:end]), whole)
        assert not wrong, (end, text[max(0, end - 60) : end], wrong)


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize(("parser", "path"), EVERY)
def test_damage_does_not_change_the_answer(parser, path, damage):
    text = sample(path)
    assert read(parser, DAMAGE[damage](text)) == read(parser, text)


@pytest.mark.parametrize(("parser", "path"), [one for one in EVERY if one[0] in _TABLES])
def test_lost_blanks_and_bars(parser, path):
    """A table with single blanks says the same; without its last bars nothing wrong."""
    text = sample(path)
    whole = read(parser, text)
    assert not disagreements(read(parser, single_blanks(text)), whole)
    assert len(read(parser, single_blanks(text)).accelerators) == len(whole.accelerators)
    assert not disagreements(read(parser, no_last_bars(text)), whole)


@given(
    parser=st.sampled_from(sorted(SAMPLES)),
    pieces=st.lists(
        st.one_of(
            st.text(max_size=40),
            st.tuples(st.sampled_from(_PATHS), st.integers(0, 4000), st.integers(0, 900)),
        ),
        max_size=6,
    ),
)
@settings(max_examples=examples(150))
def test_no_text_makes_a_parser_raise(parser, pieces):
    text = "".join(
        piece if isinstance(piece, str) else sample(piece[0])[piece[1] :][: piece[2]]
        for piece in pieces
    )
    read(parser, text)


@pytest.mark.parametrize("parser", sorted(SAMPLES))
def test_a_parser_says_nothing_of_others_outputs(parser):
    """But the frames that several tools share by design, which `nvidia_smi` reads for all."""
    for other, path in EVERY:
        if other != parser and (parser, other) not in (("nvidia_smi", "vendor_tables"),):
            facts = read(parser, sample(path))
            assert not facts.accelerators, (path, facts.accelerators)
