"""Aggregates: what each keeps of a key's rows, and what stages that have some share."""
