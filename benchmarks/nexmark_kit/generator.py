"""Nexmark's events: persons who join an auction site, auctions they open, bids they make.

By the public specification (Apache Beam's and nexmark-flink's generators and their default configuration): of 50
events in a row one is a person, three are auctions and 46 are bids; half of the bids go to a hot auction, three
quarters come from a hot bidder, three quarters of the auctions are a hot seller's. Every value of an event is a hash
of its number (see `draws`), so a range of events is the same rows however a run is cut, and ranges can be made in
parallel. Two liberties: texts may overlap between rows, and bidders are offset by 1000 once, as in Beam (nexmark-flink
does it twice, which leaves its bidders without persons).
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from nexmark_kit.draws import Draw, Longs, draw, high, joined, lengths, low, padding, picked, pieces, unit, words

PERSONS, AUCTIONS, BIDS = 1, 3, 46  # of every ROUND events, in this order
ROUND = PERSONS + AUCTIONS + BIDS
SEED = 2024
RATE = 10_000  # events per second of event time
FIRST_TIME = datetime(2015, 7, 15, tzinfo=UTC)

FIRST_ID = 1000  # of persons and of auctions
FIRST_CATEGORY, CATEGORIES = 10, 5
HOT_AUCTIONS, HOT_SELLERS, HOT_BIDDERS, HOT_CHANNELS = 2, 4, 4, 2  # all but one in so many are hot
HOT_SPAN = 100  # the hot one is chosen anew every so many persons or auctions
IN_FLIGHT, ACTIVE = 100, 1000  # auctions that may get bids; persons who may sell or bid
LEAD = 10  # ids so far ahead may be named before their event has come
PERSON_BYTES, AUCTION_BYTES, BID_BYTES = 200, 500, 100
STEP = 953  # walks a group of disorder; the specification's number

STATES = pa.array(["AZ", "CA", "ID", "OR", "WA", "WY"])
CITIES = pa.array(
    ["Phoenix", "Los Angeles", "San Francisco", "Boise", "Portland", "Bend", "Redmond", "Seattle", "Kent", "Cheyenne"]
)
FIRST_NAMES = ["Peter", "Paul", "Luke", "John", "Saul", "Vicky", "Kate", "Julie", "Sarah", "Deiter", "Walter"]
LAST_NAMES = ["Shultz", "Abrams", "Spencer", "White", "Bartels", "Walton", "Smith", "Jones", "Noris"]
NAMES = pa.array([f"{first} {last}" for first in FIRST_NAMES for last in LAST_NAMES])
FOUR_DIGITS = pa.array([f"{number:04d}" for number in range(10_000)])
HOT_CHANNEL_NAMES = ["Google", "Facebook", "Baidu", "Apple"]
CHANNELS = 10_000

_LONG, _TEXT, _TIME = pa.int64(), pa.string(), pa.timestamp("us", tz="UTC")
PERSON = {
    "id": _LONG,
    "name": _TEXT,
    "emailAddress": _TEXT,
    "creditCard": _TEXT,
    "city": _TEXT,
    "state": _TEXT,
    "dateTime": _TIME,
    "extra": _TEXT,
}
AUCTION = {
    "id": _LONG,
    "itemName": _TEXT,
    "description": _TEXT,
    "initialBid": _LONG,
    "reserve": _LONG,
    "dateTime": _TIME,
    "expires": _TIME,
    "seller": _LONG,
    "category": _LONG,
    "extra": _TEXT,
}
BID = {
    "auction": _LONG,
    "bidder": _LONG,
    "price": _LONG,
    "channel": _TEXT,
    "url": _TEXT,
    "dateTime": _TIME,
    "extra": _TEXT,
}


@dataclass(frozen=True)
class Events:
    """A range of events, by kind; ``event`` is an event's place in the order of arrival, over all kinds."""

    persons: pa.Table
    auctions: pa.Table
    bids: pa.Table

    def by_kind(self) -> dict[str, pa.Table]:
        return {"persons": self.persons, "auctions": self.auctions, "bids": self.bids}

    def together(self) -> pa.Table:
        """One table in order of arrival: event, event_type (0, 1, 2), one struct column per kind, dateTime."""
        kinds = list(self.by_kind().values())
        places = [np.asarray(kind["event"]) for kind in kinds]
        count = sum(map(len, places))
        first = min((int(place[0]) for place in places if len(place)), default=0)
        event_type = np.zeros(count, np.int32)
        times = np.zeros(count, np.int64)
        structs = []
        for number, (kind, place) in enumerate(zip(kinds, places, strict=True)):
            event_type[place - first] = number
            times[place - first] = np.asarray(kind["dateTime"].cast(pa.int64()))
            rows = np.full(count, -1)
            rows[place - first] = np.arange(len(place))
            plain = kind.drop_columns("event").combine_chunks().to_struct_array().combine_chunks()
            structs.append(plain.take(pa.array(rows, mask=rows < 0)))
        columns = [pa.array(np.arange(first, first + count)), pa.array(event_type), *structs, pa.array(times, _TIME)]
        return pa.table(columns, names=["event", "event_type", "person", "auction", "bid", "dateTime"])


