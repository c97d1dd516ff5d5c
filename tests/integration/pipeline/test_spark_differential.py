"""Random bulk jobs over random topics, subscriptions and delays, against an oracle; some are killed, some refused.

After every step the rows of every index are what the oracle says, and every property names a snapshot that is there; in
the end a check finds what the oracle finds. More seeds than CI has time for: POSTDATE_DIFFERENTIAL_SEEDS=200.
"""

import asyncio
import os
import subprocess
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from random import Random

import pytest
from pyspark.sql import DataFrame, SparkSession
from rocksdict import Options, Rdict

from managed_ledger.cursors.cursor_properties import CursorName
from postdate.broker.topics.topic_index import INDEX_CURSOR_NAME
from postdate.index.comparing import HARMLESS
from postdate.index.location import location_at
from postdate.pipeline.cli.common import cause_of
from postdate.pipeline.jobs.cancel import cancel
from postdate.pipeline.jobs.find_messages import CSV_OPTIONS, read_positions
from postdate.pipeline.jobs.ingest import STREAM_SCHEMA, IngestedBatch, ingest
from postdate.pipeline.jobs.log_rebuild import rebuild_log
from postdate.pipeline.jobs.merge import merge
from postdate.pipeline.jobs.rebuild import rebuild
from postdate.pipeline.planning.rules import RebuildRules
from postdate.pipeline.publishing import publication
from postdate.pipeline.publishing.cursor_log import CursorLog
from postdate.pipeline.sources.index_writer import write_index
from snapshot_storage.bucket_key import BUCKET_KEY_PREFIX, parse_bucket_key
from snapshot_storage.encoding.codec import decode_segments
from snapshot_storage.inspection import ProblemKind
from tests.helpers.index_tools import checked, move
from tests.helpers.live_index import NOW_MS
from tests.helpers.spark.bulk_data import write_log
from tests.helpers.spark.bulk_oracle import BulkOracle, Index, Position, Row, differences
from tests.helpers.spark.spark_session import S3_CREDENTIALS
from tests.helpers.storages.s3_servers import BUCKET, RealServer, VersityServer
from tracker.bucket_properties import read_properties

pytestmark = [
    pytest.mark.java,
    pytest.mark.timeout(900),
    pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning"),
]

SEEDS = int(os.environ.get("POSTDATE_DIFFERENTIAL_SEEDS", "4"))
STEPS = 7
FAULTS = frozenset(ProblemKind) - {ProblemKind.ORPHANED}
TOPICS = (
    "persistent://public/default/orders",
    'persistent://shop/eu/"so, so"',
    "persistent://public/default/" + "予" * 40,
)
SUBSCRIPTIONS = ("billing", "s2%20%C3%BC")


class KilledError(BaseException):
    """The stand-in for a kill. No code handles it, just as a killed process runs no handler."""


