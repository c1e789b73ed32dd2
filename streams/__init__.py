"""The log and who folds it: embedded in `local`, on Kafka in `kafka`; what both answer the API is in `operations`."""
