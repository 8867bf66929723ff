"""Writes a run as a manifest for Kubernetes; nothing is applied."""
