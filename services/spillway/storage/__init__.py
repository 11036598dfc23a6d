"""What is durable, and how it becomes so.

Rooms above this one say *what* they store. That a file is whole, that its name outlives a power
failure, and what the system answers when it can't be is said here, once.
"""
