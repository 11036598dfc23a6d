"""``terraform-provider-spillway``: what Terraform starts, and ``install`` for people."""

from __future__ import annotations

import argparse
import logging
import sys
from pathlib import Path

from terraform_provider_spillway.install import install, platform_name


def main() -> None:
    """Serve Terraform, or do what a person asks."""
    from terraform_provider_spillway.plugin_server import serve, started_by_terraform  # noqa: PLC0415 - slow
    from terraform_provider_spillway.provider import ADDRESS, VERSION, SpillwayProvider  # noqa: PLC0415

    if started_by_terraform():
        # Terraform's own log takes these lines, with TF_LOG.
        logging.basicConfig(
            stream=sys.stderr, level=logging.WARNING, format="[%(levelname)s] %(message)s"
        )
        serve(SpillwayProvider())
        return
    parser = argparse.ArgumentParser(
        prog="terraform-provider-spillway",
        description="The Terraform provider for Spillway. Terraform and OpenTofu start it "
        "themselves.",
    )
    parser.add_argument("--version", action="version", version=VERSION)
    commands = parser.add_subparsers(dest="command", required=True)
    installing = commands.add_parser(
        "install", help="put it where terraform and tofu look for providers that are in no registry"
    )
    installing.add_argument(
        "--into",
        type=Path,
        default=Path.home() / ".terraform.d" / "plugins",
        help="the directory, a filesystem mirror (default: %(default)s, where both look by "
        "themselves)",
    )
    arguments = parser.parse_args()
    try:
        path = install(arguments.into, ADDRESS, VERSION)
    except OSError as error:
        parser.exit(1, f"{parser.prog}: {error}\n")
    sys.stdout.write(f"{path}\n")
    sys.stdout.write(
        f'Version {VERSION} for {platform_name()}. In a configuration: source = "{ADDRESS}"\n'
    )


if __name__ == "__main__":
    main()