def events(first: int, count: int, *, seed: int = SEED, rate: int = RATE, disorder: int = 1) -> Events:
    """The events that arrive as numbers ``first`` to ``first + count - 1``.

    ``rate`` is the number of events in a second of event time. With ``disorder`` above 1, every group of so many
    events arrives shuffled, so a row comes after rows that are at most ``disorder / rate`` seconds younger.
    """
    if disorder < 1 or (disorder > 1 and disorder % STEP == 0):
        raise ValueError(f"disorder must be 1 or more and no multiple of {STEP}, not {disorder}")
    places = np.arange(first, first + count)
    numbers = places // disorder * disorder + places * STEP % disorder if disorder > 1 else places
    turn = numbers % ROUND
    kinds = (turn < PERSONS, (turn >= PERSONS) & (turn < PERSONS + AUCTIONS), turn >= PERSONS + AUCTIONS)
    makers = (_persons, _auctions, _bids)
    tables = [
        make(numbers[kind], seed, rate).add_column(0, "event", pa.array(places[kind]))
        for make, kind in zip(makers, kinds, strict=True)
    ]
    return Events(*tables)


def write(
    folder: Path,
    count: int,
    files: int,
    *,
    layout: Literal["together", "by_kind"] = "together",
    first: int = 0,
    seed: int = SEED,
    rate: int = RATE,
    disorder: int = 1,
) -> Path:
    """Writes ``count`` events as Parquet for a file source, the files' times in order of arrival.

    ``together``: ``files`` files of `Events.together` in ``folder``. ``by_kind``: the folders ``persons``, ``auctions``
    and ``bids`` in it, with ``files`` files each, the n-th of each from the same range of events. The folder appears
    when it is complete; one that is there already is left as it is.
    """
    if folder.exists():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    half_done = Path(tempfile.mkdtemp(dir=folder.parent, prefix="_"))
    half_done.chmod(0o755)
    bounds = np.linspace(first, first + count, files + 1).astype(int)
    first_second = int(time.time()) - files - 60
    try:
        for number, (start, end) in enumerate(pairwise(bounds.tolist())):
            made = events(start, end - start, seed=seed, rate=rate, disorder=disorder)
            tables: Mapping[str, pa.Table] = {"": made.together()} if layout == "together" else made.by_kind()
            for kind, table in tables.items():
                file = half_done / kind / f"part-{number:05d}.parquet"
                file.parent.mkdir(exist_ok=True)
                pq.write_table(table, file)
                # Spark's file source takes files in order of their time: give each a second of its own.
                os.utime(file, (first_second + number, first_second + number))
        half_done.rename(folder)
    except BaseException:
        shutil.rmtree(half_done, ignore_errors=True)
        raise
    return folder


