"""One job's brain: epochs, routing, recovery and checkpoints as pure machines, and their thin shell."""
