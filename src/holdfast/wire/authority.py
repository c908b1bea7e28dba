"""The authority of a run: it says who is who under TLS, for as long as the driver lives, and signs in its memory alone.

A certificate has the name of its process in it, and what it may do: answer at a door by that name, or only knock.
Nothing is revoked, because nothing outlives the run: another start has another authority.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from holdfast.wire.passes import Papers

CLOCKS = timedelta(days=1)
"""So much a machine's clock may be behind the driver's."""
LIFE = timedelta(days=3650)
"""No run is longer. What ends a certificate is the end of its run."""


class Authority:
    def __init__(self, name: str = "holdfast") -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _named(name)
        self._begun = datetime.now(UTC) - CLOCKS
        usage = x509.KeyUsage(
            digital_signature=False,
            content_commitment=False,
            key_encipherment=False,
            data_encipherment=False,
            key_agreement=False,
            key_cert_sign=True,
            crl_sign=False,
            encipher_only=False,
            decipher_only=False,
        )
        signed = (
            self._certificate(self._name, self._key.public_key(), self._begun + LIFE)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(usage, critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(self._key.public_key()), critical=False)
            .sign(self._key, hashes.SHA256())
        )
        self.certificate = _pem(signed)

    def papers(self, name: str, *, answers: bool = True, until: datetime | None = None) -> Papers:
        """For a process of this name, which ``answers`` at a door of its own or only knocks at others'."""
        key = ec.generate_private_key(ec.SECP256R1())
        uses = [ExtendedKeyUsageOID.CLIENT_AUTH, *([ExtendedKeyUsageOID.SERVER_AUTH] if answers else [])]
        known = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        signed = (
            self._certificate(_named(name), key.public_key(), until or self._begun + LIFE)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(x509.ExtendedKeyUsage(uses), critical=True)
            .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
            .add_extension(known, critical=False)
            .sign(self._key, hashes.SHA256())
        )
        held = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
        return Papers(_pem(signed), held, self.certificate)

    def _certificate(self, name: x509.Name, key: ec.EllipticCurvePublicKey, until: datetime) -> x509.CertificateBuilder:
        return (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(self._name)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(min(self._begun, until - CLOCKS))
            .not_valid_after(until)
        )


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _pem(certificate: x509.Certificate) -> str:
    return certificate.public_bytes(Encoding.PEM).decode()
