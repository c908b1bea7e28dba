"""What a user writes: Job, Stream, aggregates, Run."""

from holdfast.spark.compat import refuse_unknown

refuse_unknown()  # before anything asks PySpark for what an older one does not have
