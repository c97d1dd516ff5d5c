"""The service's configuration: the broker's own keys, and those of the packages it wires together.

    broker.conf ──► environment ──► --set           (later ones win)
          └──────────────┴─────────────┴──► BrokerConfig(managed_ledger=…, tracker=…, dispatcher=…)

Every field that can be set names its key in `metadata["key"]`; where the file's unit is another than the field's,
`metadata["factor"]` (or `"scale"`) is what one of the file's is in ours. Everything here is built from that, so a
package adds a key by adding a field. Names and units are Pulsar's, defaults too unless the field says otherwise.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import Field, dataclass, field, fields, is_dataclass, replace
from pathlib import Path
from types import NoneType
from typing import Any, Final, NamedTuple, get_args, get_type_hints

from dispatcher.config import DispatcherConfig
from managed_ledger.config import ManagedLedgerConfig
from managed_ledger.positions.value_types import InvalidValueError
from postdate.broker.configuration.access import AccessConfig
from postdate.broker.configuration.object_storage import ObjectStorageConfig, snapshots_s3
from postdate.broker.configuration.sources import collect
from postdate.broker.configuration.text import ConfigError, Given, may_hold_password
from postdate.broker.configuration.tls_config import TlsConfig
from postdate.broker.hosts import is_host, is_wildcard
from postdate.broker.topics.limits import DeduplicationConfig, InactiveTopicsConfig, LimitsConfig
from snapshot_storage.rocksdb.config import RocksDBMemory
from snapshot_storage.s3.config import S3Config
from snapshot_storage.s3.location import S3Location, is_s3, s3_location
from tracker.config import FACTORY_CLASS_NAMES, TrackerConfig

__all__ = ["BrokerConfig", "ConfigError", "Setting", "load_config", "settings"]

WORKERS_MAX: Final = 256
PORT_MAX: Final = 65_535

_INT64_MAX: Final = 2**63 - 1
_INT32: Final = (-(2**31), 2**31 - 1)
"""Pulsar's range of intervals. The next turn of a job with a much longer one is beyond the last date there is."""
_WHOLE_NUMBER: Final = re.compile(r"[+-]?0*([0-9]+)")
_DIGITS_MAX: Final = 19


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerConfig:
    """The configuration of the service; what each key means is told in `config/broker.conf` alone."""

    bind_address: str = field(default="127.0.0.1", metadata={"key": "bindAddress", "is_host": True})
    is_insecure_bind_allowed: bool = field(default=False, metadata={"key": "insecureBindAllowed"})
    service_port: int | None = field(default=6650, metadata={"key": "brokerServicePort", "range": (1, 65535)})
    service_port_tls: int | None = field(default=None, metadata={"key": "brokerServicePortTls", "range": (1, 65535)})
    web_port: int | None = field(default=8080, metadata={"key": "webServicePort", "range": (1, 65535)})
    web_port_tls: int | None = field(default=None, metadata={"key": "webServicePortTls", "range": (1, 65535)})
    tls: TlsConfig = field(default_factory=TlsConfig)
    """The certificates of the ports with TLS."""

    advertised_address: str | None = field(
        default=None, metadata={"key": "advertisedAddress", "is_host": True, "is_named": True}
    )
    cluster_address: str | None = field(
        default=None, metadata={"key": "clusterAddress", "is_host": True, "is_named": True}
    )
    access: AccessConfig = field(default_factory=AccessConfig)
    """Authentication and authorization."""

    cluster_name: str = field(default="standalone", metadata={"key": "clusterName"})
    data_directory: Path | S3Location = field(default=Path("data"), metadata={"key": "dataDirectory"})
    bundle_count: int | None = field(default=None, metadata={"key": "numberOfBundles", "range": (1, 256)})
    """See `data_folder` for what needs a folder."""

    object_storage: ObjectStorageConfig = field(default_factory=ObjectStorageConfig)
    """How object storage is got at, where `data_directory` is there."""

    worker_count: int = field(default=1, metadata={"key": "numberOfWorkers", "range": (1, WORKERS_MAX)})
    bucket_snapshot_storage: str = field(
        default="rocksdb", metadata={"key": "bucketSnapshotStorage", "choices": ("rocksdb", "s3", "memory")}
    )
    s3: S3Config = field(default_factory=S3Config)
    """The keys of the snapshots' place on S3; `snapshots_s3` is what holds."""

    rocksdb: RocksDBMemory = field(default_factory=RocksDBMemory)
    """How much memory the folder takes, for `bucket_snapshot_storage` rocksdb."""

    message_size_max: int = field(
        default=5 * 2**20, metadata={"key": "maxMessageSize", "range": (1, 2**31 - 1 - 10 * 1024)}
    )
    publish_buffer_bytes_max: int = field(
        default=256 * 2**20,
        metadata={
            "key": "maxMessagePublishBufferSizeInMB",
            "factor": 2**20,
            "range": (2**20 * _INT32[0], 2**20 * _INT32[1]),
        },
    )
    keep_alive_interval_s: int = field(default=30, metadata={"key": "keepAliveIntervalSeconds", "range": _INT32})
    liveness_timeout_ms: int = field(
        default=5_000, metadata={"key": "connectionLivenessCheckTimeoutMillis", "range": (0, 3_600_000)}
    )
    ttl_ms: int = field(
        default=0, metadata={"key": "ttlDurationDefaultInSeconds", "factor": 1_000, "range": (0, _INT64_MAX)}
    )
    expiry_check_interval_s: int = field(
        default=5 * 60,
        metadata={
            "key": "messageExpiryCheckIntervalInMinutes",
            "factor": 60,
            "range": (60 * _INT32[0], 60 * _INT32[1]),
        },
    )
    retention_check_interval_s: int = field(
        default=120, metadata={"key": "retentionCheckIntervalInSeconds", "range": _INT32}
    )
    stats_interval_s: int = field(default=60, metadata={"key": "statsUpdateFrequencyInSecs", "range": _INT32})
    is_unsupported_ignored: bool = field(default=False, metadata={"key": "unsupportedConfigIgnored"})
    log_format: str = field(default="text", metadata={"key": "logFormat", "choices": ("text", "json")})
    trail_entries_max: int = field(default=1_000, metadata={"key": "trailMaxEntries", "range": (0, 100_000)})
    has_topic_metrics: bool = field(default=True, metadata={"key": "exposeTopicLevelMetricsInPrometheus"})
    has_consumer_metrics: bool = field(default=False, metadata={"key": "exposeConsumerLevelMetricsInPrometheus"})
    limits: LimitsConfig = field(default_factory=LimitsConfig)
    """How many connections, topics, subscriptions, producers and consumers there may be."""

    deduplication: DeduplicationConfig = field(default_factory=DeduplicationConfig)
    """Whether messages that a producer repeats are stored once."""

    inactive_topics: InactiveTopicsConfig = field(default_factory=InactiveTopicsConfig)
    """Whether unused topics are deleted, and after which time."""

    managed_ledger: ManagedLedgerConfig = field(default_factory=ManagedLedgerConfig)
    """How the log is cut into ledgers, cached and flushed."""

    tracker: TrackerConfig = field(default_factory=TrackerConfig)
    """How delayed messages are tracked."""

    dispatcher: DispatcherConfig = field(default_factory=DispatcherConfig)
    """How messages are given to consumers."""

    places: Mapping[str, Given] = field(default_factory=dict, compare=False, repr=False)
    """Where each key was given that was, for what turns out to be wrong only when it is used."""

    unread: Mapping[str, Given] = field(default_factory=dict, compare=False, repr=False)
    """The given keys that are not read; see `postdate.broker.configuration.unread_keys`."""

    def __post_init__(self) -> None:
        for one in fields(self):
            _check_limits(one, getattr(self, one.name))
        self._check_ports()
        self._check_place()
        if self.snapshot_storage == "s3" and not self.snapshots_s3.bucket:
            rule = "rocksdb or memory where bucketSnapshotS3Bucket is empty"
            raise InvalidValueError("bucket_snapshot_storage", rule)

    def refusal(self, key: str, reason: str) -> ConfigError:
        """Return the error that a key's value cannot be used: a file that it names cannot be read, for example."""
        setting = next(setting for setting in settings() if setting.key == key)
        return _error(setting, self.places.get(key) or Given(setting.value_in(self), "configuration"), reason)

    def _check_place(self) -> None:
        if not isinstance(self.data_directory, S3Location):
            return
        if self.worker_count > 1:
            rule = "1 where {data_directory} is on object storage: start several services on the prefix instead"
            raise InvalidValueError("worker_count", rule, value=self.worker_count)
        if not self.data_directory.prefix:
            raise InvalidValueError("data_directory", "a folder or s3://BUCKET/PREFIX, with a prefix of its own")
        try:
            self.object_storage.s3_config(self.data_directory)
        except InvalidValueError as error:
            rule = f"a folder or s3://BUCKET/PREFIX, and its {error.field} {error.rule_in({}, 1)}"
            raise InvalidValueError("data_directory", rule) from error

    @property
    def data_folder(self) -> Path:
        """The data folder, for what works on one alone.

        Raises:
            ConfigError: The data is on object storage.
        """
        if isinstance(self.data_directory, S3Location):
            advice = "`postdate ledger copy` copies a prefix to one"
            raise self.refusal("dataDirectory", f"must be a folder for this: {advice}")
        return self.data_directory

    @property
    def data_name(self) -> str:
        """The place of the data, for people."""
        data = self.data_directory
        return data.uri if isinstance(data, S3Location) else str(data.resolve())

    @property
    def local_folder(self) -> Path:
        """The folder whose disk fills as messages come: the data folder, or that of the local tables."""
        on_s3 = isinstance(self.data_directory, S3Location)
        return self.object_storage.cache_parent if on_s3 else self.data_folder

    @property
    def data_s3(self) -> S3Config:
        """How object storage is got at; with the bucket and the prefix of the data, if it is there."""
        return self.object_storage.s3_config(
            self.data_directory if isinstance(self.data_directory, S3Location) else None
        )

    def idle_keys(self) -> str | None:
        """Name the keys of object storage that were set and do nothing, in a sentence; None where there are none."""
        if isinstance(self.data_directory, S3Location):
            return None
        default, own = ObjectStorageConfig(), self.object_storage
        changed = [one for one in fields(own) if getattr(own, one.name) != getattr(default, one.name)]
        of_server = {one.name for one in fields(S3Config)}
        names = [one.metadata["key"] for one in changed if self.snapshot_storage != "s3" or one.name not in of_server]
        if not names:
            return None
        return f"{', '.join(names)}: without effect but on backups to S3, as dataDirectory is a folder"

    @property
    def snapshot_storage(self) -> str:
        """Where the snapshots are: `bucket_snapshot_storage`, and s3 instead of rocksdb for data that is there."""
        is_beside = self.bucket_snapshot_storage == "rocksdb" and isinstance(self.data_directory, S3Location)
        return "s3" if is_beside else self.bucket_snapshot_storage

    @property
    def snapshots_s3(self) -> S3Config:
        """The place of the snapshots on S3, for `snapshot_storage` s3; what its keys leave open is as for the data."""
        return snapshots_s3(self.s3, self.data_s3, is_data_on_s3=isinstance(self.data_directory, S3Location))

    def _check_ports(self) -> None:
        for plain, with_tls in (("service_port", "service_port_tls"), ("web_port", "web_port_tls")):
            if getattr(self, plain) is None and getattr(self, with_tls) is None:
                raise InvalidValueError(plain, f"a port where {{{with_tls}}} is empty")
            if getattr(self, with_tls) is not None and self.tls.certificate_path is None:
                raise InvalidValueError(with_tls, "empty where tlsCertificateFilePath and tlsKeyFilePath are")
        taken: dict[int, str] = {}
        for name in ("service_port", "service_port_tls", "web_port", "web_port_tls"):
            port = getattr(self, name)
            if port in taken:
                raise InvalidValueError(name, f"another port than {{{taken[port]}}}", value=port)
            if port is not None:
                taken[port] = name
        if self.worker_count > 1:
            if self.bundle_count is not None and self.bundle_count < self.worker_count:
                raise InvalidValueError("worker_count", "at most {bundle_count}", value=self.worker_count)
            self._check_ports_of_workers(taken)

    def _check_ports_of_workers(self, taken: dict[int, str]) -> None:
        """Refuse ports that leave the workers none: theirs are the next ones behind each port for clients."""
        workers = self.worker_count
        for name in ("service_port", "service_port_tls"):
            port = getattr(self, name)
            if port is None:
                continue
            if port + workers > PORT_MAX:
                rule = "a port with one behind it for each of {worker_count}"
                raise InvalidValueError(name, rule, value=port)
            for one, other in taken.items():
                if port < one <= port + workers:
                    those = f"{port + 1} to {port + workers}, behind {{{name}}}"
                    raise InvalidValueError(other, f"no port of {{worker_count}}: {those}", value=one)
            taken |= {port + 1 + number: name for number in range(workers)}

    @property
    def has_tls(self) -> bool:
        """Whether a port is for TLS."""
        return self.service_port_tls is not None or self.web_port_tls is not None


