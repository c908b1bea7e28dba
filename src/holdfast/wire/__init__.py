"""What crosses between processes: messages and their codec, who handles them, the calling side and the door."""
