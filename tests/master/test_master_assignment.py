"""Slice assignment: even, minimal, the same for everyone."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from holdfast.master.assignment import assign

containers = st.sets(st.sampled_from("abcdefgh"), max_size=8)


@given(st.lists(st.none() | st.sampled_from("abcdefgh"), min_size=1, max_size=64), containers)
def test_only_orphans_move_and_nobody_gets_more_than_it_must(owners: list[str | None], living: set[str]) -> None:
    table = assign(owners, living)
    assert len(table) == len(owners)
    if not living:
        assert set(table) == {None}
        return
    assert set(table) <= living
    assert all(new == old for old, new in zip(owners, table, strict=True) if old in living)
    before, after = (Counter(dict.fromkeys(living, 0) | Counter(o for o in t if o in living)) for t in (owners, table))
    gained = {c for c in living if after[c] > before[c]}
    least = min(after.values())
    assert all(after[c] <= least + 1 for c in gained)


def test_a_first_assignment_is_even() -> None:
    assert Counter(assign([None] * 128, ["c", "a", "b"])) == {"a": 43, "b": 43, "c": 42}


def test_the_order_in_which_containers_are_named_does_not_matter() -> None:
    assert assign([None, "x", None, "a"], ["b", "a"]) == assign([None, "x", None, "a"], ["a", "b"])
