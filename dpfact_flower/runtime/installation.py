"""Write certificates, keys, settings and systemd units for a coordinating centre or a hospital.

Only ``install.sh`` needs root, and the administrator should read ``install.sh`` before running it.
To try a deployment without root, use ``start.sh``, which runs the systemd units' commands.
"""

import datetime
import ipaddress
import os
import re
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from string import Template

import tomli_w
from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID

from dpfact_flower.errors import SettingsError
from dpfact_flower.machine.files import create_once, private_folder, replacing
from dpfact_flower.privacy.secure_sum.keys import fingerprint
from dpfact_flower.settings import Scalar

_PEM, _PLAIN = serialization.Encoding.PEM, serialization.NoEncryption()
_AUTHORITY = "dpfact centre"
_AUTHORITY_DAYS, _SERVER_DAYS = 3650, 730
_PARTS = {"centre": ("flwr", "ca.key", "server.pem"), "hospital": ("node", "site")}
"""Files and folders by which an earlier installation is recognised, even if some were removed."""
_TEMPLATES = Path(__file__).parent / "templates"
HARDENED = (_TEMPLATES / "hardened").read_text(encoding="utf-8")
"""Restrictions of all systemd units. Because numba compiles code, memory may be executable."""
_START = """\
# To try a deployment without root: runs the units' commands as the current user. Ctrl-C ends them
# after any charged answer has been sent. A second Ctrl-C does not wait.
trap 'exec 2>/dev/null; trap "kill $started" INT TERM
for each in $started; do kill $each; wait $each; done' EXIT
trap exit INT TERM
"""


def write_centre(folder: Path, name: str, port: int) -> None:
    """Write a centre's certificates, systemd unit, proxy configuration and Flower configuration.

    `name` is a DNS name or IPv4 address. For the proxy, the SuperLink listens at 127.0.0.1:`port`.
    """
    _general_name(name)  # refuses a wrong name before anything is written
    _new(folder)
    for subfolder in ("flwr", "runs", "codes"):
        private_folder(folder / subfolder)
    key, certificate = new_authority()
    create_once(folder / "ca.key", key)
    (folder / "ca.crt").write_bytes(certificate)
    renew_centre(folder, name)
    values = {"folder": folder, "name": name, "port": port}
    _fill(folder / "flwr" / "config.toml", "config.toml", values)
    _fill(folder / "dpfact-proxy.conf", "dpfact-proxy.conf", values)
    _fill(folder / "install.sh", "install-centre.sh", values)
    _fill(folder / "compose.yaml", "centre.compose.yaml", values)
    _write_units(folder, ("dpfact-centre.service",), values)


def renew_centre(folder: Path, name: str) -> None:
    """Write a new key and certificate for the centre's server, signed by the centre's authority."""
    path, authority = folder / "server.pem", folder / "ca.key"
    if not authority.exists():
        raise SettingsError(f"bring ca.key back into {folder} for this command")
    if path.exists():
        try:
            (first,) = x509.load_pem_x509_certificate(path.read_bytes()).subject
        except ValueError:
            raise SettingsError(f"{path}: is damaged; delete it, and check NAME twice") from None
        if name != first.value:
            raise SettingsError(f"NAME: the hospitals connect to {first.value!r}: give this name")
    key, certificate = new_server(name, authority.read_bytes())
    try:
        issuer = x509.load_pem_x509_certificate((folder / "ca.crt").read_bytes())
        x509.load_pem_x509_certificate(certificate).verify_directly_issued_by(issuer)
    except (InvalidSignature, TypeError, ValueError):
        raise SettingsError(f"ca.key: is not the key of {folder}/ca.crt, or is damaged") from None
    with replacing(folder / "server.key") as file:
        os.fchown(file.fileno(), (folder / "flwr").stat().st_uid, -1)  # the service's user
        file.write(key)
    with replacing(path) as file:
        os.fchmod(file.fileno(), 0o644)  # the service and the proxy read it
        file.write(certificate)


