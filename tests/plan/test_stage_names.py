"""What stages are called when nobody names them, and what a name tells when a job comes back."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

import holdfast as hf
from holdfast import testing
from holdfast.operators.aggregate import StageSpec
from holdfast.operators.lookup import LookupSpec
from holdfast.operators.spec import AggregateSpec, Column
from holdfast.operators.stage import InputPlan, StagePlan, TimePlan
from holdfast.plan.stage_names import by_number, mistakable, renamed, times_renamed

SCHEMA = "user int, product int, cents int, ts timestamp"


def echo(key: int, rows: Any, context: Any) -> None:
    pass


def draw() -> tuple[hf.Stream, hf.Stream]:
    job = testing.Job()
    return job.read(SCHEMA, name="clicks"), job.read("user int, number int, at timestamp", name="orders")


@pytest.mark.parametrize(
    ("verb", "name"),
    [
        (lambda clicks, _: clicks.key_by("product").agg(n=hf.count()), "clicks_by_product_agg"),
        (lambda clicks, _: clicks.key_by("user", "product").distinct(), "clicks_by_user_product_distinct"),
        (lambda clicks, _: clicks.where("cents > 5").key_by("user").top_k(2, by="cents"), "clicks_by_user_top_k"),
        (lambda clicks, _: clicks.top_k(2, by="cents"), "clicks_top_k"),
        (lambda clicks, _: clicks.top_k(2, by="cents", per="user"), "clicks_by_user_top_k"),
        (lambda clicks, _: clicks.key_by("user").process(echo, "user int"), "clicks_by_user_process"),
        (lambda clicks, orders: clicks.key_by("user").join(orders.key_by("user")), "clicks_by_user_join_orders"),
        (
            lambda clicks, orders: orders.key_by("user").lookup(clicks.key_by("user", name="mine").agg(n=hf.count())),
            "orders_by_user_lookup_mine",
        ),
        (
            lambda clicks, _: clicks.key_by("user").window(hf.tumbling("10 s"), time="ts").agg(n=hf.count()),
            "clicks_by_user_tumbling",
        ),
        (
            lambda clicks, _: clicks.key_by("user").window(hf.sliding(rows=10, every=2)).agg(n=hf.count()),
            "clicks_by_user_sliding",
        ),
        (
            lambda clicks, _: clicks.key_by("user").window(hf.session("10 s"), time="ts").agg(n=hf.count()),
            "clicks_by_user_session",
        ),
        (
            lambda clicks, _: clicks.key_by("user").window(hf.tumbling("10 s"), time="ts").top_k(1, by="cents"),
            "clicks_by_user_tumbling_top_k",
        ),
        (
            lambda clicks, _: clicks.key_by("user").agg(n=hf.count()).key_by("n").agg(users=hf.count()),
            "clicks_by_user_agg_by_n_agg",
        ),
        (
            lambda clicks, orders: clicks.select("user").union(orders.select("user")).key_by("user").agg(n=hf.count()),
            "clicks_orders_by_user_agg",
        ),
        (lambda clicks, _: clicks.key_by("user", name="given").agg(n=hf.count()), "given"),
    ],
)
def test_a_name_says_what_the_stage_does(verb: Callable[..., hf.StageStream], name: str) -> None:
    found = verb(*draw()).name
    assert found == name
    assert re.fullmatch(r"\w+", found)


def test_a_name_does_not_depend_on_the_other_stages() -> None:
    clicks, _ = draw()
    alone = clicks.key_by("user").agg(n=hf.count()).name
    clicks, orders = draw()
    orders.key_by("user").agg(n=hf.count())
    clicks.key_by("product").agg(n=hf.count())
    assert clicks.key_by("user").agg(n=hf.count()).name == alone


def test_stages_that_do_the_same_are_named_by_the_user() -> None:
    clicks, _ = draw()
    clicks.where("cents > 5").key_by("user").agg(n=hf.count())
    with pytest.raises(
        hf.PlanError, match=r"Two stages would be called 'clicks_by_user_agg'.*agg of clicks by user"
    ) as e:
        clicks.where("cents > 9").key_by("user").agg(n=hf.count())
    assert "key_by(…, name='…')" in e.value.todo
    assert clicks.where("cents > 9").key_by("user", name="dear").agg(n=hf.count()).name == "dear"
    with pytest.raises(hf.PlanError, match="Two stages are named 'dear'"):
        clicks.key_by("product", name="dear").agg(n=hf.count())


# --- a job that comes back ------------------------------------------------------------------------------------------

KEYS = (Column("k", "bigint"),)
COUNT = StageSpec(KEYS, (AggregateSpec("n", "count", None, None),))
BY_G = StageSpec((Column("g", "string"),), COUNT.aggregates)


def plan(name: str, spec: Any = COUNT, *observed: str) -> StagePlan:
    return StagePlan(name, 1, (InputPlan(1, 0),), spec, TimePlan(observed))


def test_numbers_become_names_in_their_order() -> None:
    stored = [plan("stage1"), plan("given"), plan("stage3", BY_G)]
    asked = [plan("a"), plan("given"), plan("c", BY_G)]
    assert by_number(stored, asked) == {"stage1": "a", "stage3": "c"}
    assert by_number(asked, asked) == {}
    assert by_number([plan("stage2")], [plan("a")]) == {}  # not the second one: somebody has named it that
    assert by_number([plan("stage1")], [plan("stage1"), plan("b")]) == {}  # given as a name now
    assert by_number([plan("stage1"), plan("given")], [plan("given")]) == {}  # it is another's name


def test_whoever_looks_into_a_stage_knows_its_new_name() -> None:
    lookup = plan("stage2", LookupSpec(KEYS, (), "stage1", (Column("n", "bigint"),)))
    found = renamed(lookup, {"stage1": "a", "stage2": "b"})
    assert (found.name, found.peers) == ("b", ("a",))
    assert renamed(found, {}) == found


def test_largest_times_are_found_under_the_names_of_now() -> None:
    stored = [
        plan("stage1", COUNT, "stage1/0/rows", "stage1/0/stage2"),
        plan("stage2"),
        plan("stage3", COUNT, "stage3/0/stage2"),
    ]
    # A source may be called as a stage was.
    asked = [plan("a", COUNT, "a/0/rows", "a/0/stage2"), plan("b"), plan("c", COUNT, "c/0/b")]
    names = {"stage1": "a", "stage2": "b", "stage3": "c"}
    assert times_renamed(stored, asked, names) == {
        "stage1/0/rows": "a/0/rows",
        "stage1/0/stage2": "a/0/stage2",
        "stage3/0/stage2": "c/0/b",
    }


def test_a_made_name_that_is_gone_beside_one_that_is_new() -> None:
    old, new = plan("rows_by_k_agg"), plan("rows_by_g_agg", BY_G)
    both = [old.name], [new.name]
    assert mistakable([old], [new], *both, ()) == ("rows_by_k_agg", "rows_by_g_agg")
    assert mistakable([old], [new], *both, [old.name]) is None  # somebody said so
    assert mistakable([old], [new], [], [new.name], ()) is None  # the old one had been given its name
    assert mistakable([old], [old, new], *both, ()) is None  # it is not gone
    assert mistakable([old, new], [old], [old.name, new.name], [], ()) is None  # nothing is new
    # A new one that was given its name is another one, unless it could be the old one under a name.
    assert mistakable([old], [replace(new, name="given")], [old.name], [], ()) is None
    assert mistakable([old], [replace(old, name="given")], [old.name], [], ()) == (old.name, "given")
