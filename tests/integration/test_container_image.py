"""The container image, as far as a machine without containers can tell: its recipe is linted, and its steps are run.

The steps run in a folder that stands for the image's root, then what the image runs is run there, as its user where
that is possible. What a runtime does (users, volumes, published ports) is read from the recipe.
"""

import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from dockerfile_parse import DockerfileParser

from broker.configuration.config import BrokerConfig, load_config
from demo.process import free_ports

pytestmark = [pytest.mark.installation, pytest.mark.timeout(300)]

ROOT = Path(__file__).parents[2]
RECIPE = ROOT / "Containerfile"
IMAGE_FOLDERS = ("/opt/postdate", "/etc/postdate", "/var/lib/postdate", "/source")


class Step(NamedTuple):
    """An instruction of the recipe."""

    stage: int
    instruction: str
    value: str


def steps() -> list[Step]:
    with RECIPE.open("rb") as file:
        instructions: list[dict[str, Any]] = DockerfileParser(fileobj=file).structure
    found: list[Step] = []
    stage = -1
    for one in instructions:
        stage += one["instruction"] == "FROM"
        if one["instruction"] != "COMMENT":
            found.append(Step(stage, one["instruction"], one["value"]))
    return found


def final_value(instruction: str) -> str:
    """Return the value of the only such instruction of the image itself."""
    last = max(step.stage for step in steps())
    (value,) = [step.value for step in steps() if (step.stage, step.instruction) == (last, instruction)]
    return value


def identity_of_the_image() -> dict[str, Any]:
    """Return the user that the image runs as, as arguments of `subprocess`."""
    user, _, group = final_value("USER").partition(":")
    return {"user": int(user), "group": int(group), "extra_groups": []}


def interpreter_for(identity: dict[str, Any]) -> str | None:
    """Return a Python that a user can run: not the one of these tests, if that is in root's own folder."""
    for candidate in (sys.executable, "/usr/bin/python3"):
        program = "import ensurepip, venv, sys; sys.exit(sys.version_info < (3, 11))"
        try:
            if subprocess.run([candidate, "-c", program], check=False, cwd="/", **identity).returncode == 0:
                return candidate
        except OSError:
            continue
    return None


class Image:
    """A folder that stands for the root of the image."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.identity = identity_of_the_image() if os.geteuid() == 0 else {}
        python = interpreter_for(self.identity)
        if python is None:
            self.identity, python = {}, sys.executable
        self.python = python
        self.user_id = self.identity.get("user", os.geteuid())
        self.port, self.web_port = free_ports(2)

    def inside(self, text: str) -> str:
        """Write a text of the recipe with this folder's paths and with free ports."""
        for folder in IMAGE_FOLDERS:
            text = text.replace(folder, f"{self.root}{folder}")
        return text.replace(":8080/", f":{self.web_port}/")

    def words(self) -> list[str]:
        """Return what the image runs."""
        words = [*json.loads(final_value("ENTRYPOINT")), *json.loads(final_value("CMD"))]
        return [f"{self.root}/opt/postdate/bin/{words[0]}", *(self.inside(word) for word in words[1:])]

    def start(self, **settings: object) -> "subprocess.Popen[str]":
        """Run what the image runs, as its user if we may, with keys of `broker.conf` from the environment."""
        ports = {"brokerServicePort": self.port, "webServicePort": self.web_port}
        return subprocess.Popen(
            self.words(),
            env={"PATH": os.environ["PATH"]} | {key: str(value) for key, value in (ports | settings).items()},
            cwd=self.inside(final_value("WORKDIR")),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            **self.identity,
        )

    def is_healthy(self) -> bool:
        """Run the recipe's check."""
        words = json.loads(final_value("HEALTHCHECK").partition("CMD ")[2])
        command = [f"{self.root}/opt/postdate/bin/{words[0]}", *(self.inside(word) for word in words[1:])]
        return subprocess.run(command, capture_output=True, check=False, timeout=30).returncode == 0


