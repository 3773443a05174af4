"""The only place that touches private parts of Triton, fla and transformers, with version guards."""