class SparkWorld:
    """A data folder, where its index is now, and what both must hold."""

    def __init__(self, spark: SparkSession, root: Path, random: Random, away: str) -> None:
        self.spark, self.random, self.away = spark, random, away
        self.data, self.place = root / "data", str(root / "data")
        self.root = root
        self.rules = RebuildRules(
            now_ms=NOW_MS, step_ms=60_000, rows_max=30, rows_per_bucket_min=random.choice([1, 60, 150])
        )
        topics = random.sample(TOPICS, random.randint(1, 3))
        self.shared_topic = topics[0] if random.random() < 0.3 else None
        names = [CursorName(topic, cursor) for topic in topics for cursor in SUBSCRIPTIONS if random.random() < 0.8]
        names += [CursorName(topic, "sub") for topic in topics]
        if self.shared_topic is not None:
            names.append(CursorName(self.shared_topic, INDEX_CURSOR_NAME))
        headers = write_log(
            self.data,
            {topic: self._times() for topic in topics},
            {name: [] for name in names if name.cursor != "sub"},
        )
        self.oracle = BulkOracle(headers, NOW_MS, {name: set() for name in names}, {name: set() for name in names})
        self.batches = 0

    def _times(self) -> list[int]:
        count = self.random.randrange(1, 330)
        return [
            self.random.choice([-1, NOW_MS - 5, *[NOW_MS + self.random.randrange(1, 3_600_000)] * 4])
            for _ in range(count)
        ]

    # The indexes that exist.

    @property
    def indexed(self) -> list[CursorName]:
        """Those that have an index: on a shared topic, that is the index cursor."""
        return [
            name for name in self.oracle.index if name.topic != self.shared_topic or name.cursor == INDEX_CURSOR_NAME
        ]

    @property
    def own(self) -> list[CursorName]:
        """Subscriptions with an index of their own."""
        return [name for name in self.indexed if name.cursor != INDEX_CURSOR_NAME]

    def stored(self) -> dict[CursorName, Index]:
        """The rows of each bucket that is named; each must be there, and whole."""

        async def read() -> dict[CursorName, Index]:
            with CursorLog(self.data / "ledgers") as owners:
                named = {name: read_properties(owners.properties(name)).buckets for name in self.oracle.index}
            if not any(named.values()):
                return {name: [] for name in named}
            found: dict[CursorName, Index] = {}
            async with location_at(self.place, data=self.data).storage(is_read_only=True) as storage:
                for name, buckets in named.items():
                    found[name] = []
                    for bucket in buckets:
                        info = (await storage.get_bucket_snapshot_head(bucket.bucket_id)).info
                        assert (info.topic_name, info.cursor_name, info.bucket_key) == (*name, bucket.key)
                        segments = await storage.get_bucket_snapshot_segment(bucket.bucket_id, 1, 2**31)
                        rows = decode_segments(segments)
                        found[name].append([(ledger, entry, time) for time, ledger, entry in rows.to_rows()])
            return found

        return asyncio.run(read())

    def snapshot_ids(self) -> set[int]:
        async def ids() -> set[int]:
            async with location_at(self.place, data=self.data).storage(is_read_only=True) as storage:
                return {info.bucket_id for info in await storage.list_bucket_snapshots()}

        return asyncio.run(ids())

    def last_sealed(self, name: CursorName) -> Position:
        """The last position of the buckets whose ledgers end last."""
        with CursorLog(self.data / "ledgers") as owners:
            keys = [parse_bucket_key(bucket.key) for bucket in read_properties(owners.properties(name)).buckets]
        ends = [ledgers.last_ledger_id for ledgers in keys if ledgers is not None]
        rows = [
            row[:2]
            for ledgers, bucket in zip(keys, self.stored()[name], strict=True)
            if ledgers is not None and ledgers.last_ledger_id == max(ends)
            for row in bucket
        ]
        return max(rows, default=(-1, -1))

    def check(self) -> None:
        """Compare the rows of every index."""
        assert differences(self.oracle.index, self.stored()) == {}

    def check_findings(self) -> None:
        """Compare what a check finds."""
        found = self.stored()
        verdict = checked(self.data, self.place)
        assert [one for one in verdict.problems if one.kind is not ProblemKind.ORPHANED] == []
        for name in self.indexed:
            of_name = verdict.counts.get(name, {})
            counts = {str(kind): count for kind, count in of_name.items() if count and kind not in HARMLESS}
            assert counts == self.oracle.findings(name, found[name], self.last_sealed(name)), name

    # Jobs.

    def chosen(self) -> dict[str, list[str] | None]:
        """Some topics and subscriptions, called as their users call them."""
        if self.random.random() < 0.5 or self.shared_topic is not None:
            return {"topics": None, "cursors": None}
        name = self.random.choice(self.own)
        short = name.topic.removeprefix("persistent://").removeprefix("public/default/")
        topics = self.random.choice([[short], [name.topic], None])
        return {"topics": topics, "cursors": self.random.choice([[name.subscription], None])}

    def meant(self, chosen: dict[str, list[str] | None]) -> list[CursorName]:
        topics, cursors = chosen["topics"], chosen["cursors"]
        return [
            name
            for name in self.indexed
            if (topics is None or any(name.topic.endswith(topic) for topic in topics))
            and (cursors is None or name.subscription in cursors)
        ]

    def rebuild(self) -> None:
        chosen = self.chosen()
        rebuild_log(self.spark, str(self.data), self.place, rules=self.rules, cursor_log=str(self.data), **chosen)
        self.oracle.rebuilt(self.meant(chosen))

    def merge(self) -> None:
        chosen, limit = self.chosen(), self.random.randint(1, 3)
        merge(self.spark, str(self.data), self.place, bucket_count_max=limit, rules=self.rules, **chosen)
        for name in self.meant(chosen):
            assert len(self.stored()[name]) <= limit

    def move(self) -> None:
        target = self.away if self.place == str(self.data) else str(self.data)
        deletes = self.random.random() < 0.5
        report = move(str(self.data), self.place, target, deletes_source=deletes)
        assert not report.failed
        self.place = target

    def cancel(self) -> None:
        """By positions that come unsorted, twice, as decimals, null, unknown; from a file or a DataFrame."""
        topic = self.random.choice([name.topic for name in self.oracle.index])
        known = [header[:2] for header in self.oracle.headers[topic]]
        asked = [self.random.choice(known) for _ in range(self.random.randrange(1, 60))]
        unknown = [(ledger_id, 10_000) for ledger_id, _ in asked[:3]]
        cursors = sorted({name.subscription for name in self.oracle.index if name.topic == topic} - {INDEX_CURSOR_NAME})
        cursor = self.random.choice(cursors)
        frame, bad_count = self._positions(topic, [*asked, *unknown])
        report = cancel(frame, self.place, cursors=[cursor], cursor_log=str(self.data))
        name = next(one for one in self.oracle.index if one.topic == topic and one.subscription == cursor)
        new = self.oracle.cancelled(name, asked, has_own_index=name in self.own)
        if topic == self.shared_topic:
            others = [one for one in self.oracle.acknowledged if one.topic == topic and one.cursor != INDEX_CURSOR_NAME]
            common = set.intersection(*(self.oracle.acknowledged[one] for one in others))
            self.oracle.acknowledged[CursorName(topic, INDEX_CURSOR_NAME)] = common
        assert report.cancelled[name] == new
        assert (report.unknown, len(report.bad_rows), report.unsubscribed) == (len(set(unknown)), bad_count, 0)

    def _positions(self, topic: str, positions: Sequence[Position]) -> tuple[DataFrame, int]:
        rows: list[tuple[str | None, int | None, int | None]] = [(topic, *position) for position in positions]
        bad = [(None, 1, 1), (topic, None, 1), (topic, 1, -1)][: self.random.randrange(4)]
        rows += bad
        self.random.shuffle(rows)
        if self.random.random() < 0.5:
            return read_positions(self.spark, str(self._csv("topic,ledger_id,entry_id", rows))), len(bad)
        kind = self.random.choice(["bigint", "decimal(38,0)", "decimal(24,2)"])
        make = int if kind == "bigint" else Decimal
        typed = [(one[0], *(None if number is None else make(number) for number in one[1:])) for one in rows]
        return self.spark.createDataFrame(typed, f"topic string, ledger_id {kind}, entry_id {kind}"), len(bad)

    def _csv(self, columns: str, rows: Sequence[tuple[object, ...]], folder: str = "csv") -> Path:
        """Write rows as every tool does: a field with a comma or a quote is quoted, and a quote within is doubled."""

        def cell(value: object) -> str:
            text = "" if value is None else str(value)
            return '"' + text.replace('"', '""') + '"' if set('",') & set(text) else text

        (self.root / folder).mkdir(exist_ok=True)
        path = self.root / folder / f"{uuid.UUID(int=self.random.getrandbits(128)).hex}.csv"
        path.write_text("\n".join([columns, *(",".join(map(cell, row)) for row in rows)]), encoding="utf-8")
        return path

    def frame(self) -> None:
        """An index of some topic from a DataFrame: skewed, unsorted, with duplicates, decimals, nulls and bad rows."""
        if not self.own:
            return
        name = self.random.choice(self.own)
        rows = self._some_rows(name.topic)
        rows += self.random.sample(rows, min(len(rows), 9))
        self.random.shuffle(rows)
        good = [(name.topic, *row) for row in rows]
        bad = [(name.topic, None, 1, NOW_MS + 9), (name.topic, 1, -1, NOW_MS + 9), (None, 1, 1, NOW_MS + 9)]
        kind = self.random.choice(["bigint", "decimal(20,0)"])
        make = int if kind == "bigint" else Decimal
        typed = [
            (one[0], *(None if number is None else make(number) for number in one[1:3]), one[3])
            for one in (*good, *bad)
        ]
        schema = f"topic string, ledger_id {kind}, entry_id {kind}, deliver_at_ms bigint"
        headers = self.spark.createDataFrame(typed, schema).repartition(self.random.randint(1, 3))
        mode = self.random.choice(["append", "overwrite"])
        options = {"log": str(self.data), "step_ms": "60000", "rows_max": "30"}
        write_index(rebuild(headers, self.rules, cursor=name.subscription), self.place, mode=mode, options=options)
        if mode == "overwrite" and any(row[2] > NOW_MS for row in rows):
            self.oracle.index[name] = set()
        self.oracle.added(name, rows)

    def _some_rows(self, topic: str) -> list[Row]:
        """Of a few ledgers most entries, of the others hardly any: skew."""
        headers = self.oracle.headers[topic]
        heavy = self.random.choice(headers).ledger_id
        return [
            (header.ledger_id, header.entry_id, header.deliver_at_ms)
            for header in headers
            if self.random.random() < (0.9 if header.ledger_id == heavy else 0.1)
        ]

    def ingest(self) -> list[IngestedBatch]:
        """A file of a stream, for one topic that has the subscription."""
        if not self.own or self.place != str(self.data):
            return []
        name = self.random.choice(self.own)
        self.batches += 1
        rows = self._some_rows(name.topic)
        self.random.shuffle(rows)
        folder = f"stream-{self.batches}"
        self._csv("topic,ledger_id,entry_id,deliver_at_ms", [(name.topic, *row) for row in rows], folder)
        batches = self._run_stream(name, folder)
        self.oracle.added(name, rows)
        assert [batch.messages for batch in batches] == [len(rows)] * bool(rows)
        return batches

    def _run_stream(self, name: CursorName, folder: str) -> list[IngestedBatch]:
        batches: list[IngestedBatch] = []
        stream = self.spark.readStream.schema(STREAM_SCHEMA).options(**CSV_OPTIONS).csv(str(self.root / folder))
        query = ingest(
            stream,
            str(self.data),
            cursors=[name.subscription],
            checkpoint=str(self.root / f"{folder}-checkpoint"),
            now_ms=lambda: NOW_MS,
            rows_per_bucket_min=60,
            on_batch=batches.append,
        )
        query.awaitTermination()
        return batches

    # Kills, damage and other failures.

    def kill(self) -> None:
        """A job that is killed before or after its one write, and cannot clean up: the old index, or the new one."""
        before = {name: set(rows) for name, rows in self.oracle.index.items()}
        is_after = self.random.random() < 0.5
        job = self.random.choice([self.rebuild, self.merge])
        put = CursorLog.put_properties

        def die(owners: CursorLog, changed: dict[CursorName, dict[str, str]]) -> None:
            if is_after:
                put(owners, changed)
            raise KilledError

        async def leave(*_arguments: object) -> None:
            """Delete nothing: a dead process cannot."""

        was_killed = False
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(CursorLog, "put_properties", die)
            patch.setattr(publication, "_delete", leave)
            try:
                job()
            except KilledError:
                was_killed = True
        if was_killed and is_after and job == self.rebuild:
            # The index tells which cursors the job reached: each index is as it was, or rebuilt.
            found = self.stored()
            self.oracle.rebuilt([name for name in self.indexed if {r for b in found[name] for r in b} != before[name]])
        elif was_killed:
            self.oracle.index = before

    def damage_and_repair(self) -> None:
        """Damage a snapshot or a property: a check says so, and a rebuild mends it without a cost to other cursors."""
        with CursorLog(self.data / "ledgers") as owners:
            properties = {name: dict(owners.properties(name)) for name in self.indexed}
            buckets = [(name, one) for name in self.indexed for one in read_properties(properties[name]).buckets]
            if not buckets:
                return
            name, bucket = self.random.choice(buckets)
            others = [(other, one) for other, one in buckets if other != name]
            kinds = ["malformed", "dangling", *(["alien"] if others else [])]
            kind = self.random.choice([*kinds, *(["entry", "entry"] if self.place == str(self.data) else [])])
            healthy = {one.bucket_id for other, one in others}
            if kind == "alien":
                properties[name][bucket.key] = str(self.random.choice(others)[1].bucket_id)
            elif kind == "malformed":
                properties[name][f"{BUCKET_KEY_PREFIX}_x"] = str(self.random.choice(buckets)[1].bucket_id)
            elif kind == "dangling":
                properties[name][bucket.key] = "77"
            owners.put_properties({name: properties[name]})
        if kind == "entry":
            _flip(self.data, bucket.bucket_id, self.random.choice([0, 0, 1]))
        torn = checked(self.data, self.place)
        assert not torn.is_whole, kind
        owners = {CursorName(one.topic_name, one.cursor_name) for one in torn.problems if one.kind in FAULTS}
        affected = set(self.indexed) & (torn.torn | owners)
        for one in affected:
            cursors = None if one.cursor == INDEX_CURSOR_NAME else [one.subscription]
            rebuild_log(
                self.spark, str(self.data), self.place, rules=self.rules, cursor_log=str(self.data),
                topics=[one.topic], cursors=cursors,
            )  # fmt: skip
        again = checked(self.data, self.place)
        assert again.torn == set(), kind
        assert {one.kind for one in again.problems} <= {ProblemKind.ORPHANED}, kind
        if kind != "entry":
            assert healthy - self._named_by_affected(affected, buckets) <= self.snapshot_ids()
        self.oracle.rebuilt(affected)

    @staticmethod
    def _named_by_affected(affected: set[CursorName], buckets: Sequence[tuple[CursorName, object]]) -> set[int]:
        return {one.bucket_id for name, one in buckets if name in affected}  # type: ignore[attr-defined]


