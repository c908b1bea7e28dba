"""The ring: ids, leaf sets, prefix routing and groups, as pure machines. ``docs/ring.md`` tells how it works."""