def _persons(numbers: Longs, seed: int, rate: int) -> pa.Table:
    one, two, three = (draw(numbers, seed, purpose) for purpose in (1, 2, 3))
    cards = (draw(numbers, seed, 4), draw(numbers, seed, 5))
    mail = joined(words(two, 7, seed), joined(words(three, 5, seed), ".com"), between="@")
    name = picked(NAMES, high(one, len(NAMES)))
    places = low(one, len(CITIES) * len(STATES))
    city, state = picked(CITIES, places // len(STATES)), picked(STATES, places % len(STATES))
    card = joined(*(picked(FOUR_DIGITS, half(bits, 10_000)) for bits in cards for half in (high, low)), between=" ")
    size = 8 + np.sum([lengths(column) for column in (name, mail, card, city, state)], axis=0)
    extra = padding(draw(numbers, seed, 6), size, PERSON_BYTES, seed)
    ids = pa.array(_last_person(numbers) + FIRST_ID)
    return pa.table(
        [ids, name, mail, card, city, state, _times(_millis(numbers, rate)), extra], schema=pa.schema(PERSON)
    )


def _auctions(numbers: Longs, seed: int, rate: int) -> pa.Table:
    sellers, lives = draw(numbers, seed, 11), draw(numbers, seed, 12)
    item, description = words(draw(numbers, seed, 13), 20, seed), words(draw(numbers, seed, 14), 100, seed)
    initial, above = _prices(draw(numbers, seed, 15)), _prices(draw(numbers, seed, 16))
    now = _millis(numbers, rate)
    # An auction lasts, on average, until so many others have been opened that it is out of flight.
    horizon = _millis(numbers + IN_FLIGHT * ROUND // AUCTIONS, rate) - now
    expires = now + 1 + high(lives, np.maximum(2 * horizon, 1))
    hot = _last_person(numbers) // HOT_SPAN * HOT_SPAN
    seller = np.where(low(sellers, HOT_SELLERS) > 0, hot, _any_person(numbers, sellers)) + FIRST_ID
    category = FIRST_CATEGORY + low(lives, CATEGORIES)
    size = 48 + lengths(item) + lengths(description)
    extra = padding(draw(numbers, seed, 17), size, AUCTION_BYTES, seed)
    ids = _last_auction(numbers) + FIRST_ID
    prices = [pa.array(initial), pa.array(initial + above)]
    times = [_times(now), _times(expires)]
    columns = [pa.array(ids), item, description, *prices, *times, pa.array(seller), pa.array(category), extra]
    return pa.table(columns, schema=pa.schema(AUCTION))


def _bids(numbers: Longs, seed: int, rate: int) -> pa.Table:
    auctions, bidders, channels = (draw(numbers, seed, purpose) for purpose in (21, 22, 23))
    last = _last_auction(numbers)
    oldest = np.maximum(last - IN_FLIGHT, 0)
    any_auction = oldest + high(auctions, last - oldest + 1 + LEAD)
    auction = np.where(low(auctions, HOT_AUCTIONS) > 0, last // HOT_SPAN * HOT_SPAN, any_auction) + FIRST_ID
    # The second person of a span, the first one being its hot seller.
    hot = _last_person(numbers) // HOT_SPAN * HOT_SPAN + 1
    bidder = np.where(low(bidders, HOT_BIDDERS) > 0, hot, _any_person(numbers, bidders)) + FIRST_ID
    few = len(HOT_CHANNEL_NAMES)
    place = np.where(low(channels, HOT_CHANNELS) > 0, high(channels, few), few + high(channels, CHANNELS))
    names, urls = _channels(seed)
    # A bid's size counts its four numbers only, as specified: channel and url come on top.
    extra = padding(draw(numbers, seed, 24), np.full(len(numbers), 32), BID_BYTES, seed)
    price = _prices(draw(numbers, seed, 25))
    ids = [pa.array(auction), pa.array(bidder), pa.array(price)]
    columns = [*ids, picked(names, place), picked(urls, place), _times(_millis(numbers, rate)), extra]
    return pa.table(columns, schema=pa.schema(BID))


@lru_cache(maxsize=8)
def _channels(seed: int) -> tuple[pa.StringArray, pa.StringArray]:
    """The hot channels, then all others, and the url that belongs to each."""
    few = len(HOT_CHANNEL_NAMES)
    numbers = np.arange(few + CHANNELS)
    folders = [draw(numbers, seed, purpose) for purpose in (31, 32, 33)]
    texts = [pieces(bits, 3 + low(bits, 2), seed, spaces=True) for bits in folders]
    parts = [pc.replace_substring(text, " ", "_") for text in texts]
    # Nine of ten urls of a channel that is not hot name it by its number with the bits reversed.
    named = (low(draw(numbers, seed, 34), 10) > 0) & (numbers >= few)
    tails = [
        f"item.htm?query=1&channel_id={_reversed(number - few)}" if with_id else "item.htm?query=1"
        for number, with_id in enumerate(named)
    ]
    urls = joined("https://www.nexmark.com", *parts, pa.array(tails), between="/")
    return pa.array(HOT_CHANNEL_NAMES + [f"channel-{number}" for number in range(CHANNELS)]), urls


def _reversed(number: int) -> int:
    bits = int(f"{number:032b}"[::-1], 2)
    return abs(bits - (1 << 32) if bits >> 31 else bits)


def _last_person(numbers: Longs) -> Longs:
    """The newest person (from 0) there is when event ``numbers`` happens, that event included."""
    return numbers // ROUND * PERSONS + np.minimum(numbers % ROUND, PERSONS - 1)


def _last_auction(numbers: Longs) -> Longs:
    """The newest auction (from 0) there is when event ``numbers``, an auction or a bid, happens."""
    return numbers // ROUND * AUCTIONS + np.minimum(numbers % ROUND - PERSONS, AUCTIONS - 1)


def _any_person(numbers: Longs, bits: Draw) -> Longs:
    people = _last_person(numbers) + 1
    active = np.minimum(people, ACTIVE)
    return people - active + high(bits, active + LEAD)


def _prices(bits: Draw) -> Longs:
    return np.rint(10.0 ** (unit(bits) * 6) * 100).astype(np.int64)


def _millis(numbers: Longs, rate: int) -> Longs:
    """Milliseconds from the first event; like the specification's, times have no finer grain."""
    return numbers * 1000 // rate


def _times(millis: Longs) -> pa.Array:
    return pa.array((millis + int(FIRST_TIME.timestamp()) * 1000) * 1000, _TIME)
