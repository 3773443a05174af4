"""Parent-side halves of the probes: what to run for a job, and the section that the answers make."""
