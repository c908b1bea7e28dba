"""What a user writes: Job, Stream, aggregates, Run."""
