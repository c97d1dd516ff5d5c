"""Start and stop a real Apache Pulsar, to ask it how a broker behaves or to measure against it.

A standalone Pulsar is one Java process: the broker with a bookie and a metadata store in local folders. Its jars
come from Maven once and are kept in the user's cache folder, so later starts take a few seconds. Postdate needs none
of this: it is the judge of its tests and the peer of its benchmarks.

    python tests/helpers/services/real_pulsar.py FOLDER [key=value ...]    run one until Ctrl-C

Needs Java 17 or later and Maven. Left out on purpose: TLS, geo-replication, functions.
"""

import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path

from postdate.demo.process import ProcessStartError, free_ports, wait_until

PULSAR_VERSION = "4.2.4"

# Importing Pulsar's own pom is what keeps the versions of some 330 jars from clashing.
_POM = f"""<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>postdate.judge</groupId><artifactId>real-pulsar</artifactId><version>1</version>
  <dependencyManagement><dependencies><dependency>
    <groupId>org.apache.pulsar</groupId><artifactId>pulsar</artifactId><version>{PULSAR_VERSION}</version>
    <type>pom</type><scope>import</scope>
  </dependency></dependencies></dependencyManagement>
  <dependencies><dependency>
    <groupId>org.apache.pulsar</groupId><artifactId>pulsar-broker</artifactId><version>{PULSAR_VERSION}</version>
  </dependency></dependencies>
</project>
"""

_LOGGING = """<Configuration status="ERROR">
  <Appenders><Console name="console"><PatternLayout pattern="%d %p %c{1} %m%n%ex{5}"/></Console></Appenders>
  <Loggers><Root level="INFO"><AppenderRef ref="console"/></Root></Loggers>
</Configuration>
"""

OPENED_PACKAGES = (
    "java.base/java.lang",
    "java.base/java.util",
    "java.base/java.nio",
    "java.base/sun.net",
    "java.base/jdk.internal.misc",
    "java.base/jdk.internal.platform",
    "java.management/sun.management",
)

# One bookie on this machine, the bucket tracker, and times kept as strictly as Postdate keeps them.
_SETTINGS = {
    "clusterName": "standalone",
    "bindAddress": "127.0.0.1",
    "advertisedAddress": "127.0.0.1",
    "allowLoopback": "true",
    "managedLedgerDefaultEnsembleSize": "1",
    "managedLedgerDefaultWriteQuorum": "1",
    "managedLedgerDefaultAckQuorum": "1",
    "managedLedgerMinLedgerRolloverTimeMinutes": "0",
    "delayedDeliveryTrackerFactoryClassName": ("org.apache.pulsar.broker.delayed.BucketDelayedDeliveryTrackerFactory"),
    "isDelayedDeliveryDeliverAtTimeStrict": "true",
    "delayedDeliveryTickTimeMillis": "100",
    # The bookie's own default is exactly the largest message: an entry of that size would break its connection.
    "nettyMaxFrameSizeBytes": str(5 * 2**20 + 10 * 2**10),
}


def missing_tools() -> list[str]:
    """Name the programs a real Pulsar needs and this machine lacks."""
    return [tool for tool in ("java", "mvn") if shutil.which(tool) is None]


def fetch_jars() -> Path:
    """Return the folder with Pulsar's jars, fetching them with Maven the first time."""
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "real-pulsar" / PULSAR_VERSION
    ready = cache / ".ready"
    if not ready.exists():
        cache.mkdir(parents=True, exist_ok=True)
        pom = cache / "pom.xml"
        pom.write_text(_POM)
        goal = ["dependency:copy-dependencies", "-DincludeScope=runtime", f"-DoutputDirectory={cache / 'lib'}"]
        subprocess.run(["mvn", "-q", "-B", "-Dstyle.color=never", "-f", str(pom), *goal], check=True)
        ready.touch()
    return cache / "lib"


