"""The manifest for Kubernetes and the Compose file: they say what the image and the service say.

`test_container_image.py` runs the image with their settings. Their own schemas are asked where their tools are.
"""

import shutil
import subprocess
from pathlib import Path

import pytest
from dockerfile_parse import DockerfileParser

from postdate.broker.admin.endpoints import PORT_ENDPOINTS
from postdate.broker.cli.service_commands import warnings_at_start
from postdate.broker.configuration.config import BrokerConfig, load_config
from tests.helpers.manifests import COMPOSE, KUBERNETES, compose, kubernetes

ROOT = Path(__file__).parents[2]
WEB_PATHS = {one.path for one in PORT_ENDPOINTS}


def loaded(folder: Path) -> BrokerConfig:
    """Return the configuration of the ConfigMap, which the start refuses nothing of."""
    path = folder / "broker.conf"
    path.write_text(kubernetes()["ConfigMap"]["data"]["broker.conf"])
    config = load_config(path, environment={}, overrides=[])
    assert warnings_at_start(config) == []
    return config


def of_image() -> dict[str, str]:
    """Return the last value of each instruction of the recipe."""
    with (ROOT / "Containerfile").open("rb") as file:
        return {one["instruction"]: one["value"] for one in DockerfileParser(fileobj=file).structure}


def test_the_manifest_names_the_images_ports_user_volume_and_the_services_paths(tmp_path: Path) -> None:
    objects, image, config = kubernetes(), of_image(), loaded(tmp_path)
    pod = objects["StatefulSet"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    mounts = {one["name"]: one["mountPath"] for one in container["volumeMounts"]}
    ports = {one["name"]: one["containerPort"] for one in container["ports"]}
    security = pod["securityContext"]

    assert set(objects) == {"ConfigMap", "Service", "StatefulSet"}
    assert objects["StatefulSet"]["spec"]["replicas"] == 1
    assert f"{security['runAsUser']}:{security['runAsGroup']}" == image["USER"]
    assert security["fsGroup"] == security["runAsGroup"]
    assert mounts["data"] == image["VOLUME"] == str(config.data_directory)
    assert f'"{mounts["configuration"]}/broker.conf"' in image["CMD"]
    assert config.access.token_secret_key == f"file://{mounts['token']}/secret.key"
    assert ports == {"pulsar": config.service_port, "web": config.web_port}
    assert [str(one) for one in ports.values()] == image["EXPOSE"].split()
    assert {one["targetPort"]: one["port"] for one in objects["Service"]["spec"]["ports"]} == ports
    namespaced = f"{objects['Service']['metadata']['name']}.default.svc.cluster.local"
    assert config.advertised_address == namespaced
    probes = {name: one["httpGet"] for name, one in container.items() if name.endswith("Probe")}
    assert {name: one["path"] for name, one in probes.items()} == {
        "startupProbe": "/livez",
        "livenessProbe": "/livez",
        "readinessProbe": "/readyz",
    }
    assert {one["port"] for one in probes.values()} == {"web"}
    annotations = objects["StatefulSet"]["spec"]["template"]["metadata"]["annotations"]
    assert {*(one["path"] for one in probes.values()), annotations["prometheus.io/path"]} <= WEB_PATHS
    assert int(annotations["prometheus.io/port"]) == config.web_port
    # A stop takes as long as trackers wait for snapshots, at most.
    assert pod["terminationGracePeriodSeconds"] * 1_000 > config.tracker.close_timeout_ms


def test_the_compose_file_names_the_images_ports_and_volume_and_keys_that_there_are() -> None:
    service, image = compose(), of_image()
    config = load_config(None, environment=service["environment"], overrides=["bindAddress=0.0.0.0"])

    assert [one.split(":")[-1] for one in service["ports"]] == image["EXPOSE"].split()
    assert all(one.startswith("127.0.0.1:") for one in service["ports"])
    assert service["volumes"] == [f"data:{image['VOLUME']}"]
    assert (ROOT / "config" / service["build"]["context"] / service["build"]["dockerfile"]).is_file()
    assert f"http://127.0.0.1:{config.web_port}/readyz" in service["healthcheck"]["test"][-1]
    # Nobody but this machine gets in, so the start warns, and does not refuse.
    assert (len(warnings_at_start(config)), config.unread) == (1, {})
    assert config.advertised_address == "localhost"


@pytest.mark.parametrize(
    ("tool", "words"),
    [
        ("kubeconform", ["kubeconform", "-strict", KUBERNETES]),
        ("docker-compose", ["docker-compose", "-f", COMPOSE, "config", "--quiet"]),
    ],
)
def test_their_own_tools_take_them(tool: str, words: list[str | Path]) -> None:
    if shutil.which(tool) is None:
        pytest.skip(f"{tool} is missing")
    result = subprocess.run(words, capture_output=True, text=True, check=False)

    assert result.returncode == 0, result.stdout + result.stderr
