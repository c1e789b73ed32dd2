"""`ankusa demo`: a real node, a real sink that can be told to fail, and a story told with them (see `story.py`).

Nothing of a node imports it.
"""