class RealPulsar:
    """One standalone Pulsar in a folder, which keeps its data across `kill` and `start`."""

    def __init__(self, folder: Path, settings: Mapping[str, str] | None = None) -> None:
        self.folder = folder.resolve()
        self._settings = dict(settings or {})
        port, web_port, self._bookie_port = free_ports(3)
        self.port = int(self._settings.get("brokerServicePort", port))
        self.web_port = int(self._settings.get("webServicePort", web_port))
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """Where a Pulsar client connects."""
        return f"pulsar://127.0.0.1:{self.port}"

    @property
    def web_url(self) -> str:
        """Where the admin interface answers."""
        return f"http://127.0.0.1:{self.web_port}"

    @property
    def pid(self) -> int:
        """The process id of the running Java process."""
        assert self._process is not None
        return self._process.pid

    def start(self, *, timeout_s: float = 90.0, wait: bool = True) -> None:
        """Start the process and, unless told otherwise, wait until it serves topics."""
        jars = fetch_jars()
        self.folder.mkdir(parents=True, exist_ok=True)
        ports = {"brokerServicePort": str(self.port), "webServicePort": str(self.web_port)}
        settings = _SETTINGS | ports | self._settings
        (self.folder / "standalone.conf").write_text("".join(f"{k}={v}\n" for k, v in settings.items()))
        (self.folder / "log4j2.xml").write_text(_LOGGING)
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                self._command(jars), cwd=self.folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        if wait:
            self.wait_until_ready(timeout_s=timeout_s)

    def wait_until_ready(self, *, timeout_s: float = 90.0) -> None:
        """Wait until the default namespace exists, which is the last thing a standalone creates."""
        try:
            wait_until(self._is_ready, timeout_s=timeout_s, interval_s=0.1)
        except TimeoutError as error:
            self.stop()
            raise ProcessStartError(f"Pulsar did not get ready; see {self.folder / 'log'}") from error

    def kill(self) -> None:
        """End the process with SIGKILL; its data stays."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """End the process, politely first."""
        self._end(signal.SIGTERM)

    def _command(self, jars: Path) -> list[str]:
        opens = [word for package in OPENED_PACKAGES for word in ("--add-opens", f"{package}=ALL-UNNAMED")]
        folders = ["--metadata-dir", "metadata", "--bookkeeper-dir", "bookkeeper"]
        starter = ["org.apache.pulsar.PulsarStandaloneStarter", "-c", "standalone.conf", "-nfw", "-nss"]
        return [
            *("java", "-Xmx2g", *opens, "-Dlog4j2.configurationFile=log4j2.xml", "-cp", f"{jars}/*"),
            *(*starter, *folders, "--bookkeeper-port", str(self._bookie_port)),
        ]

    def _is_ready(self) -> bool:
        assert self._process is not None
        if self._process.poll() is not None:
            raise ProcessStartError(f"Pulsar ended at start; see {self.folder / 'log'}")
        request = urllib.request.Request(f"{self.web_url}/admin/v2/namespaces/public")
        # A broker that asks for tokens has one of its own, for itself.
        own = self._settings.get("brokerClientAuthenticationParameters", "")
        if own.startswith("token:"):
            request.add_header("Authorization", f"Bearer {own.removeprefix('token:')}")
        try:
            with urllib.request.urlopen(request, timeout=2) as reply:
                return b"public/default" in reply.read()
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            return False

    def _end(self, how: signal.Signals) -> None:
        if self._process is None:
            return
        self._process.send_signal(how)
        try:
            self._process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = None


def main(arguments: list[str]) -> int:
    """Run one Pulsar until Ctrl-C."""
    if not arguments:
        sys.stderr.write(__doc__ or "")
        return 2
    service = RealPulsar(Path(arguments[0]), dict(word.split("=", 1) for word in arguments[1:]))
    service.start()
    sys.stdout.write(f"{service.url} {service.web_url} pid {service.pid}\n")
    sys.stdout.flush()
    try:
        while True:
            time.sleep(3600)
    except KeyboardInterrupt:
        service.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
