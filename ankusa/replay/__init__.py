"""Replays: durable requests to re-send, run in the room that live traffic leaves (spec 05)."""
