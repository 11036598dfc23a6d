"""Terraform provider for Spillway: sources, slots and subscriptions as code, over REST.

::

    __main__        the executable that Terraform starts; ``install`` puts it where Terraform looks
    plugin_server   HashiCorp's go-plugin: handshake, certificate, end of the process
    protocol        plugin protocol 6 over ``tf``'s servicer: what a change means, and errors as
                    diagnostics
    schema          attributes with the rules that a plan needs
    checks          what values PostgreSQL and the service would take
    resource        what all resources share
    source, slot, subscription, publications    the resources and data sources
    service_client  REST, with retries
    reference       docs/ from the schemas
"""
