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
    authority, server = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    issuer = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, f"{name} authority")])
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    files = Certificates(folder / name)
    files.folder.mkdir()
    files.authority.write_bytes(
        _builder(issuer, issuer, authority, authority, days=61)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(_SIGNS_CERTIFICATES, critical=True)
        .sign(authority, hashes.SHA256())
        .public_bytes(PEM)
    )
    files.certificate.write_bytes(
        _builder(subject, issuer, server, authority)
        .add_extension(_LOOPBACK, critical=False)
        .add_extension(_SERVES, critical=False)
        .sign(authority, hashes.SHA256())
        .public_bytes(PEM)
    )
    form, plain = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    files.key.write_bytes(server.private_bytes(PEM, form, plain))
    return files


def make_key(folder: Path, site: str) -> Path:
    """A SuperNode's key: `site` is private, `site.pub` for the centre."""
    command = ["ssh-keygen", "-q", "-t", "ecdsa", "-b", "384", "-N", "", "-f", site]
    subprocess.run(command, cwd=folder, check=True)
    return folder / site


_LOOPBACK = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
_SERVES = x509.ExtendedKeyUsage([x509.ExtendedKeyUsageOID.SERVER_AUTH])
_SIGNS_CERTIFICATES = x509.KeyUsage(
    digital_signature=False, content_commitment=False, key_encipherment=False,
    data_encipherment=False, key_agreement=False, key_cert_sign=True, crl_sign=True,
    encipher_only=False, decipher_only=False,
)  # fmt: skip


def _builder(
    subject: x509.Name, issuer: x509.Name, key, signer, *, days: int = 60
) -> x509.CertificateBuilder:
    # Python 3.13 asks for both key identifiers.
    now = datetime.datetime.now(datetime.UTC)
    identifier = x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key())
    return (
        x509.CertificateBuilder(issuer_name=issuer, subject_name=subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(identifier, critical=False)
    )
