"""Where a pod's node is in the network: the labels of nodes, what `gen --locations` makes, and the program of its init
container."""
