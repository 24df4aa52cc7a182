"""Matrix products of rows in groups with one matrix a group: the experts of a mixture."""
