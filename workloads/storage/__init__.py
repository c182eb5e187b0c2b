"""Folders on a disk or in a bucket, behind one interface."""
