"""A job as it runs: its pods, their logs and its outcome, read from the API server through kubectl."""
