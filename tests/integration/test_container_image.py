"""The container image: its recipe is linted and built, and its command is run as a container runs it.

Buildah builds the recipe as it stands, step by step. The base image has the name that the recipe asks for and is made
of Debian's packages, as no registry of images is asked. The working container is a folder that the process has as its
root (`--isolation chroot`), with the image's user, environment, working directory and volume; it shares the network of
this machine, so published ports are left out.
"""

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from dockerfile_parse import DockerfileParser

from postdate.broker.configuration.config import BrokerConfig, load_config
from postdate.demo.process import free_ports
from tests.helpers.debian import PYTHON_VERSION, debian_tar, need_tools, pip_configuration
from tests.helpers.manifests import compose, kubernetes
from tests.helpers.wheels import downloaded_wheels

pytestmark = [pytest.mark.installation, pytest.mark.timeout(600)]

ROOT = Path(__file__).parents[2]
RECIPE = ROOT / "Containerfile"
AUTHENTICATION = {
    "authenticationEnabled": "true",
    "authenticationProviders": "org.apache.pulsar.broker.authentication.AuthenticationProviderToken",
    "tokenSecretKey": "file:///run/secrets/token",
}
"""The settings of the recipe's first comment."""


def base_name() -> str:
    """Return the image that every stage of the recipe begins with."""
    with RECIPE.open("rb") as file:
        structure: list[dict[str, Any]] = DockerfileParser(fileobj=file).structure
    (name,) = {one["value"].partition(" AS ")[0] for one in structure if one["instruction"] == "FROM"}
    return str(name)


class Image:
    """The image as Buildah has built it, in a storage of its own."""

    name = "postdate"

    def __init__(self, folder: Path, wheels: Path) -> None:
        self._folder = folder
        self._wheels = wheels
        self.port, self.web_port = free_ports(2)
        self.data = folder / "data"

    def buildah(self, *words: object, **options: Any) -> subprocess.CompletedProcess[str]:
        options = {"check": True, "timeout": 300} | options
        return subprocess.run(self._command(*words), capture_output=True, text=True, **options)

    def _command(self, *words: object) -> list[str]:
        storage = ["--storage-driver", "vfs", "--root", self._folder / "storage", "--runroot", self._folder / "run"]
        return [str(word) for word in ["buildah", *storage, *words]]

    def build(self) -> None:
        """Run every step of the recipe, on a base of Debian's packages."""
        base = self.buildah("from", "scratch").stdout.strip()
        self.buildah("add", base, debian_tar(), "/")
        self.buildah("commit", base, base_name())
        configuration = self._folder / "pip.conf"
        configuration.write_text(pip_configuration(Path("/wheels")))
        mounts = ["--volume", f"{self._wheels}:/wheels:ro", "--volume", f"{configuration}:/etc/pip.conf:ro"]
        how = ["--format", "docker", "--isolation", "chroot", "--pull-never"]
        built = self.buildah("build", *how, *mounts, "--tag", self.name, ROOT, check=False)
        assert built.returncode == 0, built.stdout + built.stderr
        self.container = self.buildah("from", "--pull-never", self.name).stdout.strip()
        # Each run mounts the volume of its test. Buildah would now and then mount an empty one of its own over it.
        self.buildah("config", *(f"--volume={volume}-" for volume in self.configuration["Volumes"]), self.container)

    @property
    def configuration(self) -> dict[str, Any]:
        """The settings of the image that a runtime reads: user, volumes, ports, entry point, health check."""
        inspected = json.loads(self.buildah("inspect", "--type", "image", self.name).stdout)
        return dict(inspected["Docker"]["config"])

    def command_of(self, words: list[str], settings: dict[str, str], *mounts: str) -> list[str]:
        """Return the command that runs some words in the container, with a volume for its data."""
        volume = next(iter(self.configuration["Volumes"]))
        options = [f"--env={key}={value}" for key, value in settings.items()]
        options += [f"--volume={mount}" for mount in (f"{self.data}:{volume}", *mounts)]
        return self._command("run", "--isolation", "chroot", *options, self.container, "--", *words)

    def start(self, *mounts: str, **settings: str) -> "subprocess.Popen[str]":
        """Run what the image runs, with keys of `broker.conf` in the environment."""
        ports = {"brokerServicePort": str(self.port), "webServicePort": str(self.web_port)}
        words = [*self.configuration["Entrypoint"], *self.configuration["Cmd"]]
        command = self.command_of(words, ports | settings, *mounts)
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def is_healthy(self) -> bool:
        """Run the image's check in the container, at the port of this test."""
        kind, *words = self.configuration["Healthcheck"]["Test"]
        assert kind == "CMD"
        words = [word.replace(":8080/", f":{self.web_port}/") for word in words]
        return subprocess.run(self.command_of(words, {}), capture_output=True, check=False, timeout=60).returncode == 0

    def stop(self) -> None:
        """Send the image's stop signal to the process that `/health` names, as a runtime does."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.web_port}/health", timeout=10) as answer:
            os.kill(json.load(answer)["pid"], signal.Signals[self.configuration["StopSignal"]])


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Image]:
    need_tools("buildah")
    # Not below pytest's folder, which other users may not enter.
    folder = Path(tempfile.mkdtemp(prefix="postdate-image-"))
    folder.chmod(0o755)
    image = Image(folder, downloaded_wheels(tmp_path_factory, "service,client,s3", python_version=PYTHON_VERSION))
    try:
        image.build()
        yield image
    finally:
        image.buildah("rm", "--all", check=False)
        shutil.rmtree(folder)


@pytest.fixture(autouse=True)
def _empty_volume(request: pytest.FixtureRequest) -> None:
    """Each test has a volume of its own, which belongs to the image's user, as runtimes see to."""
    if "image" in request.fixturenames:
        image: Image = request.getfixturevalue("image")
        shutil.rmtree(image.data, ignore_errors=True)
        image.data.mkdir()
        os.chown(image.data, *owner_of(image))


