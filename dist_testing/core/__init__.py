"""What runs and judges worlds of ranks, without the add-ons."""
