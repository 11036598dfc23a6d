"""``spillway apply``: what a subscription of kind ``postgres`` runs."""
