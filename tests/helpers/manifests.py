"""The manifests for Kubernetes and the Compose file, as objects."""

from pathlib import Path
from typing import Any, Final

import yaml

ROOT = Path(__file__).parents[2]
KUBERNETES: Final = ROOT / "config/kubernetes/postdate.yaml"
KUBERNETES_ON_S3: Final = KUBERNETES.with_name("postdate-on-s3.yaml")
COMPOSE: Final = ROOT / "config/compose.yaml"


def kubernetes(manifest: Path = KUBERNETES) -> dict[str, dict[str, Any]]:
    """Return the objects of a manifest, by kind."""
    return {one["kind"]: one for one in yaml.safe_load_all(manifest.read_text())}


def compose() -> dict[str, Any]:
    """Return the service of the Compose file."""
    found: dict[str, Any] = yaml.safe_load(COMPOSE.read_text())["services"]["postdate"]
    return found
