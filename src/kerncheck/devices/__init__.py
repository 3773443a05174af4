"""All that differs between running on a GPU and running in Triton's interpreter."""
