"""The settings of a protected connection, under Kafka's names, and librdkafka's names for the same things."""

from __future__ import annotations

from semel.config.table import Setting

SECURITY_PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
SASL_MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")

#: What a key store and a trust store are, on either side of a connection.
STORES = [
    Setting("ssl.keystore.type", "string", None, "What the key store is: PEM or PKCS12.", upper=True),
    Setting("ssl.keystore.location", "string", None, "The file with our own key and certificates."),
    Setting("ssl.keystore.password", "password", None, "The password of a PKCS12 key store."),
    Setting("ssl.keystore.key", "password", None, "Our own private key, as PEM text."),
    Setting("ssl.keystore.certificate.chain", "password", None, "Our own certificates, as PEM text, ours first."),
    Setting("ssl.key.location", "string", None,
            "The file with our own private key, as PEM, where the key store does not hold it (librdkafka's way)."),
    Setting("ssl.key.password", "password", None, "The password of the private key."),
    Setting("ssl.truststore.type", "string", None, "What the trust store is: PEM or PKCS12.", upper=True),
    Setting("ssl.truststore.location", "string", None, "The file (or folder) with the certificates we trust."),
    Setting("ssl.truststore.password", "password", None, "The password of a PKCS12 trust store."),
    Setting("ssl.truststore.certificates", "password", None, "The certificates we trust, as PEM text."),
    Setting("ssl.enabled.protocols", "list", ("TLSv1.2", "TLSv1.3"), "Versions of TLS to use.",
            choices=("TLSv1.2", "TLSv1.3"), not_empty=True),
    Setting("ssl.protocol", "string", "TLSv1.3", "The newest version of TLS to use.",
            choices=("TLS", "TLSv1.2", "TLSv1.3")),
    Setting("ssl.cipher.suites", "list", (), "Cipher suites to use, by OpenSSL's or Java's names."),
]

#: Of a broker. Each of them, and those above, may be given for one listener: `listener.name.NAME.` before its name.
BROKER_SECURITY = [
    *STORES,
    Setting("ssl.client.auth", "string", "none",
            "Whether clients show a certificate: required, requested (they may), or none. A SASL_SSL listener asks for "
            "one only where it is set for that listener.", choices=("required", "requested", "none")),
    Setting("ssl.endpoint.identification.algorithm", "string", "https",
            "https: the certificate of another broker of a cluster must be for the name it is reached by; empty or "
            "none: any name will do.", choices=("https", "HTTPS", "none", "")),
    Setting("ssl.principal.mapping.rules", "string", "DEFAULT",
            "What the name in a client's certificate becomes: RULE:pattern/replacement/ with L or U after it, or "
            "DEFAULT, the whole name. The first rule that fits holds."),
]

#: Of a broker of a cluster, for its connection to ZooKeeper.
ZOOKEEPER_TLS = [
    Setting("zookeeper.ssl.client.enable", "bool", False, "Whether the connection to ZooKeeper is encrypted."),
    Setting("zookeeper.ssl.keystore.location", "string", None,
            "The file with the broker's key and certificates for ZooKeeper."),
    Setting("zookeeper.ssl.keystore.password", "password", None,
            "The password of that file, if it is PKCS12, or of the private key in it."),
    Setting("zookeeper.ssl.keystore.type", "string", None, "What that file is: PEM or PKCS12.", upper=True),
    Setting("zookeeper.ssl.truststore.location", "string", None,
            "The file with the certificates that ZooKeeper's must be signed by; without it the system's are trusted."),
    Setting("zookeeper.ssl.truststore.password", "password", None, "The password of that file, if it is PKCS12."),
    Setting("zookeeper.ssl.truststore.type", "string", None, "What that file is: PEM or PKCS12.", upper=True),
    Setting("zookeeper.ssl.endpoint.identification.algorithm", "string", "https",
            "https: ZooKeeper's certificate must be for the name in zookeeper.connect; empty or none: any name will "
            "do.", choices=("https", "HTTPS", "none", "")),
    Setting("zookeeper.ssl.enabled.protocols", "list", ("TLSv1.2", "TLSv1.3"), "Versions of TLS to use.",
            choices=("TLSv1.2", "TLSv1.3"), not_empty=True),
    Setting("zookeeper.ssl.protocol", "string", "TLSv1.3", "The newest version of TLS to use.",
            choices=("TLS", "TLSv1.2", "TLSv1.3")),
    Setting("zookeeper.ssl.cipher.suites", "list", (), "Cipher suites to use, by OpenSSL's or Java's names."),
]

