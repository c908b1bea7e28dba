"""Nexmark's events are the specification's, whatever way a run is cut, and the oracles answer as they should."""

from __future__ import annotations

import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))

from nexmark_kit import generator, oracle
from nexmark_kit.generator import Events, events

COUNT, SLOW = 20_000, 200  # at 200 events a second sessions end and many windows close
START = datetime(2024, 5, 1, tzinfo=UTC)


@pytest.fixture(scope="module")
def some() -> Events:
    return events(0, COUNT, rate=SLOW)


def numbers(column: pa.ChunkedArray) -> np.ndarray:
    return np.asarray(column.cast(pa.int64()) if pa.types.is_timestamp(column.type) else column)


@settings(max_examples=30, deadline=None)
@given(
    first=st.integers(0, 3_000_000),
    counts=st.tuples(st.integers(0, 400), st.integers(0, 400)),
    seed=st.integers(0, 3),
    disorder=st.sampled_from([1, 7, 1000]),
)
def test_a_range_is_the_same_however_it_is_cut(first: int, counts: tuple[int, int], seed: int, disorder: int) -> None:
    whole = events(first, sum(counts), seed=seed, disorder=disorder).by_kind()
    left = events(first, counts[0], seed=seed, disorder=disorder).by_kind()
    right = events(first + counts[0], counts[1], seed=seed, disorder=disorder).by_kind()
    for kind, table in whole.items():
        assert pa.concat_tables([left[kind], right[kind]]).equals(table)


def test_another_seed_gives_other_events() -> None:
    assert not events(0, 100, seed=1).bids.equals(events(0, 100, seed=2).bids)


def test_rows_never_change() -> None:
    """Figures measured on these rows are compared between versions."""
    [bid] = events(1_000_004, 1).bids.drop_columns(["extra", "url"]).to_pylist()
    assert bid == {
        "event": 1_000_004,
        "auction": 60_925,
        "bidder": 21_001,
        "price": 4_830_050,
        "channel": "Facebook",
        "dateTime": generator.FIRST_TIME + timedelta(seconds=100),
    }


def test_two_six_and_ninety_two_percent(some: Events) -> None:
    assert [table.num_rows for table in some.by_kind().values()] == [400, 1200, 18_400]
    arrived = np.concatenate([numbers(table["event"]) for table in some.by_kind().values()])
    assert sorted(arrived) == list(range(COUNT))


def test_sizes_are_those_of_the_specification(some: Events) -> None:
    def mean_bytes(table: pa.Table, names: set[str]) -> float:
        return sum(float(pc.mean(pc.binary_length(table[name])).as_py()) for name in names)

    texts = {"name", "emailAddress", "creditCard", "city", "state", "extra"}
    assert 8 + mean_bytes(some.persons, texts) == pytest.approx(200, rel=0.02)
    assert 48 + mean_bytes(some.auctions, {"itemName", "description", "extra"}) == pytest.approx(500, rel=0.02)
    assert 32 + mean_bytes(some.bids, {"extra"}) == pytest.approx(100, rel=0.02)


