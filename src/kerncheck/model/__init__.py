"""Plain data: what was asked (Job), what was seen (Snapshot), what was judged (Outcome)."""
