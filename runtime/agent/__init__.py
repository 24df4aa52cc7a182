"""What runs on a node: load, train, checkpoint, notice a reclaim."""
