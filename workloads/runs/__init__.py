"""The folders of runs in a bucket: listed, verified, repaired and cleaned up."""
