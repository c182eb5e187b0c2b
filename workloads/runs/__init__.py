"""The folders of runs in a bucket: listed, verified, mended and tidied."""
