"""Beside the package: the demo, and a standalone Spark cluster for trying out."""
