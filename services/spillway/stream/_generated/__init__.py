"""Made of ``proto/spillway/v1`` by ``make proto``; a test compares. Do not edit."""
