"""How sources, slots and subscriptions were."""
