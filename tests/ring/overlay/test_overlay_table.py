from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from holdfast.ids import RING, digit, shared
from holdfast.ring.overlay.table import RoutingTable

ids = st.one_of(st.integers(0, 300), st.integers(0, RING - 1))
several = st.lists(ids, min_size=1, max_size=60)
bits = st.sampled_from([1, 2, 4])


def place(owner: int, one: int, size: int) -> tuple[int, int]:
    row = shared(owner, one, size)
    return row, digit(one, row, size)


@given(several, several, several, bits, ids)
def test_it_agrees_with_a_dictionary_of_places(
    everyone: list[int], removed: list[int], again: list[int], size: int, key: int
) -> None:
    owner = everyone[0]
    table, model = RoutingTable(owner, size), dict[tuple[int, int], int]()

    def add(some: list[int]) -> None:
        for one in some:
            if one == owner:
                assert not table.add(one)
            else:
                free = place(owner, one, size) not in model
                assert table.add(one) == free
                model.setdefault(place(owner, one, size), one)

    add(everyone)
    for one in removed + everyone[::3]:
        there = one != owner and model.get(place(owner, one, size)) == one
        row = table.remove(one)
        assert row == (place(owner, one, size)[0] if there else None)
        if there:
            del model[place(owner, one, size)]
    add(again)
    assert set(table.peers) == set(model.values())
    for row in range(table.depth + 1):
        assert set(table.row(row)) == {one for (in_row, _), one in model.items() if in_row == row}
        assert set(table.rows_from(row)) == {one for (in_row, _), one in model.items() if in_row >= row}
    gaps = [row for row in range(table.depth) if len(table.row(row)) < (1 << size) - 1]
    assert table.first_gap() == (gaps[0] if gaps else None)
    if key != owner:
        assert table.towards(key) == model.get(place(owner, key, size))
