"""One file per kernel package: a declarative spec that the parent reads, and code that only children run."""
