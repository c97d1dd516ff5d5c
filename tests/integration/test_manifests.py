"""The manifest for Kubernetes and the Compose file: they say what the image and the service say.

`test_container_image.py` runs the image with their settings, and here a process has those of the manifest.
"""

import json
import os
import subprocess
import sys
import urllib.request
from dataclasses import fields
from pathlib import Path
from typing import Any

from dockerfile_parse import DockerfileParser

from postdate.broker.admin.endpoints import PORT_ENDPOINTS
from postdate.broker.cli.service_commands import warnings_at_start
from postdate.broker.configuration.config import BrokerConfig, load_config
from postdate.demo.process import free_ports
from snapshot_storage.s3.location import S3Location
from tests.helpers.manifests import KUBERNETES, KUBERNETES_ON_S3, compose, kubernetes

ROOT = Path(__file__).parents[2]
WEB_PATHS = {one.path for one in PORT_ENDPOINTS}


def loaded(folder: Path, manifest: Path = KUBERNETES, **environment: str) -> BrokerConfig:
    """Return the configuration of the ConfigMap, which the start refuses nothing of."""
    path = folder / "broker.conf"
    path.write_text(kubernetes(manifest)["ConfigMap"]["data"]["broker.conf"])
    config = load_config(path, environment=environment, overrides=[])
    assert warnings_at_start(config) == []
    return config


def pod() -> dict[str, Any]:
    found: dict[str, Any] = kubernetes()["StatefulSet"]["spec"]["template"]["spec"]
    return found


def of_image() -> dict[str, str]:
    """Return the last value of each instruction of the recipe."""
    with (ROOT / "Containerfile").open("rb") as file:
        return {one["instruction"]: one["value"] for one in DockerfileParser(fileobj=file).structure}


def test_the_manifest_names_the_images_ports_user_volume_and_the_services_paths(tmp_path: Path) -> None:
    objects, image, config = kubernetes(), of_image(), loaded(tmp_path)
    (container,) = pod()["containers"]
    mounts = {one["name"]: one["mountPath"] for one in container["volumeMounts"]}
    ports = {one["name"]: one["containerPort"] for one in container["ports"]}
    security = pod()["securityContext"]

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
    assert pod()["terminationGracePeriodSeconds"] * 1_000 > config.tracker.close_timeout_ms


def test_the_manifest_on_s3_is_the_other_one_with_pods_that_keep_nothing(tmp_path: Path) -> None:
    objects, of_one = kubernetes(KUBERNETES_ON_S3), pod()
    deployment = objects["Deployment"]["spec"]
    found = deployment["template"]["spec"]
    (container,), (before,) = found["containers"], of_one["containers"]
    given = {one["name"]: one["valueFrom"]["fieldRef"]["fieldPath"] for one in container["env"]}
    config = loaded(tmp_path, KUBERNETES_ON_S3, **dict.fromkeys(given, "10.0.0.7"))

    assert set(objects) == {"ConfigMap", "Service", "PodDisruptionBudget", "Deployment"}
    assert deployment["replicas"] == 3
    assert deployment["strategy"]["rollingUpdate"] == {"maxUnavailable": 1, "maxSurge": 0}
    assert config.data_directory == S3Location("BUCKET", "postdate")
    # Pods share one configuration, and look-ups have to tell them apart.
    assert given == {"advertisedAddress": "status.podIP"}
    assert config.advertised_address == "10.0.0.7"
    assert config.cluster_address == f"{objects['Service']['metadata']['name']}.default.svc.cluster.local"
    mounts = {one["name"]: one["mountPath"] for one in container["volumeMounts"]}
    volumes = {one["name"]: one for one in found["volumes"]}
    assert mounts["cache"] == str(config.object_storage.cache_directory)
    assert volumes.keys() == mounts.keys()
    assert "emptyDir" in volumes["cache"]
    labels = deployment["template"]["metadata"]["labels"]
    assert labels == deployment["selector"]["matchLabels"] == objects["Service"]["spec"]["selector"]
    assert labels == objects["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"]
    for name in ("image", "ports", "startupProbe", "livenessProbe", "readinessProbe", "securityContext"):
        assert container[name] == before[name], name
    for name in ("automountServiceAccountToken", "terminationGracePeriodSeconds"):
        assert found[name] == of_one[name], name
    assert found["securityContext"].items() <= of_one["securityContext"].items()
    own = {"data_directory", "object_storage", "advertised_address", "cluster_address", "places"}
    for one in fields(BrokerConfig):
        assert one.name in own or getattr(config, one.name) == getattr(loaded(tmp_path), one.name), one.name


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


def test_a_service_with_the_configuration_of_the_manifest_answers_the_probes(tmp_path: Path) -> None:
    """As a process: its folder, its secret and its ports alone are the test's. The kubelet names the pod's address."""
    port, web_port = free_ports(2)
    loaded(tmp_path)
    (tmp_path / "secret.key").write_bytes(os.urandom(32))
    settings = {"dataDirectory": tmp_path / "data", "tokenSecretKey": f"file://{tmp_path}/secret.key"}
    settings |= {"brokerServicePort": port, "webServicePort": web_port}
    words = ["--config", tmp_path / "broker.conf", *(f"--set={key}={value}" for key, value in settings.items())]
    with subprocess.Popen(
        [sys.executable, "-m", "postdate", "serve", *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        ready = process.stdout.readline()
        assert ready, process.communicate(timeout=60)
        paths = [
            one["httpGet"]["path"]
            for one in pod()["containers"][0].values()
            if isinstance(one, dict) and "httpGet" in one
        ]
        answers = []
        for path in paths:
            with urllib.request.urlopen(f"http://127.0.0.2:{web_port}{path}", timeout=10) as answer:
                answers.append((answer.status, answer.read()))
        process.terminate()
        stdout, stderr = process.communicate(timeout=60)

    # A collector of the pod's logs reads both.
    assert (json.loads(ready)["dataDirectory"], stdout) == (str(tmp_path / "data"), "")
    assert answers == [(200, b"ok")] * 3
    assert process.returncode == 0
    assert [json.loads(line)["message"] for line in stderr.splitlines()] == ["stopping", "stopped"]
