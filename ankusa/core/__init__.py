"""The pure heart: values in, values out. No clock, no randomness, no I/O, no logging, no asyncio."""