def write_site(
    folder: Path,
    settings: Mapping[str, Scalar],
    *,
    centre: str,
    authority: bytes,
    data: Path,
    port: int,
) -> bytes:
    """Write a hospital's key, secret, settings, data and systemd units. Return the public key.

    `centre` is ``name:port``, and `authority` is a PEM certificate. The `data` file is copied, so
    that ``install.sh`` can change the copy's owner. The SuperNode listens at 127.0.0.1:`port`.
    """
    name = str(settings["site"])
    if not re.fullmatch(r"[A-Za-z0-9._-]+:[0-9]+", centre):
        raise SettingsError(f"--centre: need a DNS name or IPv4 address[:PORT]; got {centre!r}")
    _new(folder)
    node, site = folder / "node", folder / "site"
    for path in (node, site, site / "state"):
        private_folder(path)
    private, public = new_node_key(name)
    secret = os.urandom(32)
    create_once(node / name, private)
    create_once(node / "ca.crt", authority)
    for path in (node, site):
        create_once(path / "secret", secret)
    create_once(site / f"{name}.npz", data.read_bytes())
    paths = {"data-path": str(site / f"{name}.npz"), "state-dir": str(site / "state")}
    create_once(site / f"{name}.toml", tomli_w.dumps({"site": name, **paths, **settings}).encode())
    (folder / f"{name}.pub").write_bytes(public)
    values = {"folder": folder, "name": name, "port": port, "centre": centre}
    _fill(folder / "install.sh", "install-site.sh", values)
    _fill(folder / "compose.yaml", "hospital.compose.yaml", values)
    _write_units(folder, ("dpfact-node.service", "dpfact-site.service"), values)
    return public


def _new(folder: Path) -> None:
    """Create a folder readable by all users. Refuse a folder that a centre or hospital uses."""
    # Other characters would need quotes in the units, the scripts or nginx's configuration.
    if not re.fullmatch(r"[A-Za-z0-9/._:-]+", str(folder)):
        raise SettingsError(f"--folder: {str(folder)!r}: use only letters, digits and / . _ - :")
    for owner, parts in _PARTS.items():
        if any((folder / part).exists() for part in parts):
            raise SettingsError(
                f"--folder: {folder} is a {owner}'s folder already; its keys and ledger are never "
                "replaced. Name another --folder"
            )
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o755)


def _fill(path: Path, template: str, values: Mapping[str, object]) -> str:
    text = Template((_TEMPLATES / template).read_text(encoding="utf-8")).substitute(
        values, bin=Path(sys.executable).parent, hardened=HARDENED
    )
    path.write_text(text, encoding="utf-8")
    return text


def _write_units(folder: Path, names: tuple[str, ...], values: Mapping[str, object]) -> None:
    """Write the systemd units, and a script that runs the units' commands."""
    script = _START
    for name in names:
        text = _fill(folder / name, name, values).replace("\\\n", " ")
        entries = dict(re.findall(r"^(\w+)=(.*)$", text, re.MULTILINE))
        command = f'env {entries["Environment"]} {entries["ExecStart"]} &\nstarted="$! $started"\n'
        script += command.replace(" --node-user dpfact-node", "")
    (folder / "start.sh").write_text(f"{script}wait\n", encoding="utf-8")


def new_authority() -> tuple[bytes, bytes]:
    """Create a centre's certificate authority. Return the authority's key and certificate (PEM)."""
    key = ec.generate_private_key(ec.SECP256R1())
    usage = x509.KeyUsage(
        digital_signature=False, content_commitment=False, key_encipherment=False,
        data_encipherment=False, key_agreement=False, key_cert_sign=True, crl_sign=True,
        encipher_only=False, decipher_only=False,
    )  # fmt: skip
    more = {x509.BasicConstraints(ca=True, path_length=None): True, usage: True}
    return _private_pem(key), _signed(key, key, _AUTHORITY, _AUTHORITY_DAYS, more)


