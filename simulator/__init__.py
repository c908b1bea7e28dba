"""The seeded simulator: one thread, virtual time, the machines that ship. ``docs/ring.md`` tells how to use it."""
