"""The data plane: everything that talks to Spark."""
