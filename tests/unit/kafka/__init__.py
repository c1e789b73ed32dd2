"""Tests of the Kafka host that need no broker."""
