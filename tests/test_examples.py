"""The examples: each runs as it stands, and on random rows of several epochs, out of order and some of them late, gives
what a batch over the same rows gives.

Late is what the watermark of the epoch before says, so oracles know each row's epoch and that watermark. Times are
microseconds here, in the rows, in the results and in SQL.
"""

from __future__ import annotations

import importlib
import re
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.cloudpickle import register_pickle_by_value
from pyspark.sql import DataFrame, SparkSession

import holdfast as hf

pytestmark = pytest.mark.spark

EXAMPLES = Path(__file__).parents[1] / "examples"
NAMES = sorted(path.stem for path in EXAMPLES.glob("*.py") if "def main" in path.read_text())
NEVER = -(1 << 62)
SECOND = 1_000_000


@pytest.fixture(autouse=True)
def examples_importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES))


def example(name: str) -> ModuleType:
    module = importlib.import_module(name)
    register_pickle_by_value(module)  # containers cannot import it; of a program that is run they need not
    return module


@dataclass
class Sink:
    """What a stream put out, epoch by epoch."""

    tables: dict[int, pa.Table] = field(default_factory=dict)

    def __call__(self, rows: DataFrame, epoch: int) -> None:
        self.tables[epoch] = in_micros(rows.toArrow())

    @property
    def rows(self) -> pa.Table:
        return pa.concat_tables(self.tables.values())

    def of(self, epoch: int) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.tables[epoch].to_pylist() if epoch in self.tables else []
        return found


def in_micros(table: pa.Table) -> pa.Table:
    for at, one in enumerate(table.schema):
        if pa.types.is_timestamp(one.type):
            table = table.set_column(at, one.name, table.column(at).cast(pa.timestamp("us", one.type.tz)).cast("int64"))
    return table


def arrived(tables: Iterable[pa.Table], lateness: int) -> tuple[pa.Table, int]:
    """All rows with their ``epoch`` and the watermark before it (``mark``), and the watermark at the end."""
    mark, marked = NEVER, []
    for epoch, given in enumerate(tables, 1):
        table = in_micros(given)
        columns = {"epoch": epoch, "mark": mark}
        marked.append(table)
        for name, value in columns.items():
            marked[-1] = marked[-1].append_column(name, pa.array([value] * table.num_rows, pa.int64()))
        mark = max(mark, pc.max(table["ts"]).as_py() - lateness * SECOND)
    return pa.concat_tables(marked), mark


def query(sql: str, **tables: pa.Table) -> pa.Table:
    with duckdb.connect() as connection:
        for name, table in tables.items():
            connection.register(name, table)
        return connection.sql(sql).to_arrow_table()


def run(
    spark: SparkSession, folder: Path, build: Callable[[hf.Job], list[tuple[hf.Stream, Sink]]], slices: int = 8
) -> dict[str, dict[str, int]]:
    """Run the job to the end of its input; what each stage has counted."""
    job = hf.Job("example", spark, store=str(folder / "store"))
    for stream, sink in build(job):
        stream.for_each_batch(sink)
    with job.start(containers=2, slices=slices, trigger={"availableNow": True}) as running:
        running.await_termination()
        return {stage.name: dict(stage.counts) for stage in running.status().stages}


def same(found: pa.Table, truth: pa.Table) -> None:
    """Equal as sets of rows; floats to 1e-9."""
    assert sorted(found.column_names) == sorted(truth.column_names)
    assert truth.num_rows > 0, "an oracle that expects nothing shows nothing"
    exact = [name for name in truth.column_names if not pa.types.is_floating(truth.schema.field(name).type)]
    order = [(name, "ascending") for name in exact]
    found, truth = found.select(truth.column_names).sort_by(order), truth.sort_by(order)
    for name in truth.column_names:
        mine, right = found[name].to_pylist(), truth[name].to_pylist()
        if name in exact:
            assert mine == right, name
        else:
            np.testing.assert_allclose(mine, right, rtol=1e-9, err_msg=name)


def sliding(what: str, size: int, every: int, end: int) -> str:
    """The windows of ``rows`` that are closed by ``end``. A row counts in those that were open before its epoch."""
    size, every = size * SECOND, every * SECOND
    return (
        f"SELECT {what}, opens AS window_start, opens + {size} AS window_end FROM "
        f"(SELECT *, ts // {every} * {every} - k * {every} AS opens FROM rows, range({size // every}) r(k)) "
        f"WHERE opens + {size} > mark AND opens + {size} <= {end}"
    )


