"""The dashboard and the alert rules that Postdate comes with, parsed."""

import json
from importlib.resources import files

import yaml

MONITORING = files("postdate.broker.monitoring")
DASHBOARD = json.loads((MONITORING / "grafana_dashboard.json").read_text())
ALERTS = yaml.safe_load((MONITORING / "prometheus_alerts.yml").read_text())["groups"][0]["rules"]
PANELS = [one for one in DASHBOARD["panels"] if one["type"] != "row"]
