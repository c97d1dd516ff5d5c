"""The test cases of every command of `postdate`, with their exit codes: a table that a new command has to join.

`{data}` is a service's data folder with the topics `orders` (a subscription `billing`) and `reminders` (a subscription
`s2 ü`) and their index, `{none}` a folder that does not exist, `{empty}` one with nothing in it, and `{tmp}` a folder
of the test's own.
"""

from dataclasses import dataclass

DONE, WRONG, REFUSED = 0, 1, 2


@dataclass(frozen=True)
class Case:
    """A command line, and how it ends."""

    words: str
    code: int
    says: str
    """Part of what is on stdout, or on stderr where the command is refused."""


@dataclass(frozen=True)
class Cases:
    """The cases of one command. Spark is started by the right cases alone."""

    refused: tuple[Case, ...]
    """Wrong and empty input."""
    right: tuple[Case, ...] = ()
    shown_by: str = ""
    """The test that runs it with right input, where that is too long for this table."""
    needs_spark: bool = False


def _refused(words: str, says: str) -> Case:
    return Case(words, REFUSED, says)


def _done(words: str, says: str) -> Case:
    return Case(words, DONE, says)


_NO_LOG = "There is no log"
_NO_FOLDER = "there is no folder"
_NO_TOPIC = "There is no topic order; near to it is persistent://public/default/orders"
_NO_CURSOR = "There is no subscription biling; near to it is billing"
_MISSING = "Missing"


def _snapshots(command: str) -> tuple[Case, ...]:
    """Cases that every command with --topic, --subscription and --data refuses."""
    return (
        _refused(f"{command} --topic order --data {{data}}", _NO_TOPIC),
        _refused(f"{command} --subscription biling --data {{data}}", _NO_CURSOR),
        _refused(f"{command} --data {{none}}", _NO_FOLDER),
        _refused(f"{command} --data {{empty}}", _NO_LOG),
        _refused(f"{command} --set nonsense", "must be key=value"),
        _refused(f"{command} --bundle 0x00000000_0x10000000 --data {{data}}", "has no bundle 0x00000000_0x10000000"),
    )


def _of_service(command: str, rest: str = "") -> tuple[Case, ...]:
    """Cases that every command of a running service refuses."""
    rest = f" {rest}" if rest else ""
    found = (
        _refused(f"{command}{rest} --url http://127.0.0.1:1", "no service answers"),
        _refused(f"{command}{rest} --url nowhere", "is no address"),
        _refused(f"{command}{rest} --no-such-option", "No such option"),
    )
    return (
        found
        if not rest
        else (*found, _refused(command, _MISSING), _refused(f"{command} a/b{rest[7:]}", "is no topic"))
    )


def _job(command: str, rest: str = "") -> tuple[Case, ...]:
    """Cases that every job refuses before Spark is started."""
    rest = f" {rest}" if rest else ""
    return (
        _refused(command, _MISSING),
        _refused(f"{command} {{none}}{rest}", _NO_LOG),
        _refused(f"{command} {{empty}}{rest}", _NO_LOG),
        _refused(f"{command} {{data}}{rest} --no-such-option", "No such option"),
    )


def _selecting(command: str, rest: str = "") -> tuple[Case, ...]:
    rest = f" {rest}" if rest else ""
    return (
        *_job(command, rest.strip()),
        _refused(f"{command} {{data}}{rest} --topic order", _NO_TOPIC),
        _refused(f"{command} {{data}}{rest} --subscription biling", _NO_CURSOR),
        _refused(f"{command} {{data}}{rest} --topic reminders --subscription billing", "; there are s2 ü, sub"),
    )


_SECRET = "'data:;base64,MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE='"
_TOKEN = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJhbm5hIn0.AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"
"""A token that no authority has signed: its signature is all zeros."""

_TIMES = ("2026-13-01T00:00:00Z", "2026-01-01T00:00:00", "99999999999999999999", "-1", "soon", "''", "20260115")