def _flip(data: Path, bucket_id: int, entry: int) -> None:
    key = b"e" + bucket_id.to_bytes(8) + entry.to_bytes(4)
    database = Rdict(str(data / "snapshots"), Options(raw_mode=True))
    stored = bytearray(database[key])
    stored[len(stored) // 2] ^= 4
    database[key] = bytes(stored)
    database.close()


STORY: list[tuple[Callable[[SparkWorld], object], int]] = [
    (SparkWorld.rebuild, 3), (SparkWorld.merge, 3), (SparkWorld.move, 2),
    (SparkWorld.cancel, 3), (SparkWorld.frame, 2), (SparkWorld.ingest, 2), (SparkWorld.kill, 2),
    (SparkWorld.damage_and_repair, 3),
]  # fmt: skip


def play(world: SparkWorld) -> None:
    """Rebuild, and then do what comes; compare after every step."""
    world.rebuild()
    jobs, weights = zip(*STORY, strict=True)
    told: list[str] = []
    story = [*world.random.choices(jobs, weights, k=STEPS - 2), SparkWorld.kill, SparkWorld.damage_and_repair]
    for job in world.random.sample(story, STEPS):
        told.append(job.__name__)
        try:
            job(world)
            world.check()
        except AssertionError as error:
            raise AssertionError(f"after {', '.join(told)}: {error}") from error
    world.check_findings()


@pytest.mark.parametrize("seed", range(SEEDS))
def test_bulk_jobs_do_what_the_oracle_says(spark: SparkSession, tmp_path: Path, seed: int) -> None:
    """Between the service's folder and another."""
    play(SparkWorld(spark, tmp_path, Random(seed), str(tmp_path / "away")))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealServer]:
    running = VersityServer(tmp_path_factory.mktemp("s3"))
    yield running
    running.stop()


