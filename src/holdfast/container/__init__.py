"""The state process: Flight service, staging, apply, outputs."""
