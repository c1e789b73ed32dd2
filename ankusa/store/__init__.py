"""RocksDB: keys, families, batches, bounded scans. Everything that knows the bytes of a key is here."""
