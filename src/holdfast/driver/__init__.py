"""The driver's side of a run: it starts a job, performs what the master asks for, and tells people about it."""