def owner_of(image: Image) -> tuple[int, int]:
    user, _, group = image.configuration["User"].partition(":")
    return int(user), int(group)


def test_the_recipe_is_clean_for_hadolint() -> None:
    hadolint = Path(sys.executable).with_name("hadolint")

    result = subprocess.run([hadolint, "--no-color", RECIPE], capture_output=True, text=True, check=False)

    assert (result.returncode, result.stdout + result.stderr) == (0, "")


def test_nothing_in_the_recipe_lets_others_in_without_being_asked() -> None:
    instructions = [line for line in RECIPE.read_text().splitlines() if not line.startswith("#")]

    assert not [line for line in instructions if "insecureBindAllowed" in line]


def test_the_image_has_an_ordinary_user_a_volume_and_a_health_check(image: Image) -> None:
    configuration, config = image.configuration, BrokerConfig()

    assert min(owner_of(image)) > 0
    assert list(configuration["Volumes"]) == [configuration["WorkingDir"]]
    assert {*configuration["ExposedPorts"]} == {f"{config.service_port}/tcp", f"{config.web_port}/tcp"}
    assert configuration["StopSignal"] == "SIGTERM"
    assert configuration["Healthcheck"]["Test"][0] == "CMD"
    assert shlex.join([*configuration["Entrypoint"], *configuration["Cmd"]]) == (
        "postdate serve --config /etc/postdate/broker.conf"
    )


def test_the_images_configuration_is_the_commented_one_with_two_changes(image: Image, tmp_path: Path) -> None:
    path = tmp_path / "broker.conf"
    path.write_text(subprocess.check_output(image.command_of(["cat", "/etc/postdate/broker.conf"], {}), text=True))

    config = load_config(path, environment={}, overrides=[])

    assert config.bind_address == "0.0.0.0"
    assert config.data_directory == Path("/var/lib/postdate")
    differing = set(path.read_text().splitlines()) - set((ROOT / "config/broker.conf").read_text().splitlines())
    assert {line.partition("=")[0] for line in differing} == {"bindAddress", "dataDirectory"}


