"""A Kafka broker with TLS, logins and permissions, beside the plain listener of the tests.

Its listener `TLS` encrypts only; `LOGIN` also requires a user and a password (SASL_SSL with SCRAM).
A client of the plain listener may do everything; users may do what they are allowed to.
"""

import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from confluent_kafka.admin._acl import AclBinding, AclOperation, AclPermissionType
from confluent_kafka.admin._resource import ResourcePatternType, ResourceType
from tests.servers.kafka import HOST, SCRAM, KafkaCluster, kafka_cluster

_SETTINGS = {
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,"
    "TLS:SSL,LOGIN:SASL_SSL",
    "inter.broker.listener.name": "PLAINTEXT",
    "sasl.enabled.mechanisms": SCRAM,
    "listener.name.login.scram-sha-512.sasl.jaas.config": (
        "org.apache.kafka.common.security.scram.ScramLoginModule required;"
    ),
    "ssl.keystore.type": "PEM",
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
}
_CALL_S = 60.0


@dataclass(frozen=True)
class SecuredKafka:
    """A broker and the certificate that it shows, which is to be trusted."""

    cluster: KafkaCluster
    certificate: Path

    @property
    def tls(self) -> str:
        return self.cluster.address("TLS")

    @property
    def login(self) -> str:
        return self.cluster.address("LOGIN")

    def tls_options(self) -> dict[str, str]:
        """Return options of librdkafka for the listener `TLS`."""
        return {"security.protocol": "SSL", "ssl.ca.location": str(self.certificate)}

    def login_options(self, user: str, password: str) -> dict[str, str]:
        """Return options of librdkafka for the listener `LOGIN`; the password may be `env:NAME`."""
        return {
            **self.tls_options(),
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": SCRAM,
            "sasl.username": user,
            "sasl.password": password,
        }

    def allow(
        self, user: str, kind: ResourceType, name: str, operations: Sequence[AclOperation]
    ) -> None:
        """Let a user do something with everything whose name begins so."""
        bindings = [
            AclBinding(
                kind,
                name,
                ResourcePatternType.PREFIXED,
                f"User:{user}",
                "*",
                operation,
                AclPermissionType.ALLOW,
            )
            for operation in operations
        ]
        admin = self.cluster.admin()
        for future in admin.create_acls(bindings, request_timeout=_CALL_S).values():
            future.result(_CALL_S)


@contextmanager
def secured_kafka(users: Mapping[str, str]) -> Iterator[SecuredKafka]:
    """Run a broker that these users, with their passwords, can log in to."""
    directory = Path(tempfile.mkdtemp(prefix="cutwater-tls-"))
    try:
        certificate = _certificate(directory)
        settings = {**_SETTINGS, "ssl.keystore.location": str(directory / "broker.pem")}
        listeners = ("TLS", "LOGIN")
        with kafka_cluster(settings, listeners=listeners, users=users) as cluster:
            yield SecuredKafka(cluster, certificate)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _certificate(directory: Path) -> Path:
    """Make a certificate for this machine, and a file that has its key too."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("openssl is missing: apt-get install openssl")
    certificate, key = directory / "certificate.pem", directory / "key.pem"
    words = [openssl, "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]
    files = ["-nodes", "-keyout", str(key), "-out", str(certificate), "-days", "2"]
    names = ["-subj", "/CN=broker", "-addext", f"subjectAltName=IP:{HOST}"]
    subprocess.run([*words, *files, *names], check=True, capture_output=True)
    (directory / "broker.pem").write_text(key.read_text() + certificate.read_text())
    return certificate
