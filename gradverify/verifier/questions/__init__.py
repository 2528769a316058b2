"""Questions about a verified call: what must leave its gradient as it is."""