@pytest.fixture(scope="module")
def image() -> Iterator[Image]:
    """The steps of the first stage, run: a virtual environment with the service, and its configuration."""
    # Not below pytest's folder, which other users may not enter.
    root = Path(tempfile.mkdtemp(prefix="postdate-image-"))
    root.chmod(0o755)
    try:
        built = Image(root)
        context = root / "source"
        ignored = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if not line.startswith("#")]
        shutil.copytree(ROOT, context, ignore=shutil.ignore_patterns(*(line.removeprefix("**/") for line in ignored)))
        for step in steps():
            if (step.stage, step.instruction) == (0, "RUN"):
                command = built.inside(step.value).replace("python -m venv", f"{built.python} -m venv", 1)
                # The image has no cache to use, this machine has.
                command = command.replace("--no-cache-dir", "--quiet --disable-pip-version-check")
                subprocess.run(["/bin/sh", "-ec", command], cwd=context, check=True, timeout=240)
        data = Path(built.inside("/var/lib/postdate"))
        data.mkdir(parents=True)
        if built.identity:
            os.chown(data, built.identity["user"], built.identity["group"])
        yield built
    finally:
        shutil.rmtree(root)


def test_the_recipe_is_clean_for_hadolint() -> None:
    hadolint = Path(sys.executable).with_name("hadolint")

    result = subprocess.run([hadolint, "--no-color", RECIPE], capture_output=True, text=True, check=False)

    assert (result.returncode, result.stdout + result.stderr) == (0, "")


def test_the_image_runs_as_nobody_special_and_keeps_its_data_in_a_volume() -> None:
    user, _, group = final_value("USER").partition(":")
    config = BrokerConfig()
    made = next(step.value for step in steps() if step.value.startswith("useradd"))

    assert int(user) > 0
    assert int(group) > 0
    assert f"--uid {user} " in made
    assert final_value("VOLUME") == final_value("WORKDIR")
    assert final_value("EXPOSE").split() == [str(config.service_port), str(config.web_port)]
    assert final_value("STOPSIGNAL") == "SIGTERM"


def test_nothing_in_the_recipe_lets_others_in_without_being_asked() -> None:
    assert not [step for step in steps() if "insecureBindAllowed" in step.value]


def test_the_images_configuration_is_the_commented_one_with_two_changes(image: Image) -> None:
    path = Path(image.inside("/etc/postdate/broker.conf"))

    config = load_config(path, environment={}, overrides=[])

    assert config.bind_address == "0.0.0.0"
    assert config.data_directory == Path(image.inside("/var/lib/postdate"))
    differing = set(path.read_text().splitlines()) - set((ROOT / "config/broker.conf").read_text().splitlines())
    assert {line.partition("=")[0] for line in differing} == {"bindAddress", "dataDirectory"}


def test_the_image_refuses_to_start_as_long_as_nobody_is_asked_who_he_is(image: Image) -> None:
    """Published ports reach other machines: without authentication the container ends with exit code 2, and why."""
    with image.start() as process:
        stdout, stderr = process.communicate(timeout=60)

    assert (process.returncode, stdout) == (2, "")
    assert "bindAddress" in stderr
    assert "insecureBindAllowed" in stderr
    assert list(Path(image.inside("/var/lib/postdate")).iterdir()) == []


def test_the_image_serves_is_healthy_and_stops_in_order(image: Image) -> None:
    """On this machine alone, as a test is nobody's service; the check fails before and after."""
    before = image.is_healthy()
    with image.start(bindAddress="127.0.0.1") as process:
        assert process.stdout is not None
        first_line = process.stdout.readline()
        during = image.is_healthy()
        process.terminate()
        _, stderr = process.communicate(timeout=60)
    after = image.is_healthy()

    assert first_line == "Postdate is ready.\n", stderr
    assert (before, during, after) == (False, True, False)
    assert process.returncode == 0, stderr
    assert {path.stat().st_uid for path in Path(image.inside("/var/lib/postdate")).rglob("*")} == {image.user_id}


def test_the_command_line_of_the_image_is_the_services() -> None:
    assert shlex.join([*json.loads(final_value("ENTRYPOINT")), *json.loads(final_value("CMD"))]) == (
        "postdate serve --config /etc/postdate/broker.conf"
    )