#: Kafka's classes that check bearer tokens. The names are only names here.
TOKEN_VALIDATORS = (
    "org.apache.kafka.common.security.oauthbearer.OAuthBearerValidatorCallbackHandler",
    "org.apache.kafka.common.security.oauthbearer.secured.OAuthBearerValidatorCallbackHandler",
)
#: Of a broker that takes bearer tokens.
BROKER_TOKENS = [
    Setting("sasl.server.callback.handler.class", "string", None,
            "The check of bearer tokens, under Kafka's name. Other Java classes cannot be loaded.",
            choices=TOKEN_VALIDATORS),
    Setting("sasl.oauthbearer.jwks.endpoint.url", "string", None,
            "Where the keys are by which bearer tokens are signed: https://, http:// or file://.", not_empty=True),
    Setting("sasl.oauthbearer.jwks.endpoint.refresh.ms", "long", 3600000, "How old the keys may become.", 1),
    Setting("sasl.oauthbearer.jwks.endpoint.retry.backoff.ms", "long", 100,
            "How long to wait after a fetch of the keys failed; twice as long each time.", 1),
    Setting("sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms", "long", 10000,
            "The longest such pause, and how often a token may cause a fetch that names a key that is not known.", 1),
    Setting("sasl.oauthbearer.expected.audience", "list", (),
            "For whom a bearer token may be; it has to name one of them."),
    Setting("sasl.oauthbearer.expected.issuer", "string", None, "Who has to have issued a bearer token.",
            not_empty=True),
    Setting("sasl.oauthbearer.clock.skew.seconds", "int", 30,
            "How far the issuer's clock may differ from the broker's.", 0),
    Setting("sasl.oauthbearer.scope.claim.name", "string", "scope", "The claim that a token's scope is in.",
            not_empty=True),
    Setting("sasl.oauthbearer.sub.claim.name", "string", "sub", "The claim that names the user.", not_empty=True),
    Setting("semel.sasl.oauthbearer.unsecured", "bool", False,
            "Whether bearer tokens that nobody signed are taken. Only to try things out: anybody can be anybody."),
]

CLIENT_SECURITY = [
    Setting("security.protocol", "string", "PLAINTEXT", "How the connection is protected.", choices=SECURITY_PROTOCOLS,
            upper=True),
    *STORES,
    Setting("ssl.endpoint.identification.algorithm", "string", "https",
            "https: the broker's certificate must be for the name we connect to; empty or none: any name will do.",
            choices=("https", "HTTPS", "none", "")),
    Setting("enable.ssl.certificate.verification", "bool", True,
            "Whether the broker's certificate is checked at all. Turn it off only to try things out."),
    Setting("sasl.mechanism", "string", None, "How we say who we are.", upper=True),
    Setting("sasl.jaas.config", "password", None, "User and password in Kafka's JAAS form."),
    Setting("sasl.username", "string", None, "The user, for PLAIN and SCRAM."),
    Setting("sasl.password", "password", None, "The password, for PLAIN and SCRAM."),
    Setting("sasl.oauthbearer.token.provider", "callable", None,
            "A function, or its name as module:function, that returns a token, or a token and when it expires."),
    Setting("sasl.oauthbearer.token.endpoint.url", "string", None, "Where client credentials are traded for a token."),
    Setting("sasl.oauthbearer.client.id", "string", None, "The client id for the token endpoint."),
    Setting("sasl.oauthbearer.client.secret", "password", None, "The client secret for the token endpoint."),
    Setting("sasl.oauthbearer.scope", "string", None, "The scope to ask the token endpoint for."),
    Setting("sasl.oauthbearer.extensions", "string", None, "SASL extensions sent with the token: name=value, ..."),
    Setting("sasl.oauthbearer.method", "string", None, "librdkafka's: default, or oidc for a token endpoint.",
            choices=("default", "oidc")),
]

#: Other spellings, mostly librdkafka's, of rows above.
CLIENT_ALIASES = {
    "sasl.mechanisms": "sasl.mechanism",
    "ssl.ca.location": "ssl.truststore.location",
    "ssl.ca.pem": "ssl.truststore.certificates",
    "ssl.certificate.location": "ssl.keystore.location",
    "ssl.certificate.pem": "ssl.keystore.certificate.chain",
    "ssl.key.pem": "ssl.keystore.key",
    "sasl.oauthbearer.client.credentials.client.id": "sasl.oauthbearer.client.id",
    "sasl.oauthbearer.client.credentials.client.secret": "sasl.oauthbearer.client.secret",
}

#: Settings of other clients whose promise cannot be kept, and why.
CLIENT_REFUSED = {
    name: why
    for why, names in {
        "GSSAPI (Kerberos) is not spoken; use SCRAM or OAUTHBEARER": (
            "sasl.kerberos.service.name", "sasl.kerberos.keytab", "sasl.kerberos.principal", "sasl.kerberos.kinit.cmd",
        ),
        "Java classes cannot be loaded; give a Python function with sasl.oauthbearer.token.provider": (
            "sasl.login.callback.handler.class", "sasl.client.callback.handler.class", "sasl.login.class",
        ),
    }.items()
    for name in names
}
