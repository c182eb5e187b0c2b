"""Pulumi's resource types as clients of Google's REST APIs, as pulumi-gcp is one."""
