"""Keys and certificates of one emulated control plane, which never leave its folder."""

from __future__ import annotations

import datetime
import ipaddress
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from emulator.machine.state import write_atomically

VALID_DAYS = 30

SERVING_DAYS = 3650
"""Lifetime of a webhook server's certificate: Kueue replaces one that expires within 90 days by one without this
machine's address (open-policy-agent/cert-controller, pkg/rotator/rotator.go, `lookaheadInterval`)."""


@dataclass(frozen=True)
class Authority:
    """The certificate authority that clients and the API server trust."""

    key: rsa.RSAPrivateKey
    certificate: x509.Certificate


_LOOPBACK = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))

_SIGNS = x509.KeyUsage(
    key_cert_sign=True,
    crl_sign=True,
    digital_signature=False,
    content_commitment=False,
    key_encipherment=False,
    data_encipherment=False,
    key_agreement=False,
    encipher_only=False,
    decipher_only=False,
)


def write_all(directory: Path) -> None:
    """Write `ca.crt`, `api-server.*`, `admin.*` (group system:masters) and the signing key of service accounts."""
    authority = _authority("oasis-emulator", [], VALID_DAYS)
    loopback = [x509.DNSName("localhost"), _LOOPBACK]
    _issue(directory, "api-server", authority, _name("kube-apiserver"), loopback)
    _write_key(directory / "service-accounts.key", _key())
    write_atomically(directory / "ca.crt", _pem(authority.certificate))
    _issue(directory, "admin", authority, _name("admin", "system:masters"), [])


def write_serving(directory: Path, authority_name: str, service: str) -> None:
    """Write `tls.crt` and `tls.key` of a webhook server on loopback, and `ca.crt` and `ca.key` of its own authority.

    Args:
        directory: where the files go.
        authority_name: name of the authority, also as a DNS name.
        service: DNS name of the Service that leads to the server in a real cluster.
    """
    authority = _authority(authority_name, [x509.DNSName(authority_name)], SERVING_DAYS)
    write_atomically(directory / "ca.crt", _pem(authority.certificate))
    _write_key(directory / "ca.key", authority.key)
    _issue(directory, "tls", authority, _name(service), [x509.DNSName(service), _LOOPBACK], SERVING_DAYS)


def _issue(
    directory: Path,
    file: str,
    authority: Authority,
    subject: x509.Name,
    names: list[x509.GeneralName],
    days: int = VALID_DAYS,
) -> None:
    key = _key()
    usage = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH])
    issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.key.public_key())
    builder = _builder(subject, authority.certificate.subject, key, days, names)
    builder = builder.add_extension(usage, critical=False).add_extension(issuer, critical=False)
    _write_key(directory / f"{file}.key", key)
    write_atomically(directory / f"{file}.crt", _pem(builder.sign(authority.key, hashes.SHA256())))


def _authority(name: str, names: list[x509.GeneralName], days: int) -> Authority:
    key, subject = _key(), _name(name)
    constraint = x509.BasicConstraints(ca=True, path_length=None)
    own = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    # From 3.13 on, Python rejects an authority without a usage and an identifier (ssl.VERIFY_X509_STRICT, RFC 5280).
    builder = _builder(subject, subject, key, days, names).add_extension(constraint, critical=True)
    builder = builder.add_extension(_SIGNS, critical=True).add_extension(own, critical=False)
    return Authority(key, builder.sign(key, hashes.SHA256()))


def _builder(
    subject: x509.Name, issuer: x509.Name, key: rsa.RSAPrivateKey, days: int, names: list[x509.GeneralName]
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(minutes=5))
        .not_valid_after(now + datetime.timedelta(days=days))
    )
    return builder.add_extension(x509.SubjectAlternativeName(names), critical=False) if names else builder


def _name(common: str, organization: str | None = None) -> x509.Name:
    parts = [x509.NameAttribute(NameOID.COMMON_NAME, common)]
    if organization:
        parts.append(x509.NameAttribute(NameOID.ORGANIZATION_NAME, organization))
    return x509.Name(parts)


def _key() -> rsa.RSAPrivateKey:
    return rsa.generate_private_key(public_exponent=65537, key_size=2048)


def _pem(certificate: x509.Certificate) -> str:
    return certificate.public_bytes(serialization.Encoding.PEM).decode()


def _write_key(file: Path, key: rsa.RSAPrivateKey) -> None:
    text = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
    )
    write_atomically(file, text.decode(), mode=0o600)