CASES: dict[str, Cases] = {
    "serve": Cases(
        (
            _refused("serve --config {none}", "cannot be read"),
            _refused("serve --set brokerServicePort=x", "must be a whole number"),
            _refused("serve --log-level loud", "Invalid value"),
        ),
        shown_by="test_serve_says_where_it_listens",
    ),
    "config": Cases(
        (
            _refused("config --config {none}", "cannot be read"),
            _refused("config --set x", "must be key=value"),
            _refused("config --table --json", "--commented and --table are no JSON"),
            _refused("config --commented --changed", "exclude each other"),
        ),
        (_done("config --changed --set webServicePort=8081", "8081"), _done("config --changed", "")),
    ),
    "demo": Cases(
        (_refused("demo --folder {data}/ledgers/CURRENT", "is a file"),),
        shown_by="test_the_demo_shows_its_verdict_and_leaves_nothing_behind",
    ),
    "backup": Cases(
        (
            _refused("backup", _MISSING),
            _refused("backup {tmp} --url http://127.0.0.1:1", "no service answers"),
            _refused("backup {tmp} --url nowhere", "is no address"),
        ),
        shown_by="test_a_backup_of_a_running_service_brings_everything_back",
    ),
    "bundles split": Cases(
        (
            _refused("bundles split {data} --yes", _MISSING),
            _refused("bundles split {data} --bundles 4", "say --yes"),
            _refused("bundles split {data} --bundles 0 --yes", "not in the range"),
            _refused("bundles split {none} --bundles 4 --yes", _NO_LOG),
            _refused("bundles split {empty} --bundles 4 --yes", _NO_LOG),
        ),
        (
            _done("bundles split {data} --bundles 1 --yes", "0x00000000_0xffffffff"),
            _done("bundles split {data} --bundles 4 --yes", "0xc0000000_0xffffffff"),
        ),
    ),
    "restore": Cases(
        (
            _refused("restore {none}", _MISSING),
            _refused("restore {none} {tmp}", "There is no backup in"),
            _refused("restore {none} {data}", "is not empty"),
            _refused("restore s3://bucket {tmp}", "names a bucket alone"),
            _refused("restore s3://bucket/prefix?x=1 {tmp}", "the option x is not known"),
            _refused("restore ftp://somewhere {tmp}", "must be a folder or s3://BUCKET/PREFIX"),
        ),
        shown_by="test_a_backup_of_a_running_service_brings_everything_back",
    ),
    "keys": Cases(
        (
            _refused("keys", _MISSING),
            _refused("keys orders billing key --url http://127.0.0.1:1", "no service answers"),
            _refused("keys orders billing key --url nowhere", "is no address"),
            _refused("keys a/b billing key", "is no topic"),
        ),
        shown_by="test_a_key_says_who_holds_it_up",
    ),
    "publish": Cases(
        (
            *_of_service("publish", "orders hello"),
            _refused("publish orders hello --delay 1s --at 2027-01-15T08:00:00Z", "give one of --delay and --at"),
            _refused("publish orders hello --at 1800000000", "may be seconds"),
            _refused("publish orders hello --property user", "write NAME=VALUE"),
            _refused("publish orders hello --lines", "give - as PAYLOAD"),
        ),
        shown_by="test_a_shell_script_publishes_counts_and_consumes_at_the_time_in_key_order",
    ),
    "consume": Cases(
        (
            *_of_service("consume", "orders --subscription billing"),
            _refused("consume orders", "Missing option '--subscription'"),
            _refused("consume orders --subscription billing --max 0", "not in the range"),
        ),
        shown_by="test_a_shell_script_publishes_counts_and_consumes_at_the_time_in_key_order",
    ),
    "cluster status": Cases(_of_service("cluster status"), shown_by="test_a_bundle_is_shown_and_moved_by_commands"),
    "cluster unload": Cases(
        (*_of_service("cluster unload 0x00000000_0xffffffff"), _refused("cluster unload", _MISSING)),
        shown_by="test_a_bundle_is_shown_and_moved_by_commands",
    ),
    "cluster transfer": Cases(
        (*_of_service("cluster transfer 0x00000000_0xffffffff other:8080"), _refused("cluster transfer", _MISSING)),
        shown_by="test_a_bundle_is_shown_and_moved_by_commands",
    ),
    "trail": Cases(
        tuple(one for one in _of_service("trail", "orders") if one.says in ("no service answers", "No such option")),
        shown_by="test_a_pause_has_an_author_and_a_note_and_the_trail_tells_of_it",
    ),
    "topics": Cases(
        (*_of_service("topics"), _refused("topics --json create orders", "give options behind create")),
        shown_by="test_messages_are_listed_and_counted_on_80_columns",
    ),
    "topics create": Cases(
        _of_service("topics create", "orders"), shown_by="test_a_topic_is_made_and_deleted_after_a_question"
    ),
    "topics delete": Cases(
        _of_service("topics delete", "orders"), shown_by="test_a_topic_is_made_and_deleted_after_a_question"
    ),
    "subscriptions list": Cases(
        _of_service("subscriptions list", "orders"), shown_by="test_a_subscription_is_made_listed_and_deleted"
    ),
    "subscriptions create": Cases(
        (
            *_of_service("subscriptions create", "orders billing"),
            _refused("subscriptions create orders billing --earliest --latest", "give one of --earliest"),
            _refused("subscriptions create orders billing --to-id 7", "is no message id"),
        ),
        shown_by="test_a_subscription_is_made_listed_and_deleted",
    ),
    "subscriptions delete": Cases(
        _of_service("subscriptions delete", "orders billing"),
        shown_by="test_a_subscription_is_made_listed_and_deleted",
    ),
    "subscriptions skip": Cases(
        (
            *_of_service("subscriptions skip", "orders billing 1"),
            _refused("subscriptions skip orders billing 0", "not in the range"),
        ),
        shown_by="test_messages_are_skipped_cleared_expired_and_sought",
    ),
    "subscriptions clear": Cases(
        _of_service("subscriptions clear", "orders billing"),
        shown_by="test_messages_are_skipped_cleared_expired_and_sought",
    ),
    "subscriptions expire": Cases(
        (
            *_of_service("subscriptions expire", "orders billing --older-than 1h"),
            _refused("subscriptions expire orders billing --older-than soon", "must be a number with s, m"),
        ),
        shown_by="test_messages_are_skipped_cleared_expired_and_sought",
    ),
    "subscriptions seek": Cases(
        (
            *_of_service("subscriptions seek", "orders billing --earliest"),
            _refused("subscriptions seek orders billing", "give one of --time"),
            _refused("subscriptions seek orders billing --time soon", "Invalid value"),
        ),
        shown_by="test_messages_are_skipped_cleared_expired_and_sought",
    ),
    "subscriptions peek": Cases(
        (
            *_of_service("subscriptions peek", "orders billing"),
            _refused("subscriptions peek orders billing --count 0", "not in the range"),
        ),
        shown_by="test_messages_are_peeked_at_as_text_json_and_bytes",
    ),
    "import redis-sorted-set": Cases(
        (
            _refused("import redis-sorted-set redis://127.0.0.1:1", _MISSING),
            _refused("import redis-sorted-set redis://127.0.0.1:1 due --score-unit s --to a/b", "is no topic"),
            _refused(
                "import redis-sorted-set http://:geheim/x@127.0.0.1:1 due --score-unit s --to orders --dry-run",
                "the address of Redis is none: write redis://HOST:PORT/DATABASE",
            ),
            _refused("import redis-sorted-set redis://127.0.0.1:1 due --to orders", "Missing option '--score-unit'"),
            _refused("import redis-sorted-set redis://127.0.0.1:1 due --to orders --score-unit min", "Invalid value"),
        ),
        shown_by="test_each_member_comes_once_at_its_score_and_stays_where_it_is",
    ),
    "import celery": Cases(
        (
            _refused("import celery redis://127.0.0.1:1", _MISSING),
            _refused("import celery amqp://127.0.0.1:1 --to orders", "a broker of AMQP"),
            _refused("import celery redis://127.0.0.1:1 --to bad//x", "postdate: 'bad//x' is no topic"),
            _refused("import celery redis://127.0.0.1:1 --to orders --dry-run --url http://127.0.0.1:1", "no service"),
        ),
        shown_by="test_tasks_come_over_from_queues_and_from_killed_workers_and_are_run_here",
    ),
    "import pulsar": Cases(
        (
            _refused("import pulsar pulsar://127.0.0.1:1 orders --subscription s", _MISSING),
            _refused(
                "import pulsar nowhere orders --subscription s --admin-url http://127.0.0.1:1", "Pulsar at nowhere"
            ),
            _refused("import pulsar pulsar://127.0.0.1:1 orders --subscription s --admin-url nowhere", "is no address"),
            _refused(
                "import pulsar pulsar://h orders --subscription s --admin-url http://127.0.0.1:1/ --url http://127.0.0.1:1",
                "orders would be imported into itself",
            ),
        ),
        shown_by="test_the_backlog_of_a_subscription_comes_over_once",
    ),
    "scheduled list": Cases(
        (
            *_of_service("scheduled list", "orders"),
            *(_refused(f"scheduled list orders --from {time}", "Invalid value") for time in (*_TIMES, "1800000000")),
            _refused("scheduled list orders --limit 0", "not in the range"),
        ),
        shown_by="test_messages_are_listed_and_counted_on_80_columns",
    ),
    "scheduled count": Cases(
        (*_of_service("scheduled count", "orders"), _refused("scheduled count orders --buckets 0", "not in the range")),
        shown_by="test_messages_are_listed_and_counted_on_80_columns",
    ),
    "scheduled cancel": Cases(
        (
            *_of_service("scheduled cancel", "orders 1:1"),
            _refused("scheduled cancel orders", "say which messages"),
            _refused("scheduled cancel orders 1:1 --all", "exclude each other"),
        ),
        shown_by="test_messages_are_cancelled_one_at_once_and_many_after_a_question",
    ),
    "scheduled reschedule": Cases(
        (
            *_of_service("scheduled reschedule", "orders 1:1 --delay 1h"),
            _refused("scheduled reschedule orders 1:1", "give one of --at, --delay and --shift"),
            _refused("scheduled reschedule orders 1:1 --delay soon", "must be a number with s, m"),
            _refused("scheduled reschedule orders --delay 1h", "say which messages"),
        ),
        shown_by="test_messages_are_moved_and_delivered_now",
    ),
    "scheduled deliver-now": Cases(
        (
            *_of_service("scheduled deliver-now", "orders 1:1"),
            _refused("scheduled deliver-now orders", "say which messages"),
        ),
        shown_by="test_messages_are_moved_and_delivered_now",
    ),
    "pause": Cases(_of_service("pause", "orders"), shown_by="test_a_pause_holds_and_is_explained"),
    "resume": Cases(
        (*_of_service("resume", "orders"), _refused("resume orders --rate x", "not a valid float")),
        shown_by="test_a_pause_holds_and_is_explained",
    ),
    "explain": Cases(
        (
            *_of_service("explain", "orders --id 1:1"),
            _refused("explain orders", "give one of --id, --own-id and --key"),
        ),
        shown_by="test_a_pause_holds_and_is_explained",
    ),
    "token create-secret-key": Cases(
        (
            _refused("token create-secret-key -a HS1", "Invalid value"),
            _refused("token create-secret-key --output {data}/ledgers/CURRENT", "name another file"),
            _refused("token create-secret-key --output {none}/key", "No such file"),
        ),
        (_done("token create-secret-key --output {tmp}/secret.key", ""),),
    ),
    "token create-key-pair": Cases(
        (
            _refused("token create-key-pair", _MISSING),
            _refused(
                "token create-key-pair --output-private-key {data}/ledgers/CURRENT --output-public-key {none}",
                "name another file",
            ),
        ),
        (
            _done(
                "token create-key-pair -a ES256 --output-private-key {tmp}/a --output-public-key {tmp}/b",
                "",
            ),
        ),
    ),
    "token create": Cases(
        (
            _refused("token create", _MISSING),
            _refused("token create --subject anna", "give one key"),
            _refused("token create --subject anna --secret-key file:{none}", "--secret-key"),
            _refused("token create --subject anna --secret-key " + _SECRET + " --expiry-time soon", "--expiry-time"),
        ),
        (_done("token create --subject anna --secret-key " + _SECRET, "ey"),),
    ),
    "token show": Cases(
        (
            _refused("token show x", ""),
            _refused("token show --token-file {none}", "No such file"),
        ),
        (_done("token show " + _TOKEN, "anna"),),
    ),
    "token validate": Cases(
        (
            _refused("token validate " + _TOKEN, "give one key"),
            _refused("token validate --secret-key file:{none} " + _TOKEN, "--secret-key"),
        ),
        (Case("token validate --secret-key " + _SECRET + " " + _TOKEN, 1, ""),),
    ),
    "snapshots list": Cases(
        (
            *_snapshots("snapshots list"),
            _refused(
                "snapshots list --set bucketSnapshotStorage=memory --data {data}", "in the service's memory alone"
            ),
        ),
        (
            _done("snapshots list --data {data}", "orders"),
            _done("snapshots list --topic public/default/orders --subscription billing --data {data}", "billing"),
            _done("snapshots list --subscription 's2 ü' --data {data}", "s2 ü"),
        ),
    ),
    "snapshots show": Cases(
        (
            _refused("snapshots show", _MISSING),
            _refused("snapshots show 5 --data {data}", "no snapshot has the bucket id 5"),
            _refused("snapshots show x --data {data}", "not a valid integer"),
            _refused("snapshots show 99999999999999999999 --data {data}", "not in the range"),
            _refused("snapshots show 5 --data {none}", _NO_FOLDER),
        ),
        (_done("snapshots show {bucket_id} --data {data}", "{bucket_id}"),),
    ),
    "check": Cases(
        (
            *_snapshots("check"),
            _refused("check --second-look nan --data {data}", "nan"),
            _refused("check --index ftp://x --data {data}", "--index: the place of an index must be"),
            _refused("check --positions {none}/rows.parquet --data {data}", _NO_FOLDER),
            *(_refused(f"check --now {time} --data {{data}}", "Invalid value") for time in _TIMES),
        ),
        (
            _done("check --data {data}", ""),
            _done("check --topic reminders --data {data}", ""),
            Case("check --now 0 --second-look 0 --data {torn}", WRONG, "missing"),
        ),
    ),
    "snapshots drop": Cases(
        (
            *_snapshots("snapshots drop"),
            _refused("snapshots drop x --data {data}", "not a valid integer"),
            _refused("snapshots drop {bucket_id} --data {none}", _NO_FOLDER),
            _refused("snapshots drop {bucket_id} --topic orders --data {data}", "and not for an ID"),
            _refused("snapshots drop 5 --data {data}", "no snapshot has"),
        ),
        (
            _done("snapshots drop --data {data}", ""),
            _done("snapshots drop --dry-run --data {data}", ""),
            _done("snapshots drop {bucket_id} --yes --data {data}", "cursor"),
        ),
    ),
    "snapshots copy": Cases(
        (
            _refused("snapshots copy --data {data}", _MISSING),
            *_snapshots("snapshots copy --to {tmp}/copied"),
            _refused("snapshots copy --to '' --data {data}", "--to: the place of an index must be"),
            _refused("snapshots copy --to {data} --data {data}", "where the snapshots are now"),
            _refused("snapshots copy --to {tmp}/c --delete-source --data {data}", "needs --update-cursors"),
            _refused("snapshots copy --to {tmp}/c --update-cursors --topic orders --data {data}", "moves everything"),
            _refused("snapshots copy --to s3://bucket/ä --data {data}", "prefix must be words of letters"),
            _refused("snapshots copy --to ftp://u:hush@x/p --data {data}", "--to: the place of an index must be"),
            _refused("snapshots copy --to {data}/ledgers/x --data {data}", "which is the service's own"),
            _refused("snapshots copy --to python://no_such:thing --data {data}", "cannot be found"),
            _refused("snapshots copy --index {none} --to {tmp}/c --data {data}", "there are no snapshots in"),
            _refused(
                "snapshots copy --index '' --to {tmp}/c --data {data}",
                "--index: the place of an index must be",
            ),
            _refused("snapshots copy --index {tmp}/c --to {tmp}/c --data {data}", "are now"),
        ),
        (
            _done("snapshots copy --to {tmp}/copied --data {data}", ""),
            _done("snapshots copy --to {tmp}/moved --update-cursors --delete-source --data {data}", ""),
        ),
    ),
    "snapshots checkpoint": Cases(
        (
            _refused("snapshots checkpoint", _MISSING),
            _refused("snapshots checkpoint {tmp}/backup --data {none}", _NO_FOLDER),
            _refused("snapshots checkpoint {data}/snapshots/inside --data {data}", "the service's own"),
            _refused("snapshots checkpoint {data} --data {data}", "it exists already"),
            _refused(
                "snapshots checkpoint x --set bucketSnapshotStorage=s3 --set bucketSnapshotS3Bucket=bbb --data {data}",
                "only a RocksDB folder has checkpoints",
            ),
        ),
        (_done("snapshots checkpoint {tmp}/backup --data {data}", "backup"),),
    ),
    "snapshots export": Cases(
        (
            _refused("snapshots export", _MISSING),
            *_snapshots("snapshots export {tmp}/rows.parquet"),
            _refused("snapshots export {none}/rows.parquet --data {data}", _NO_FOLDER),
        ),
        (_done("snapshots export {tmp}/rows.parquet --data {data}", "rows.parquet"),),
    ),
    "ledger export": Cases(
        (
            _refused("ledger export", _MISSING),
            _refused("ledger export {data}", _MISSING),
            _refused("ledger export {none} {tmp}/out", _NO_LOG),
            _refused("ledger export {empty} {tmp}/out", _NO_LOG),
            _refused("ledger export {data} {tmp}/out --topic order", _NO_TOPIC),
            _refused("ledger export {data} {data}/ledgers/CURRENT", "CURRENT"),
        ),
        (_done("ledger export {data} {tmp}/log", ""), _done("ledger export {data} {tmp}/log --topic orders", "")),
    ),
    "ledger copy": Cases(
        (
            _refused("ledger copy {data}", _MISSING),
            _refused("ledger copy {none} {tmp}", _NO_LOG),
            _refused("ledger copy {empty} {tmp}", _NO_LOG),
            _refused("ledger copy {data} {torn}", "is not empty"),
            _refused("ledger copy s3://bucket/a s3://bucket/b", "must be a data folder"),
            _refused("ledger copy {data} s3://bucket", "names a bucket alone"),
            _refused("ledger copy {data} s3://bucket/a --cluster-name ''", "name of the cluster is empty"),
        ),
        (_done("ledger copy {data} {tmp}", "{tmp}"), _done("ledger copy {data} {tmp}/new", "{tmp}/new")),
    ),
    "ledger repair": Cases(
        (
            _refused("ledger repair --yes", _MISSING),
            _refused("ledger repair {none} --yes", _NO_LOG),
            _refused("ledger repair {empty} --yes", _NO_LOG),
            _refused("ledger repair {data}", "say --yes"),
            _refused("ledger repair {data} --yes --bundle west", "has no bundle west: there is 0x00000000_0xffffffff"),
        ),
        (_done("ledger repair {data} --yes", ""),),
    ),
    "pipeline rebuild": Cases(
        (
            *_selecting("pipeline rebuild"),
            *(_refused(f"pipeline rebuild {{data}} --now {time}", "Invalid value") for time in _TIMES),
            _refused("pipeline rebuild {data} --segment-seconds 9999999999999999999", "not in the range"),
            _refused("pipeline rebuild {data} --segment-indexes 0", "rows_max cannot be 0"),
            _refused("pipeline rebuild {data} --bucket-indexes 0", "not in the range"),
            _refused("pipeline rebuild {data} --log {none}", _NO_LOG),
            _refused("pipeline rebuild {data} --index ftp://x", "the place of an index must be a folder"),
        ),
        (
            _done("pipeline rebuild {data} --now 2026-01-01T00:00:00Z", ""),
            _done("pipeline rebuild {data} --now 0 --topic reminders --subscription 's2 ü'", ""),
        ),
        needs_spark=True,
    ),
    "pipeline forecast": Cases(
        (
            *_job("pipeline forecast"),
            _refused("pipeline forecast --of index {none}", "there are no snapshots in"),
            _refused("pipeline forecast {data} --topic order", _NO_TOPIC),
            _refused("pipeline forecast {data} --topic orders --topic order", _NO_TOPIC),
            _refused("pipeline forecast --of index {data} --topic order", _NO_TOPIC),
            _refused("pipeline forecast {data} --now 99999999999999999999", "Invalid value"),
        ),
        (
            _done("pipeline forecast {data} --topic orders --now 0 --out {tmp}/ahead", "ahead"),
            _done("pipeline forecast {data} --topic orders --topic reminders --now 0 --out {tmp}/both", "both"),
            _done("pipeline forecast --of index {data} --now 9223372036854775807 --out {tmp}/ahead", "ahead"),
        ),
        needs_spark=True,
    ),
    "pipeline cancel": Cases(
        (
            *_job("pipeline cancel", "--subscription billing --topic orders"),
            _refused("pipeline cancel {data} --subscription biling --key k", _NO_CURSOR),
            _refused("pipeline cancel {data} --subscription billing --topic order", _NO_TOPIC),
            _refused("pipeline cancel {data} --subscription billing", "say what to cancel"),
            _refused("pipeline cancel {data} --subscription billing --property x", "must be NAME=VALUE"),
            _refused("pipeline cancel {data} --subscription billing --positions {none}.csv", "there is no file"),
            *(
                _refused(f"pipeline cancel {{data}} --subscription billing --from {time}", "Invalid value")
                for time in _TIMES
            ),
        ),
        (
            _done("pipeline cancel {data} --subscription billing --positions {positions}", ""),
            Case("pipeline cancel {data} --subscription billing --positions {unknown_positions}", WRONG, ""),
            Case(
                "pipeline cancel {data} --subscription billing --property campaign=nosuch",
                WRONG,
                "Nothing matches",
            ),
            _done("pipeline cancel {data} --subscription 's2 ü' --topic reminders --from 0 --dry-run", ""),
        ),
        needs_spark=True,
    ),
    "pipeline ingest": Cases(
        (
            *_job("pipeline ingest", "{tmp} --subscription billing --checkpoint {tmp}/c"),
            _refused("pipeline ingest {data} {none} --subscription billing --checkpoint {tmp}/c", _NO_FOLDER),
            _refused("pipeline ingest {data} {tmp} --subscription biling --checkpoint {tmp}/c", _NO_CURSOR),
            _refused("pipeline ingest {data} {tmp} --subscription billing", _MISSING),
            _refused(
                "pipeline ingest {data} {tmp} --subscription billing --checkpoint c --files-per-batch 99999999999",
                "not in the range",
            ),
        ),
        (
            _done("pipeline ingest {data} {stream} --format csv --subscription billing --checkpoint {tmp}/c", ""),
            _done("pipeline ingest {data} {empty} --subscription 's2 ü' --checkpoint {tmp}/c2", ""),
        ),
        needs_spark=True,
    ),
    "pipeline merge": Cases(
        (
            *_selecting("pipeline merge", "--buckets 5"),
            _refused("pipeline merge {data}", _MISSING),
            _refused("pipeline merge {data} --buckets 0", "not in the range"),
            _refused("pipeline merge {data} --buckets 99999999999999", "not in the range"),
        ),
        (_done("pipeline merge {data} --buckets 1", ""), _done("pipeline merge {data} --buckets 9 --topic orders", "")),
        needs_spark=True,
    ),
}
