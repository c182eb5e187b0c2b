"""Pulumi's resource types as clients of Google's REST APIs, like those of pulumi-gcp."""
