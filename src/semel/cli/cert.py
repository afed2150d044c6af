"""`semel cert`: certificates for trying things out."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import click

from semel.cli.output import errors_for_people
from semel.security.development import DevelopmentAuthority

LOCAL_HOSTS = ("localhost", "127.0.0.1", "::1")


@click.group()
def cert() -> None:
    """Make certificates for trying things out."""


@cert.command()
@click.option("--folder", default="certificates", show_default=True, help="Where the files go; made if it is missing.")
@click.option("--host", "hosts", multiple=True, help="A name or address the broker is reached by; may be repeated.")
@click.option("--client", default="client", show_default=True, help="The name in the client's certificate.")
@click.option("--days", type=click.IntRange(1, 825), default=30, show_default=True, help="How long they last.")
@click.option("--force", is_flag=True, help="Write over files that are there.")
def dev(folder: str, hosts: tuple[str, ...], client: str, days: int, force: bool) -> None:
    """Make an authority, a certificate for the broker and one for a client.

    The broker's certificate is for this machine and for every --host. Not for production: the private keys lie beside
    the certificates, and nobody else knows the authority.
    """
    target = Path(folder)
    names = ("authority", "broker", "client")
    there = [str(target / f"{name}.pem") for name in names if (target / f"{name}.pem").exists()]
    if there and not force:
        raise click.ClickException(f"{there[0]} is there already: choose another --folder, or give --force")
    with errors_for_people():
        authority = DevelopmentAuthority()
        lifetime = timedelta(days=days)
        broker_hosts = list(dict.fromkeys((*LOCAL_HOSTS, *hosts)))
        broker = authority.issue("broker", hosts=broker_hosts, lifetime=lifetime)
        client_certificate = authority.issue(client, lifetime=lifetime)
    try:
        target.mkdir(parents=True, exist_ok=True)
        (target / "authority.pem").write_text(authority.certificate_pem)
        broker.write(target, "broker")
        client_certificate.write(target, "client")
    except OSError as error:
        raise click.ClickException(f"cannot write to {target}: {error.strerror or error}") from None
    place = target.resolve()
    click.echo(f"certificates for {', '.join(broker_hosts)}, for {days} days, are in {place}")
    click.echo("\nthe broker:")
    click.echo(
        f"  semel broker start --set listeners=SSL://127.0.0.1:9093 \\\n"
        f"    --set ssl.keystore.location={place / 'broker.pem'} \\\n"
        f"    --set ssl.truststore.location={place / 'authority.pem'}"
    )
    click.echo("\na client (client.properties, for --command-config and for programs):")
    click.echo(f"  security.protocol=SSL\n  ssl.truststore.location={place / 'authority.pem'}")
    click.echo("  # only where the broker asks for a certificate (ssl.client.auth):")
    click.echo(f"  ssl.keystore.location={place / 'client.pem'}")