class Setting(NamedTuple):
    """One key: which field it sets, and how its text is read."""

    key: str
    section: str | None
    """The field of `BrokerConfig` that holds the package's dataclass, None for the broker's own."""
    field: Field[Any]
    hint: Any

    @property
    def type(self) -> Any:
        """The type that its text is converted to, where it has one."""
        return next(one for one in get_args(self.hint) if one is not NoneType) if self.is_optional else self.hint

    @property
    def is_optional(self) -> bool:
        """Whether an empty text means none; for others it means the default."""
        return NoneType in get_args(self.hint)

    @property
    def factor(self) -> int:
        """The value of one unit of the file in the field's unit."""
        factor: int = self.field.metadata.get("factor", self.field.metadata.get("scale", 1))
        return factor

    @property
    def is_secret(self) -> bool:
        """Whether its value must not be shown."""
        return bool(self.field.metadata.get("is_secret", False))

    def value_in(self, config: BrokerConfig) -> str:
        """Return the field's value as the file has it."""
        holder = config if self.section is None else getattr(config, self.section)
        value = getattr(holder, self.field.name)
        if value is None:
            return ""
        if isinstance(value, bool):
            return str(value).lower()
        if isinstance(value, S3Location):
            return value.uri
        if isinstance(value, tuple):
            return ",".join(value)
        return str(value // self.factor) if isinstance(value, int) else str(value)


def settings() -> list[Setting]:
    """List every key, in the order of the fields."""
    found: list[Setting] = []
    own_hints = get_type_hints(BrokerConfig)
    for own in fields(BrokerConfig):
        section_class = own_hints[own.name]
        if not is_dataclass(section_class):
            # Fields about the keys are no keys themselves.
            if "key" not in own.metadata:
                continue
            found.append(Setting(own.metadata["key"], None, own, section_class))
            continue
        hints = get_type_hints(section_class)
        found.extend(
            Setting(one.metadata["key"], own.name, one, hints[one.name])
            for one in fields(section_class)
            if "key" in one.metadata
        )
    return found


def load_config(path: Path | None, *, environment: Mapping[str, str], overrides: Sequence[str]) -> BrokerConfig:
    """Return the configuration: a file, over it the environment, over it the overrides.

    An empty value means the default, or none where there may be none. Keys that are not read here are kept in
    `unread`.

    Args:
        path: The file, or None for the built-in defaults.
        environment: `key=value` as in the file, also with `PULSAR_PREFIX_` before the key, which then wins.
        overrides: Texts `key=value`; the last of a key wins.

    Raises:
        ConfigError: A line or value cannot be accepted; the text names the place, the key and the allowed values.
    """
    known = {setting.key: setting for setting in settings()}
    everything = collect(path, environment=environment, overrides=overrides, read=known)
    given = {key: one for key, one in everything.items() if key in known}

    values: dict[str | None, dict[str, Any]] = {}
    for key, one in given.items():
        setting = known[key]
        if one.text or setting.is_optional:
            values.setdefault(setting.section, {})[setting.field.name] = _parse(setting, one) if one.text else None

    default = BrokerConfig()
    own = values.pop(None, {})
    own |= {"places": given, "unread": {key: one for key, one in everything.items() if key not in known}}
    for section, changes in values.items():
        assert section is not None
        own[section] = _build(getattr(default, section), changes, section, given)
    built: BrokerConfig = _build(default, own, None, given)
    return built


def _parse(setting: Setting, given: Given) -> Any:
    """Convert a text to the field's value, in the field's unit."""
    text = given.text
    if setting.key == "delayedDeliveryTrackerFactoryClassName":
        if text not in FACTORY_CLASS_NAMES:
            raise _error(setting, given, f"must be one of {', '.join(FACTORY_CLASS_NAMES)}")
        return FACTORY_CLASS_NAMES[text]
    if setting.type is bool:
        if text.lower() not in ("true", "false"):
            raise _error(setting, given, "must be true or false")
        return text.lower() == "true"
    if setting.type is int:
        number = _WHOLE_NUMBER.fullmatch(text)
        if number is None:
            raise _error(setting, given, "must be a whole number")
        # Longer numbers are not converted: Python refuses thousands of digits.
        if len(number[1]) > _DIGITS_MAX or abs(int(text)) > _INT64_MAX // setting.factor:
            most = _INT64_MAX // setting.factor
            raise _error(setting, given, f"must be from {-most} to {most}")
        return int(text) * setting.factor
    if any(character in text for character in "\0\r\n"):
        raise _error(setting, given, "must be text without NUL characters and line ends")
    if setting.key == "dataDirectory":
        return _place(setting, given)
    if setting.type is Path:
        return _expanded(setting, given)
    if setting.type == tuple[str, ...]:
        return tuple(part for part in (part.strip() for part in text.split(",")) if part)
    return text


def _place(setting: Setting, given: Given) -> Path | S3Location:
    if not is_s3(given.text):
        if "://" in given.text:
            raise _error(setting, given, "must be a folder or s3://BUCKET/PREFIX")
        return _expanded(setting, given)
    try:
        return s3_location(given.text)
    except ValueError as error:
        raise _error(setting, given, f"must be a folder or s3://BUCKET/PREFIX: {error}") from error


def _expanded(setting: Setting, given: Given) -> Path:
    try:
        return Path(given.text).expanduser()
    except RuntimeError as error:
        raise _error(setting, given, f"must be a path, but has no meaning: {error}") from error


def _build(default: Any, changes: dict[str, Any], section: str | None, given: Mapping[str, Given]) -> Any:
    """Apply changes to a dataclass; when it refuses them, name the key at fault.

    That is the key of the field that breaks a rule, or where that was not given, of the first other one in the rule.
    """
    try:
        return replace(default, **changes)
    except InvalidValueError as error:
        by_field = {setting.field.name: setting for setting in settings() if setting.section == section}
        broken = by_field[error.field]
        reason = f"must be {error.rule_in({name: one.key for name, one in by_field.items()}, broken.factor)}"
        blamed = next(by_field[name] for name in (error.field, *error.other_fields) if by_field[name].key in given)
        if blamed is not broken:
            value = error.value // broken.factor if isinstance(error.value, int) else error.value
            reason = f"{broken.key} {reason}, but is {value}"
        raise _error(blamed, given[blamed.key], reason) from error


def _error(setting: Setting, given: Given, reason: str) -> ConfigError:
    is_hidden = setting.is_secret or may_hold_password(given.text)
    # An option of the command line is part of the place.
    where = "--set" if is_hidden and given.where.startswith("--set") else given.where
    value = "(secret)" if is_hidden else given.text
    return ConfigError(reason, where=where, key=setting.key, value=value, line=given.line)


def _check_limits(one: Field[Any], value: Any) -> None:
    least, most = one.metadata.get("range", (None, None))
    if least is not None and value is not None and not least <= value <= most:
        raise InvalidValueError(one.name, "from {least} to {most}", value=value, least=least, most=most)
    if one.metadata.get("is_host", False) and value is not None and not is_host(value):
        raise InvalidValueError(one.name, "a host name or an address, without scheme and port", value=value)
    if one.metadata.get("is_named", False) and value is not None and is_wildcard(value):
        raise InvalidValueError(one.name, "one host that clients can connect to", value=value)
    choices = one.metadata.get("choices")
    if choices is not None and value not in choices:
        raise InvalidValueError(one.name, " or ".join(choices), value=value)
