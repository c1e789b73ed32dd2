"""What crosses a boundary: config, records, messages, API models. Frozen values and codecs; no behaviour."""
