"""What crosses between processes, and how: framing, the calling side, errors by their cause."""
