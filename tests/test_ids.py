from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from holdfast.ids import BITS, RING, digit, distance, id_of, nearer, shared, show

ids = st.integers(0, RING - 1)
bits = st.sampled_from([1, 2, 4, 8])


def digits(one: int, size: int) -> list[str]:
    written = f"{one:0{BITS}b}"
    return [written[place : place + size] for place in range(0, BITS, size)]


@given(ids, ids, bits)
def test_digits_are_those_of_the_written_number(one: int, other: int, size: int) -> None:
    left, right = digits(one, size), digits(other, size)
    common = next((place for place in range(len(left)) if left[place] != right[place]), len(left))
    assert shared(one, other, size) == common
    assert [digit(one, place, size) for place in range(BITS // size)] == [int(text, 2) for text in left]


@given(ids, ids)
def test_distance_is_the_shorter_way_round(one: int, other: int) -> None:
    assert distance(one, other) == distance(other, one) == min((one - other) % RING, (other - one) % RING)


@given(ids, st.lists(ids, min_size=2, max_size=2, unique=True))
def test_of_two_ids_one_is_nearer_whoever_is_asked_first(key: int, pair: list[int]) -> None:
    one, other = pair
    assert nearer(key, one, other) == nearer(key, other, one) == min(pair, key=lambda it: (distance(key, it), it))


def test_names_give_ids_that_do_not_run_together() -> None:
    assert id_of("ab", "c") != id_of("a", "bc")
    assert 0 <= id_of("job", "owner") < RING
    assert len(show(5)) == 8