# --- one test an example ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [NAMES[0], *(pytest.param(name, marks=pytest.mark.heavy) for name in NAMES[1:])])
def test_it_runs_as_it_stands(name: str, spark: SparkSession, capsys: pytest.CaptureFixture[str]) -> None:
    example(name).main()  # in the session of the tests, which getOrCreate finds
    printed = capsys.readouterr().out
    assert len(printed.splitlines()) >= 5


@pytest.mark.parametrize("seed", [2, pytest.param(3, marks=pytest.mark.heavy)])
def test_frequent_words(spark: SparkSession, tmp_path: Path, seed: int) -> None:
    from epochs import stream

    words = example("frequent_words")
    tables = list(words.generate(seed, epochs=5))
    sink = Sink()
    run(spark, tmp_path, lambda job: [(words.build(job, stream(spark, tmp_path / "in", tables)), sink)])

    last: dict[str, list[str]] = {}
    shown: dict[str, list[dict[str, Any]]] = {}
    for epoch, table in enumerate(tables, 1):
        for row in table.to_pylist():
            kept = [word for word in re.split(r"\W+", row["text"].lower()) if word and word not in words.STOP_WORDS]
            last[row["topic"]] = [*last.get(row["topic"], []), *kept][-words.LAST :]
        for topic, window in last.items():
            best = sorted(Counter(window).items(), key=lambda one: (-one[1], one[0]))[: words.BEST]
            ranked = [
                {"topic": topic, "rank": rank, "word": word, "count": count}
                for rank, (word, count) in enumerate(best, 1)
            ]
            found = sorted((row for row in sink.of(epoch) if row["topic"] == topic), key=lambda row: row["rank"])
            assert found == ([] if ranked == shown.get(topic) else ranked), f"{topic} in epoch {epoch}"
            shown[topic] = ranked
    assert all(len(window) == words.LAST for window in last.values()), "no window ever slid"


@pytest.mark.parametrize("seed", [2, pytest.param(3, marks=pytest.mark.heavy)])
def test_similar_tweets(spark: SparkSession, tmp_path: Path, seed: int) -> None:
    from epochs import stream

    tweets = example("similar_tweets")
    tables = list(tweets.generate(seed, epochs=5))
    sink = Sink()
    counts = run(spark, tmp_path, lambda job: [(tweets.build(job, stream(spark, tmp_path / "in", tables)), sink)])

    rows, _ = arrived(tables, lateness=60)
    apart = int(tweets.APART.total_seconds()) * SECOND
    truth = query(
        f"""WITH tweets AS (SELECT *, string_split(text, ' ') AS words FROM rows WHERE ts >= mark),
        pairs AS (
            SELECT a.place, a.id, b.id AS "like", len(list_intersect(a.words, b.words)) AS shared,
                   shared / (len(a.words) + len(b.words) - shared) AS similarity
            FROM tweets a JOIN tweets b ON a.place = b.place AND b.id < a.id AND abs(a.ts - b.ts) <= {apart}),
        nearest AS (
            SELECT * FROM pairs QUALIFY row_number() OVER (PARTITION BY id ORDER BY similarity DESC, "like") = 1)
        SELECT place, id, "like", similarity,
               row_number() OVER (PARTITION BY place ORDER BY similarity DESC, id) AS rank
        FROM nearest WHERE similarity >= {tweets.LIKE} QUALIFY rank <= {tweets.BEST}""",
        rows=rows,
    )
    latest = {
        place: max(epoch for epoch, table in sink.tables.items() if place in table["place"].to_pylist())
        for place in truth["place"].to_pylist()
    }
    whole = [row for place, epoch in latest.items() for row in sink.of(epoch) if row["place"] == place]
    same(pa.Table.from_pylist(whole), truth)
    late = query("SELECT count(*) AS n FROM rows WHERE ts < mark", rows=rows)["n"][0].as_py()
    assert late > 0
    assert counts["most-similar"] == {"late": late}


@pytest.mark.parametrize("seed", [2, pytest.param(3, marks=pytest.mark.heavy)])
def test_micro_promotion(spark: SparkSession, tmp_path: Path, seed: int) -> None:
    from epochs import stream

    promotion = example("micro_promotion")
    tables = list(promotion.generate(seed, epochs=5))
    sink = Sink()
    counts = run(spark, tmp_path, lambda job: [(promotion.build(job, stream(spark, tmp_path / "in", tables)), sink)])

    rows, end = arrived(tables, promotion.LATENESS)
    rows = rows.filter(pc.equal(rows["store"], "video games"))
    windows = sliding("product, clicks AS n", promotion.SIZE, promotion.EVERY, end)
    truth = query(
        f"""SELECT window_start, window_end, product, sum(n)::BIGINT AS clicks,
                   row_number() OVER (PARTITION BY window_start ORDER BY clicks DESC, product) AS rank
            FROM ({windows}) GROUP BY window_start, window_end, product QUALIFY rank <= {promotion.BEST}""",
        rows=rows,
    )
    same(sink.rows, truth)
    every, size = promotion.EVERY * SECOND, promotion.SIZE * SECOND
    late = query(f"SELECT count(*) n FROM rows WHERE ts // {every} * {every} + {size} <= mark", rows=rows)["n"][0]
    assert late.as_py() > 0
    assert counts["hot"] == {"late": late.as_py()}


