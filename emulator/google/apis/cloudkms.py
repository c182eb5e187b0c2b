"""Cloud KMS: who may use a key. The keys themselves are the user's; each one asked for is assumed to exist."""

from __future__ import annotations

from emulator.google import policies
from emulator.google.collection import Body, Call
from emulator.google.permissions import Testable


class CryptoKeys(Testable):
    """`projects/p/locations/l/keyRings/r/cryptoKeys/k`."""

    kind = "cloudkms/cryptoKey"

    def do_get(self, call: Call) -> Body:
        found = call.cloud.find(self.kind, call.name)
        state = found.body["state"] if found else "ENABLED"
        return {"name": call.name, "purpose": "ENCRYPT_DECRYPT", "primary": {"state": state}}

    def do_get_iam_policy(self, call: Call) -> Body:
        return policies.get(call.cloud, self.full_name(call))

    def do_set_iam_policy(self, call: Call) -> Body:
        return policies.put(call.cloud, self.full_name(call), call.body["policy"])


COLLECTIONS = {"cloudkms.projects.locations.keyRings.cryptoKeys": CryptoKeys()}
