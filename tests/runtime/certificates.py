"""Certificates and SuperNode keys for tests, as docs/how-to/deploy.md has openssl make them."""

import datetime
import ipaddress
import subprocess
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

PEM = serialization.Encoding.PEM


@dataclass(frozen=True)
class Certificates:
    """PEM files of a SuperLink that speaks TLS, and of its certificate's authority."""

    folder: Path

    @property
    def authority(self) -> Path:
        return self.folder / "ca.crt"

    @property
    def certificate(self) -> Path:
        return self.folder / "server.pem"

    @property
    def key(self) -> Path:
        return self.folder / "server.key"


def make_certificates(folder: Path, name: str) -> Certificates:
    """In a new folder of that name, an authority and a server's certificate for 127.0.0.1."""
    files, now = Certificates(folder / name), datetime.datetime.now(datetime.UTC)
    files.folder.mkdir()
    authority, server = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    signed_by = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.public_key())
    for path, subject, key, days, extensions in (
        (files.authority, f"{name} authority", authority, 61, _OF_AN_AUTHORITY),
        (files.certificate, name, server, 60, _OF_A_SERVER),
    ):
        builder = x509.CertificateBuilder(
            _named(f"{name} authority"), _named(subject), key.public_key(),
            x509.random_serial_number(), now - datetime.timedelta(hours=1),
            now + datetime.timedelta(days=days),
        )  # fmt: skip
        # Python 3.13 asks for both key identifiers.
        own = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
        for extension in (own, signed_by, *extensions):
            is_critical = extension in _OF_AN_AUTHORITY
            builder = builder.add_extension(extension, critical=is_critical)
        path.write_bytes(builder.sign(authority, hashes.SHA256()).public_bytes(PEM))
    form, plain = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    files.key.write_bytes(server.private_bytes(PEM, form, plain))
    return files


def make_key(folder: Path, site: str) -> Path:
    """A SuperNode's key: `site` is private, `site.pub` for the centre."""
    command = ["ssh-keygen", "-q", "-t", "ecdsa", "-b", "384", "-N", "", "-f", site]
    subprocess.run(command, cwd=folder, check=True)
    return folder / site


_OF_AN_AUTHORITY = (
    x509.BasicConstraints(ca=True, path_length=None),
    x509.KeyUsage(
        digital_signature=False, content_commitment=False, key_encipherment=False,
        data_encipherment=False, key_agreement=False, key_cert_sign=True, crl_sign=True,
        encipher_only=False, decipher_only=False,
    ),
)  # fmt: skip
_OF_A_SERVER = (
    x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]),
    x509.ExtendedKeyUsage([x509.ExtendedKeyUsageOID.SERVER_AUTH]),
)


def _named(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, text)])
