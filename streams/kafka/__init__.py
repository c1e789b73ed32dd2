"""The Kafka host: topics that edges fill, and workers that fold them."""
