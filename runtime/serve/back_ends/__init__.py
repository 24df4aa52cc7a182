"""The engines that the gateway can run, and the interface that they share."""
