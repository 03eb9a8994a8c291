"""An authority, a server's certificate and a SuperNode's key, in the formats of TLS and Flower.

The certificates pass the strict checks of Python 3.13 and later.
"""

from __future__ import annotations

import datetime
import ipaddress
from collections.abc import Mapping

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID

from dpfact_flower.errors import SettingsError

_PEM, _PLAIN = serialization.Encoding.PEM, serialization.NoEncryption()
_AUTHORITY = "dpfact centre"
_AUTHORITY_DAYS, _SERVER_DAYS = 3650, 730


def new_authority() -> tuple[bytes, bytes]:
    """Create an authority for one centre's certificates. Return its key and certificate (PEM)."""
    key = ec.generate_private_key(ec.SECP256R1())
    usage = x509.KeyUsage(
        digital_signature=False, content_commitment=False, key_encipherment=False,
        data_encipherment=False, key_agreement=False, key_cert_sign=True, crl_sign=True,
        encipher_only=False, decipher_only=False,
    )  # fmt: skip
    more = {x509.BasicConstraints(ca=True, path_length=None): True, usage: True}
    return _private(key), _signed(key, key, _AUTHORITY, _AUTHORITY_DAYS, more)


def new_server(name: str, authority_key: bytes) -> tuple[bytes, bytes]:
    """Create a server's key and certificate, in PEM, for a DNS name or address.

    The certificate also covers 127.0.0.1, because the SuperLink's own helper uses this address.
    """
    authority = serialization.load_pem_private_key(authority_key, password=None)
    if not isinstance(authority, ec.EllipticCurvePrivateKey):
        raise SettingsError("ca.key: need an elliptic-curve key")
    key = ec.generate_private_key(ec.SECP256R1())
    names = [_general_name(each) for each in dict.fromkeys((name, "127.0.0.1"))]
    usage = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH])
    more = {x509.SubjectAlternativeName(names): False, usage: False}
    return _private(key), _signed(authority, key, name, _SERVER_DAYS, more)


def new_node_key(comment: str) -> tuple[bytes, bytes]:
    """Create a SuperNode's private key and public line, like ``ssh-keygen -t ecdsa -b 384``."""
    key = ec.generate_private_key(ec.SECP384R1())
    private = key.private_bytes(_PEM, serialization.PrivateFormat.OpenSSH, _PLAIN)
    public = key.public_key().public_bytes(
        serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
    )
    return private, public + f" {comment}\n".encode()


def read_node_key(line: bytes) -> bytes:
    """Return the bytes of a SuperNode's public key, for a fingerprint."""
    try:
        key = serialization.load_ssh_public_key(line)
    except ValueError:
        key = None
    if not isinstance(key, ec.EllipticCurvePublicKey):
        raise SettingsError("public key: need the .pub file that dpfact site init wrote")
    return key.public_bytes(
        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    )


def read_certificate(pem: bytes) -> bytes:
    """Return the bytes of a certificate, for a fingerprint."""
    try:
        return x509.load_pem_x509_certificate(pem).public_bytes(serialization.Encoding.DER)
    except ValueError:
        raise SettingsError("--ca: need the ca.crt that dpfact centre init wrote") from None


def _private(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(_PEM, serialization.PrivateFormat.PKCS8, _PLAIN)


def _signed(
    authority: ec.EllipticCurvePrivateKey,
    key: ec.EllipticCurvePrivateKey,
    name: str,
    days: int,
    more: Mapping[x509.ExtensionType, bool],
) -> bytes:
    """Return a certificate (PEM) with `more` extensions, and whether each is critical."""
    now = datetime.datetime.now(datetime.UTC)
    builder = x509.CertificateBuilder(
        _named(_AUTHORITY), _named(name), key.public_key(), x509.random_serial_number(),
        now - datetime.timedelta(hours=1), now + datetime.timedelta(days=days),
    )  # fmt: skip
    own = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    signer = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.public_key())
    for extension, critical in {own: False, signer: False, **more}.items():
        builder = builder.add_extension(extension, critical)
    return builder.sign(authority, hashes.SHA256()).public_bytes(_PEM)


def _named(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, text)])


def _general_name(text: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(text))
    except ValueError:
        return x509.DNSName(text)
