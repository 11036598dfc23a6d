"""What every consumer of a slot needs, whatever it makes of the changes: slots, exact snapshots,
copies, a status.
"""
