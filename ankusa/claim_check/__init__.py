"""The claim check: large bodies stored once, sent by reference, fetched from the gateway (spec 03 "Claim check")."""