def test_the_image_refuses_to_start_without_authentication(image: Image) -> None:
    """Published ports reach other machines: the container ends with exit code 2, names the keys, and writes nothing."""
    with image.start() as process:
        stdout, stderr = process.communicate(timeout=60)

    assert (exit_code_of(stderr), stdout) == (2, "")
    assert "bindAddress" in stderr
    assert "insecureBindAllowed" in stderr
    assert list(image.data.iterdir()) == []


def exit_code_of(stderr: str) -> int:
    """Return the exit code of the process in the container: Buildah's own is 1 for every other than 0."""
    # Each process of Buildah's says the same.
    (line,) = {line for line in stderr.splitlines() if line.startswith("subprocess exited with status ")}
    return int(line.rpartition(" ")[2])


@pytest.mark.parametrize(
    "settings",
    [{"bindAddress": "127.0.0.1"}, AUTHENTICATION, compose()["environment"]],
    ids=["loopback", "tokens", "compose"],
)
def test_the_image_serves_is_healthy_and_stops_in_order(settings: dict[str, str], image: Image, tmp_path: Path) -> None:
    """The check fails before the start and after the end; all files of the volume belong to the image's user."""
    secret = tmp_path / "secret.key"
    secret.write_bytes(os.urandom(64))
    secret.chmod(0o400)
    os.chown(secret, *owner_of(image))
    before = image.is_healthy()
    with image.start(f"{secret}:/run/secrets/token:ro", **settings) as process:
        assert process.stdout is not None
        first_line = process.stdout.readline()
        assert first_line == "Postdate is ready.\n", process.communicate(timeout=60)
        during = image.is_healthy()
        image.stop()
        stdout, stderr = process.communicate(timeout=60)
    after = image.is_healthy()

    assert (before, during, after) == (False, True, False)
    assert process.returncode == 0, stderr
    files = list(image.data.rglob("*"))
    assert files
    assert {path.stat().st_uid for path in files} == {owner_of(image)[0]}
    # The image has no client, so it offers no command that would need one.
    assert "postdate demo" not in stdout


def test_the_image_is_ready_with_the_configuration_of_the_manifest_for_kubernetes(image: Image, tmp_path: Path) -> None:
    """Its files are mounted where the manifest mounts them; the ports alone are this test's."""
    (tmp_path / "broker.conf").write_text(kubernetes()["ConfigMap"]["data"]["broker.conf"])
    (tmp_path / "secret.key").write_bytes(os.urandom(64))
    mounts = [f"{tmp_path}/broker.conf:/etc/postdate/broker.conf:ro"]
    mounts += [f"{tmp_path}/secret.key:/run/secrets/postdate/secret.key:ro"]
    for path in (tmp_path / "broker.conf", tmp_path / "secret.key"):
        os.chown(path, *owner_of(image))
    with image.start(*mounts) as process:
        assert process.stdout is not None
        first_line = process.stdout.readline()
        assert first_line, process.communicate(timeout=60)
        with urllib.request.urlopen(f"http://127.0.0.1:{image.web_port}/readyz", timeout=10) as answer:
            ready = answer.read()
        image.stop()
        _, stderr = process.communicate(timeout=60)

    assert (ready, process.returncode) == (b"ok", 0), stderr
    assert json.loads(first_line)["dataDirectory"] == "/var/lib/postdate"


def test_a_secret_that_the_images_user_cannot_read_is_named(image: Image, tmp_path: Path) -> None:
    secret = tmp_path / "secret.key"
    secret.write_bytes(os.urandom(64))
    secret.chmod(0o600)

    with image.start(f"{secret}:/run/secrets/token:ro", **AUTHENTICATION) as process:
        _, stderr = process.communicate(timeout=60)

    assert exit_code_of(stderr) == 2
    assert "/run/secrets/token" in stderr
