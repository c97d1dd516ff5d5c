"""For those who watch a service with Prometheus: a dashboard for Grafana and rules for alerts, as files."""
