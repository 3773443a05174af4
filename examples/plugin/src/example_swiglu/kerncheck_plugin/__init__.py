"""What kerncheck needs to judge example_swiglu: a description (kerncheck.toml) and code that its children import."""
