"""Where containers come from and how they are watched: local processes, a fork server, Spark's executors."""
