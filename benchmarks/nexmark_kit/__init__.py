"""Nexmark: its events, the exact result of each query in batch, and Spark streaming's way to run them."""
