"""Files for monitoring with Prometheus: a dashboard for Grafana and rules for alerts."""