def new_server(name: str, authority_key: bytes) -> tuple[bytes, bytes]:
    """Create a server's key and certificate, in PEM format, for a DNS name or IPv4 address.

    The certificate also covers 127.0.0.1, because the SuperLink's helper process uses this address.
    """
    authority = None
    with suppress(TypeError, ValueError):  # not a key, or a key with a password
        authority = serialization.load_pem_private_key(authority_key, password=None)
    if not isinstance(authority, ec.EllipticCurvePrivateKey):
        raise SettingsError("ca.key: need the key that dpfact centre init wrote")
    key = ec.generate_private_key(ec.SECP256R1())
    names = [_general_name(text) for text in dict.fromkeys((name, "127.0.0.1"))]
    usage = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH])
    more = {x509.SubjectAlternativeName(names): False, usage: False}
    return _private_pem(key), _signed(authority, key, name, _SERVER_DAYS, more)


def new_node_key(comment: str) -> tuple[bytes, bytes]:
    """Create a SuperNode's private and public key, as ``ssh-keygen -t ecdsa -b 384`` does."""
    key = ec.generate_private_key(ec.SECP384R1())
    private = key.private_bytes(_PEM, serialization.PrivateFormat.OpenSSH, _PLAIN)
    public = key.public_key().public_bytes(
        serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
    )
    return private, public + f" {comment}\n".encode()


def key_fingerprint(line: bytes) -> str:
    """Return the fingerprint of a SuperNode's public key."""
    if b"PRIVATE KEY" in line:
        raise SettingsError(
            "public key: this is a private key, which must never leave its hospital. There, make a "
            "new key: dpfact site init in another folder"
        )
    key = None
    with suppress(ValueError, UnsupportedAlgorithm):
        key = serialization.load_ssh_public_key(line)
    if not isinstance(key, ec.EllipticCurvePublicKey):
        raise SettingsError("public key: need the .pub file that dpfact site init wrote")
    form = serialization.PublicFormat.SubjectPublicKeyInfo
    return fingerprint(key.public_bytes(serialization.Encoding.DER, form))


def cert_fingerprint(pem: bytes) -> str:
    """Return the fingerprint of a certificate."""
    try:
        certificate = x509.load_pem_x509_certificate(pem)
        return fingerprint(certificate.public_bytes(serialization.Encoding.DER))
    except ValueError:
        raise SettingsError("--ca: need the ca.crt that dpfact centre init wrote") from None


def _private_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(_PEM, serialization.PrivateFormat.PKCS8, _PLAIN)


def _signed(
    authority: ec.EllipticCurvePrivateKey,
    key: ec.EllipticCurvePrivateKey,
    name: str,
    days: int,
    more: Mapping[x509.ExtensionType, bool],
) -> bytes:
    """Return a PEM certificate. `more` maps each additional extension to its `critical` flag."""
    now = datetime.datetime.now(datetime.UTC)
    builder = x509.CertificateBuilder(
        _common_name(_AUTHORITY), _common_name(name), key.public_key(), x509.random_serial_number(),
        now - datetime.timedelta(hours=1), now + datetime.timedelta(days=days),
    )  # fmt: skip
    own = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    signer = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.public_key())
    for extension, critical in {own: False, signer: False, **more}.items():
        builder = builder.add_extension(extension, critical)
    return builder.sign(authority, hashes.SHA256()).public_bytes(_PEM)


def _common_name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, text)])


def _general_name(text: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.IPv4Address(text))
    except ValueError:
        # The certificate also holds the name as a common name, which has at most 64 characters.
        if len(text) > 64 or not re.fullmatch(r"(?![0-9.]*$)[A-Za-z0-9-]+(\.[A-Za-z0-9-]+)*", text):
            wanted = "an IPv4 address or a DNS name of at most 64 characters, without port"
            raise SettingsError(f"{text!r}: need {wanted}") from None
        return x509.DNSName(text)
