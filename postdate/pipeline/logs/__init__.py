"""Logs as a job reads them: from a service's folder or an export, headers first. Without Spark."""
