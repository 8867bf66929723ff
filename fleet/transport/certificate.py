"""Makes the certificate of one transfer, or of one step of Slurm. Both ends of every link have this certificate and
accept no other."""

from __future__ import annotations

import datetime

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

# Nodes' clocks may be years off. The certificate becomes useless when the transfer ends, as its key is forgotten.
_FIRST = datetime.datetime(2000, 1, 1)
_LAST = datetime.datetime(2100, 1, 1)


def make_certificate() -> dict[str, str]:
    """Returns a new, self-signed certificate: {"cert": PEM, "key": PEM}."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "fleet broadcast")])
    cert = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(_FIRST)
        .not_valid_after(_LAST)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return {"cert": cert.public_bytes(pem).decode(), "key": private.decode()}
