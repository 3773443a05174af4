"""Code that runs inside the judged interpreter: standard library only, plus what that environment itself brings."""
