"""The embedded host: a log and its tables in one RocksDB, an engine process, edge processes over a Unix socket."""
