"""Pulumi's `gcp` provider on the emulated Google Cloud."""