@pytest.mark.parametrize("seed", [2, pytest.param(3, marks=pytest.mark.heavy)])
def test_click_fraud(spark: SparkSession, tmp_path: Path, seed: int) -> None:
    from epochs import stream

    fraud = example("click_fraud")
    tables = list(fraud.generate(seed, epochs=5))
    paid, doubtful = Sink(), Sink()
    counts = run(
        spark,
        tmp_path,
        lambda job: list(zip(fraud.build(job, stream(spark, tmp_path / "in", tables)), (paid, doubtful), strict=True)),
        slices=128,
    )

    rows, _ = arrived(tables, fraud.LATENESS)
    within, known = fraud.WITHIN * SECOND, {}
    mistaken = fresh = dropped = 0
    clicks: Counter[str] = Counter()
    payable: Counter[str] = Counter()
    for epoch in range(1, len(tables) + 1):
        passed = Counter((row["visitor"], row["ad"], row["ts"]) for row in paid.of(epoch))
        now = {(visitor, ad) for visitor, ad, _ in passed}
        assert passed.total() == len(now), "a visitor was paid for twice in an epoch"
        for visitor, ad, at in passed:
            assert all(abs(at - before) > within for before in known.get((visitor, ad), [])), "paid for twice"
        mine = rows.filter(pc.equal(rows["epoch"], epoch)).to_pylist()
        for row in mine:
            who = (row["visitor"], row["ad"])
            # Filters are kept for each ten minutes of event time, and a click looks into its own and those beside it.
            near = [at for at in known.get(who, []) if abs(at // within - row["ts"] // within) <= 1]
            if not near:
                fresh += 1
                mistaken += who not in now
            dropped += passed[(*who, row["ts"])] == 0
        for visitor, ad, at in passed:
            known.setdefault((visitor, ad), []).append(at)
        clicks.update(row["ad"] for row in mine)
        payable.update(ad for _, ad in now)
        for ad in {row["ad"] for row in mine}:
            share = 1 - payable[ad] / clicks[ad]
            found = [row for row in doubtful.of(epoch) if row["ad"] == ad]
            expected = [{"ad": ad, "clicks": clicks[ad], "paid": payable[ad], "doubtful": share}]
            assert found == (expected if share > fraud.DOUBTFUL else []), f"{ad} in epoch {epoch}"
    assert fresh > 5000
    assert mistaken <= fraud.ERROR * fresh + 4 * (fraud.ERROR * fresh) ** 0.5
    assert counts["paid"]["duplicate"] == dropped > 0


@pytest.mark.parametrize("seed", [2, pytest.param(3, marks=pytest.mark.heavy)])
def test_traffic(spark: SparkSession, tmp_path: Path, seed: int) -> None:
    from epochs import stream

    traffic = example("traffic")
    tables = list(traffic.generate(seed, epochs=6))
    sink = Sink()
    counts = run(spark, tmp_path, lambda job: [(traffic.build(job, stream(spark, tmp_path / "in", tables)), sink)])

    rows, end = arrived(tables, traffic.LATENESS)
    truth = query(
        f"""WITH speeds AS (SELECT segment, window_end AS ts, avg(v) AS speed, count(*) AS vehicles
                            FROM ({sliding("segment, speed AS v", traffic.SIZE, traffic.EVERY, end)}) GROUP BY ALL),
        judged AS (SELECT *, speed < {traffic.SLOW} AND vehicles >= {traffic.VEHICLES} AS jammed FROM speeds)
        SELECT segment, ts, if(jammed, 'begins', 'ends') AS jam, speed FROM judged
        QUALIFY jammed != lag(jammed, 1, false) OVER (PARTITION BY segment ORDER BY ts)""",
        rows=rows,
    )
    same(sink.rows, truth)
    assert {"begins", "ends"} == set(truth["jam"].to_pylist())
    assert counts["speeds"]["late"] > 0


@pytest.mark.parametrize("seed", [2, pytest.param(3, marks=pytest.mark.heavy)])
def test_bargain_index(spark: SparkSession, tmp_path: Path, seed: int) -> None:
    from epochs import stream

    bargain = example("bargain_index")
    trades, quotes = zip(*bargain.generate(seed, epochs=5), strict=True)
    sink = Sink()

    def build(job: hf.Job) -> list[tuple[hf.Stream, Sink]]:
        sources = (stream(spark, tmp_path / "trades", trades), stream(spark, tmp_path / "quotes", quotes))
        return [(bargain.build(job, *sources), sink)]

    counts = run(spark, tmp_path, build)
    rows, end = arrived(trades, bargain.LATENESS)
    offers, _ = arrived(quotes, bargain.LATENESS)
    every = bargain.EVERY * SECOND
    truth = query(
        f"""WITH vwap AS (SELECT symbol, window_end AS since, sum(p * n) / sum(n) AS vwap
                          FROM ({sliding("symbol, price AS p, shares AS n", bargain.SIZE, bargain.EVERY, end)})
                          GROUP BY ALL)
        SELECT symbol, ts, ask, vwap, exp(vwap - ask) * offered AS index
        FROM offers JOIN vwap USING (symbol) WHERE ts // {every} * {every} = since AND vwap > ask""",
        rows=rows,
        offers=offers,
    )
    same(sink.rows, truth)
    assert all(not stage for stage in counts.values()), "the disorder of these rows makes none of them late"


def test_spam_campaigns_by_the_version_of_each_epoch(tmp_path: Path, spark: SparkSession) -> None:
    spam = example("spam_campaigns")
    tables = list(spam.generate(seed=4))
    (tmp_path / "mails").mkdir()
    hub = hf.Hub("spam", spark, store=tmp_path / "store")
    spam.draw(hub, spark.readStream.schema(spam.SCHEMA).parquet(str(tmp_path / "mails")))
    with hub.start(containers=2, slices=8) as running:
        made = spam.follow(running, hub, tmp_path / "mails", iter(tables))
        counts = running.state("templates/counts").to_arrow()
        senders = running.state("campaign/senders").to_arrow()
        largest = running.state("templates/largest").to_arrow()
        epochs = [epoch for epoch in range(1, running.status().epoch + 1) if rows_of(running, epoch)]
    rows = pa.concat_tables(
        [
            table.append_column("epoch", pa.array([epoch] * len(table), pa.int64()))
            for epoch, table in zip(epochs, tables, strict=True)
        ]
    )
    added, narrowed, cleaned = (made[name].epoch for name in ("added", "narrowed", "cleaned"))
    kept = f"bytes > 0 AND (epoch < {cleaned} OR template <> '{spam.CAMPAIGN}')"
    truth = f"SELECT template, count(*) AS mails FROM rows WHERE {kept} GROUP BY template"
    same(counts, query(truth, rows=rows))
    best = f"SELECT template, mails FROM ({truth}) ORDER BY mails DESC, template LIMIT 3"
    assert sorted(largest["mails"].to_pylist()) == sorted(query(best, rows=rows)["mails"].to_pylist())
    zoomed = f"""
        SELECT sender, country, count(*) AS mails, sum(bytes)::BIGINT AS bytes FROM rows
        WHERE template = '{spam.CAMPAIGN}' AND epoch >= {added} AND (epoch < {narrowed} OR country IN ('BR', 'IN'))
        GROUP BY ALL"""
    same(senders, query(zoomed, rows=rows))


@pytest.mark.parametrize("seed", [2, pytest.param(3, marks=pytest.mark.heavy)])
def test_sale_prediction(tmp_path: Path, spark: SparkSession, seed: int) -> None:
    from epochs import stream

    sale = example("sale_prediction")
    clicks, purchases, launches = zip(*sale.generate(seed, epochs=3), strict=True)
    given = {"clicks": clicks, "purchases": purchases, "launches": launches}
    hub = hf.Hub("shop", spark, store=tmp_path / "store")
    answers = sale.draw(hub, *(stream(spark, tmp_path / name, tables) for name, tables in given.items()))
    stated, predicted = Sink(), Sink()
    answers.stated.for_each_batch(stated, name="stated")
    answers.predicted.for_each_batch(predicted, mode="complete", name="predicted")
    with hub.start(containers=2, slices=8, trigger={"availableNow": True}) as running:
        running.await_termination()
        counts = {stage.name: dict(stage.counts) for stage in running.status().stages}

    bought, _ = arrived(purchases, sale.LATENESS)
    clicked, asked = (numbered(given[name]) for name in ("clicks", "launches"))
    for epoch in range(1, 4):
        so_far = f"""WITH counts AS (
            SELECT product, sum(clicks)::BIGINT AS clicks FROM clicked WHERE epoch <= {epoch} AND clicks > 0
            GROUP BY ALL),
        popular AS (SELECT * FROM counts ORDER BY clicks DESC, product LIMIT {sale.POPULAR}),
        known AS (SELECT * FROM bought WHERE epoch <= {epoch} AND ts >= mark),
        together AS (
            SELECT a.product, b.product AS companion, count(*) AS times FROM known a JOIN known b USING (basket)
            WHERE abs(a.ts - b.ts) <= {sale.APART * SECOND} AND a.product <> b.product GROUP BY ALL),
        groups AS (
            SELECT product, companion FROM together QUALIFY {sale.COMPANIONS} >=
                row_number() OVER (PARTITION BY product ORDER BY times DESC, companion))"""
        truth = f"""{so_far} SELECT launch, count(*) AS companions, sum(popular.clicks)::BIGINT AS clicks
            FROM asked JOIN groups USING (product) JOIN popular ON popular.product = companion
            WHERE epoch <= {epoch} GROUP BY launch"""
        same(predicted.tables[epoch], query(truth, clicked=clicked, bought=bought, asked=asked))
        truth = f"""{so_far} SELECT launch, product, counts.clicks FROM asked LEFT JOIN counts USING (product)
            WHERE epoch = {epoch}"""
        same(stated.tables[epoch], query(truth, clicked=clicked, bought=bought, asked=asked))
    late = query("SELECT count(*) AS n FROM bought WHERE ts < mark", bought=bought)["n"][0].as_py()
    assert late > 0
    assert counts["product-bundling/pairs"] == {"late": 2 * late}, "once on each side of the join"


@pytest.mark.heavy
def test_product_bundles_are_components_after_every_batch(tmp_path: Path, spark: SparkSession) -> None:
    from epochs import stream
    from loop_oracles import components

    bundles = example("product_bundles")
    tables = list(bundles.generate(2, epochs=3))
    told = Sink()
    job = hf.Job("bundles", spark, store=tmp_path / "store")
    stage = bundles.read(job, stream(spark, tmp_path / "in", tables))
    stage.output("bundles").for_each_batch(told)
    with job.start(containers=2, slices=8, trigger={"availableNow": True}, settle=True) as running:
        running.await_termination()
        held = {row["product"]: row["bundle"] for row in running.state(stage).to_arrow().to_pylist()}
        took = [rows_of(running, epoch) for epoch in range(1, running.status().epoch + 1)]
    assert len(took) > len(tables), "nothing went round"
    pairs: list[tuple[int, int]] = []
    known: dict[int, int] = {}
    batches = iter(tables)
    for epoch, blocks in enumerate(took, 1):
        if blocks:
            assert known == components(pairs), f"before epoch {epoch}"
            table = next(batches)
            pairs += zip(table["product"].to_pylist(), table["other"].to_pylist(), strict=True)
        known |= {row["product"]: row["bundle"] for row in told.of(epoch)}
    assert held == known == components(pairs)


@pytest.mark.heavy
def test_page_ranks_are_those_of_power_iteration(tmp_path: Path, spark: SparkSession) -> None:
    from epochs import stream
    from loop_oracles import page_ranks

    pages = example("page_rank")
    tables = list(pages.generate(2, epochs=2))
    job = hf.Job("ranks", spark, store=tmp_path / "store")
    stage = pages.read(job, stream(spark, tmp_path / "in", tables))
    with job.start(containers=2, slices=8, trigger={"availableNow": True}) as running:
        running.await_termination()
        found = {row["page"]: row["rank"] for row in running.state(stage).to_arrow().to_pylist()}
    rows = [row for table in tables for row in table.to_pylist()]
    truth = page_ranks([(row["page"], row["target"]) for row in rows], pages.DAMPING)
    assert found.keys() == truth.keys()
    off = sum(abs(found[page] - truth[page]) for page in truth)
    assert off <= len(truth) * pages.TOLERANCE / (1 - pages.DAMPING)
    assert max(truth.values()) > 3 * min(truth.values()), "all pages alike show nothing"


def numbered(tables: Iterable[pa.Table]) -> pa.Table:
    """All rows with their ``epoch``."""
    return pa.concat_tables(
        [
            table.append_column("epoch", pa.array([epoch] * len(table), pa.int64()))
            for epoch, table in enumerate(tables, 1)
        ]
    )


def rows_of(running: hf.Run, epoch: int) -> int:
    """How many rows of sources an epoch has: an epoch that is there for a change alone has none."""
    prepare = running._ledger.get_prepare(epoch, 1)
    assert prepare is not None
    return len(prepare.ranges["source"].numbers)
