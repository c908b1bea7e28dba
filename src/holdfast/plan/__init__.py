"""A job's graph: stages, schemas, and what of it Spark runs."""
