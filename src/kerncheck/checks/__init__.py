"""The checks, one module per family. Checks judge and never touch the machine."""
