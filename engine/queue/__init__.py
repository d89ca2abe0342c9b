"""The queue: jobs as rows of two families over one claimable shape, and all that may happen to them."""
