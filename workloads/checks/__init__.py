"""What the doctor looks at: software, hardware, access. Each check returns what it found or raises one of `finding`."""
