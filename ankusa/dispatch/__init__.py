"""The dispatch pipeline: the runner around the core. Scan, claim, slots, attempts, outcomes."""
