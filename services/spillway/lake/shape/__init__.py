"""What a lake's rows and columns are, and how they change: messages, types, columns, net
effects.
"""
