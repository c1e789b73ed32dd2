"""The admin API's answers out of a node's tables and parts, for every host."""