def test_bids_name_auctions_and_bidders_that_are_there_or_about_to_be(some: Events) -> None:
    event, auction, bidder = (numbers(some.bids[name]) for name in ("event", "auction", "bidder"))
    last_auction, last_person = event // 50 * 3 + 2 + 1000, event // 50 + 1000
    assert (auction >= 1000).all()
    assert (auction <= last_auction + 10).all()
    assert (auction >= last_auction - 100 - 99).all()  # in flight, or the hot one of a span of 100
    assert (bidder >= 1000).all()
    assert (bidder <= last_person + 10).all()
    assert np.isin(auction, numbers(some.auctions["id"])).mean() > 0.99
    seller, opened = numbers(some.auctions["seller"]), numbers(some.auctions["event"])
    assert (seller <= opened // 50 + 1000 + 10).all()


def test_the_hot_ones_are_as_hot_as_specified(some: Events) -> None:
    event, auction, bidder = (numbers(some.bids[name]) for name in ("event", "auction", "bidder"))
    assert (auction == (event // 50 * 3 + 2) // 100 * 100 + 1000).mean() == pytest.approx(1 / 2, abs=0.02)
    assert (bidder == event // 50 // 100 * 100 + 1001).mean() == pytest.approx(3 / 4, abs=0.02)
    opened = numbers(some.auctions["event"])
    hot_seller = numbers(some.auctions["seller"]) == opened // 50 // 100 * 100 + 1000
    assert hot_seller.mean() == pytest.approx(3 / 4, abs=0.04)
    hot_channel = pc.is_in(some.bids["channel"], pa.array(["Google", "Facebook", "Baidu", "Apple"]))
    assert pc.mean(hot_channel).as_py() == pytest.approx(1 / 2, abs=0.02)


def test_values_lie_where_the_specification_puts_them(some: Events) -> None:
    price = numbers(some.bids["price"])
    assert price.min() >= 100
    assert price.max() <= 100_000_000
    assert np.log10(price / 100).mean() == pytest.approx(3, abs=0.05)
    assert set(some.auctions["category"].to_pylist()) == {10, 11, 12, 13, 14}
    assert (numbers(some.auctions["reserve"]) > numbers(some.auctions["initialBid"])).all()
    lasts = (numbers(some.auctions["expires"]) - numbers(some.auctions["dateTime"])) / 1000
    assert lasts.min() >= 1
    assert lasts.mean() == pytest.approx(1666 / SLOW * 1000, rel=0.1)
    assert pc.all(pc.match_substring_regex(some.persons["creditCard"], r"^\d{4} \d{4} \d{4} \d{4}$")).as_py()
    assert pc.all(pc.match_substring_regex(some.persons["emailAddress"], r"^[a-z ]+@[a-z ]+\.com$")).as_py()
    url = r"^https://www\.nexmark\.com/[a-z_]{3,4}/[a-z_]{3,4}/[a-z_]{3,4}/item\.htm\?query=1(&channel_id=\d+)?$"
    assert pc.all(pc.match_substring_regex(some.bids["url"], url)).as_py()


def test_time_runs_at_the_rate_and_disorder_stays_in_its_bound() -> None:
    for disorder in (1, 500):
        table = events(0, 2000, rate=1000, disorder=disorder).together()
        since = (numbers(table["dateTime"]) - int(generator.FIRST_TIME.timestamp()) * 10**6) // 1000
        assert sorted(since) == list(range(2000))
        behind = np.maximum.accumulate(since) - since
        assert behind.max() < disorder
        assert (behind > 0).any() == (disorder > 1)


def test_disorder_that_would_lose_events_is_refused() -> None:
    with pytest.raises(ValueError, match="953"):
        events(0, 10, disorder=953 * 2)


def test_files_hold_the_events_in_both_layouts(tmp_path: Path) -> None:
    made = events(0, 1000)
    together = generator.write(tmp_path / "together", 1000, 3)
    files = sorted(together.iterdir())
    assert [file.stat().st_mtime for file in files] == sorted({file.stat().st_mtime for file in files})
    assert pa.concat_tables([pq.read_table(file) for file in files]).equals(made.together())
    assert made.together()["event_type"].to_pylist()[:5] == [0, 1, 1, 1, 2]
    by_kind = generator.write(tmp_path / "by_kind", 1000, 3, layout="by_kind")
    for kind, table in made.by_kind().items():
        files = sorted((by_kind / kind).iterdir())
        assert pa.concat_tables([pq.read_table(file) for file in files]).equals(table)
    assert {path.name for path in tmp_path.iterdir()} == {"together", "by_kind"}


ROWS = {"q0": 18_400, "q1": 18_400, "q4": 5, "q15": 1, "q17": 1200, "q22": 18_400}


@pytest.mark.parametrize("query", oracle.QUERIES)
def test_every_oracle_finds_something(some: Events, query: str) -> None:
    found = oracle.result(query, some, lateness=timedelta(seconds=4))
    assert found.num_rows == ROWS[query] if query in ROWS else found.num_rows > 0


@pytest.mark.parametrize("query", ["q5", "q9", "q16"])
def test_oracles_read_files_as_they_read_tables(tmp_path: Path, query: str) -> None:
    made = events(0, 5000, rate=SLOW)
    expected = sorted(map(str, oracle.result(query, made).to_pylist()))
    for layout in ("together", "by_kind"):
        folder = generator.write(tmp_path / layout, 5000, 2, layout=layout, rate=SLOW)  # type: ignore[arg-type]
        assert sorted(map(str, oracle.result(query, folder).to_pylist())) == expected


def test_oracles_agree_with_plain_python(some: Events) -> None:
    bids = some.bids.to_pylist()
    last: dict[tuple[int, int], dict[str, object]] = {}
    for bid in sorted(bids, key=lambda bid: (bid["dateTime"], bid["event"])):
        last[bid["bidder"], bid["auction"]] = bid
    assert {(row["bidder"], row["auction"], row["extra"]) for row in oracle.result("q18", some).to_pylist()} == {
        (*key, bid["extra"]) for key, bid in last.items()
    }
    ranked = {(row["auction"], row["rank_number"]): row["price"] for row in oracle.result("q19", some).to_pylist()}
    prices = sorted((bid["price"] for bid in bids if bid["auction"] == 1000), reverse=True)
    assert [ranked[1000, rank] for rank in range(1, 11)] == prices[:10]
    auctions = {auction["id"]: auction for auction in some.auctions.to_pylist()}
    best: dict[int, int] = {}
    for bid in bids:
        auction = auctions.get(bid["auction"])
        if auction and auction["dateTime"] <= bid["dateTime"] <= auction["expires"]:
            best[auction["id"]] = max(best.get(auction["id"], 0), bid["price"])
    assert {row["id"]: row["price"] for row in oracle.result("q9", some).to_pylist()} == best


def hand_made(*bids: tuple[int, int, float]) -> Events:
    """Bids as (auction, bidder, seconds), no persons and no auctions."""
    made = events(4, len(bids))
    columns = {
        "auction": [auction for auction, _, _ in bids],
        "bidder": [bidder for _, bidder, _ in bids],
        "dateTime": [START + timedelta(seconds=seconds) for _, _, seconds in bids],
    }
    table = made.bids
    for name, values in columns.items():
        field = table.schema.field(name)
        table = table.set_column(table.schema.get_field_index(name), field, pa.array(values, field.type))
    return Events(made.persons, made.auctions, table)


def seconds(moment: datetime) -> float:
    return (moment - START).total_seconds()


def test_q5_by_hand() -> None:
    # Auction 1 leads while its three bids are inside; a bid at 12 is not in [2, 12); 2 and 3 tie in [4, 14), the last
    # window that the watermark, 14, closes.
    made = hand_made((1, 7, 0), (1, 7, 1), (1, 8, 1.5), (2, 7, 3), (2, 7, 12), (3, 7, 13), (9, 9, 17))
    found = oracle.result("q5", made, lateness=timedelta(seconds=3))
    rows = {(seconds(row["starttime"]), row["auction"], row["num"]) for row in found.to_pylist()}
    assert rows == {(-8, 1, 3), (-6, 1, 3), (-4, 1, 3), (-2, 1, 3), (0, 1, 3), (2, 2, 1), (4, 2, 1), (4, 3, 1)}


def test_q11_by_hand() -> None:
    # Exactly ten seconds apart is one session, a millisecond more is two; 8's last session has not ended.
    made = hand_made((1, 7, 0), (1, 7, 10), (2, 7, 20.001), (1, 8, 0), (3, 8, 29), (1, 9, 31))
    found = oracle.result("q11", made)
    windows = [(seconds(row["starttime"]), seconds(row["endtime"])) for row in found.to_pylist()]
    rows = {(row["bidder"], row["bid_count"], *window) for row, window in zip(found.to_pylist(), windows, strict=True)}
    assert rows == {(7, 2, 0, 20), (7, 1, 20.001, 30.001), (8, 1, 0, 10)}


def test_q12_counts_by_the_epochs_clocks() -> None:
    made = hand_made((1, 7, 0), (1, 7, 50), (1, 8, 60), (1, 7, 70))  # events 4 to 7
    found = oracle.q12(made, [(0, START), (6, START + timedelta(seconds=9)), (7, START + timedelta(seconds=10))])
    rows = {(row["bidder"], row["bid_count"], seconds(row["starttime"])) for row in found.to_pylist()}
    assert rows == {(7, 2, 0), (8, 1, 0), (7, 1, 10)}
