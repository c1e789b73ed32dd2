"""Logs as past releases recorded them, and what came of them: what is folded today must come to the same.

`python -m tests.golden.record NAME` makes one on the embedded host, `python -m tests.golden.record_kafka NAME` one on a
broker. One that is there is never made again: it stands for the stores and topics of whoever runs the release that
wrote it. A change that needs new ones adds them beside the old.
"""
