"""Moving bytes between origin, tiers and readers."""
