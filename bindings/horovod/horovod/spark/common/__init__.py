"""horovod.spark.common: what the estimators share."""
