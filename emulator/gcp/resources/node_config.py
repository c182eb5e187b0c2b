"""Configuration of a pool's nodes: converts between Pulumi's `nodeConfig` and the API's `NodeConfig`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from emulator.gcp.resources.google_client import Body

_ZEROS: dict[str, Body] = {
    "advancedMachineFeatures": {"enableNestedVirtualization": False, "threadsPerCore": 0},
    "ephemeralStorageLocalSsdConfig": {"dataCacheCount": 0, "localSsdCount": 0},
}
"""Parts that are read whole, even if they are empty in the answer."""

_READ_ONLY_PORT = "insecureKubeletReadonlyPortEnabled"


def sent(config: Mapping[str, Any]) -> Body:
    """The API's form of the inputs. Zeros are left out, as pulumi-gcp does."""
    left = ("guestAccelerators", "kubeletConfig", "loggingVariant")
    result: Body = {key: value for key, value in config.items() if key not in left and value not in (0, "", [])}
    if given := config.get("guestAccelerators"):
        result["accelerators"] = [
            {
                "acceleratorType": one["type"],
                "acceleratorCount": str(one["count"]),
                **{key: value for key, value in one.items() if key not in ("type", "count")},
            }
            for one in given
        ]
    if given := config.get("kubeletConfig"):
        result["kubeletConfig"] = {"cpuCfsQuota": True, **sent_kubelet(given)}
    variant = config.get("loggingVariant")
    result["loggingConfig"] = {"variantConfig": {"variant": variant} if variant else {}}
    return result


def sent_kubelet(given: Mapping[str, Any]) -> Body:
    """A kubelet's settings, one of which is a string in Pulumi and a boolean in the API."""
    return {key: value == "TRUE" if key == _READ_ONLY_PORT else value for key, value in given.items()}


def read(answer: Mapping[str, Any], given: Mapping[str, Any]) -> Body:
    """Pulumi's form of the API's answer, with only the taints that `given` has."""
    left = ("accelerators", "loggingConfig")
    result: Body = {key: value for key, value in answer.items() if key not in left}
    result["guestAccelerators"] = [
        {
            "type": one["acceleratorType"],
            "count": int(one["acceleratorCount"]),
            **{key: value for key, value in one.items() if not key.startswith("accelerator")},
        }
        for one in answer.get("accelerators", [])
    ]
    if "kubeletConfig" in answer:
        result["kubeletConfig"] = {**answer["kubeletConfig"], **read_port(answer["kubeletConfig"])}
    if variant := answer.get("loggingConfig", {}).get("variantConfig", {}).get("variant"):
        result["loggingVariant"] = variant
    result |= {key: {**zeros, **answer[key]} for key, zeros in _ZEROS.items() if key in answer}
    ours = {taint["key"] for taint in given.get("taints", [])}
    result["effectiveTaints"] = answer.get("taints", [])
    result["taints"] = [taint for taint in answer.get("taints", []) if taint["key"] in ours]
    return result


def read_port(kubelet: Mapping[str, Any]) -> Body:
    """Pulumi's string for whether the kubelet's port without credentials is open."""
    return {_READ_ONLY_PORT: str(kubelet.get(_READ_ONLY_PORT, False)).upper()}


def with_zeros(answer: Any, given: Any) -> Any:
    """An answer with the given zeros restored, which the API's JSON leaves out, and with the numbers that it writes as
    text."""
    if isinstance(given, Mapping) and isinstance(answer, Mapping):
        whole = dict(answer)
        for key, value in given.items():
            if key in whole:
                whole[key] = with_zeros(whole[key], value)
            elif isinstance(value, (bool, int, str)):
                whole[key] = type(value)()
        return whole
    if isinstance(given, list) and isinstance(answer, list) and len(given) == len(answer):
        return [with_zeros(one, other) for one, other in zip(answer, given, strict=True)]
    if isinstance(given, int) and isinstance(answer, str) and answer.isdigit():
        return int(answer)
    return answer
