"""The durable side: the store, segments, prepare and commit files, checkpoint packs."""
