"""The log and who folds it: the embedded host in `local`, the Kafka host later beside it."""