@pytest.mark.s3_server
@pytest.mark.parametrize("seed", range(1_000, 1_000 + max(1, SEEDS // 3)))
def test_bulk_jobs_do_what_the_oracle_says_on_s3(
    spark: SparkSession, tmp_path: Path, server: RealServer, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """As source and as target: the index begins there."""
    for name, value in S3_CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    place = f"s3://{BUCKET}/{uuid.uuid4().hex}?endpoint={server.endpoint}&region=us-east-1&path_style=true"
    world = SparkWorld(spark, tmp_path, Random(seed), place)
    world.place = place
    play(world)


def test_a_full_disk_ends_a_job_and_costs_nothing(spark: SparkSession, tmp_path: Path) -> None:
    """A full disk leaves the old index in place. The same job goes on when there is space."""
    mounted = tmp_path / "small"
    mounted.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "none", str(mounted)], check=False).returncode:
        pytest.skip("a small file system cannot be mounted here")
    try:
        data = mounted / "data"
        name = CursorName("a", "sub")
        headers = write_log(data, {"a": [NOW_MS + 1 + 37 * number % 3_000_000 for number in range(2_000)]})
        rules = RebuildRules(now_ms=NOW_MS, step_ms=60_000, rows_max=30, rows_per_bucket_min=400)
        rebuild_log(spark, str(data), rules=rules)
        oracle = BulkOracle(headers, NOW_MS, {name: set()}, {name: set()})
        oracle.rebuilt([name])
        filler = mounted / "filler"
        _fill(filler)

        finer = replace(rules, rows_max=1)
        with pytest.raises(Exception, match=r"No space left|no space|StorageUnavailable") as full:
            rebuild_log(spark, str(data), rules=finer)
        filler.unlink()
        kept = _rows_of(data, name)
        rebuild_log(spark, str(data), rules=finer)

        assert "\n" not in cause_of(str(full.value))
        assert differences(oracle.index, {name: kept}) == {}
        assert differences(oracle.index, {name: _rows_of(data, name)}) == {}
        assert checked(data).is_whole
        assert list(data.glob("*.staging/*")) == []
    finally:
        subprocess.run(["umount", "-l", str(mounted)], check=True)


def _fill(path: Path) -> None:
    with path.open("wb", buffering=0) as file:
        for portion in (bytes(65_536), bytes(1_024), b"0"):
            with suppress(OSError):
                while file.write(portion) == len(portion):
                    pass


def _rows_of(data: Path, name: CursorName) -> Index:
    async def read() -> Index:
        with CursorLog(data / "ledgers") as owners:
            buckets = read_properties(owners.properties(name)).buckets
        async with location_at(str(data)).storage(is_read_only=True) as storage:
            found = []
            for bucket in buckets:
                segments = await storage.get_bucket_snapshot_segment(bucket.bucket_id, 1, 2**31)
                found.append([(ledger, entry, time) for time, ledger, entry in decode_segments(segments).to_rows()])
            return found

    return asyncio.run(read())
