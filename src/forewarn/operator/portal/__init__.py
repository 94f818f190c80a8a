"""The portal: pages for people on the operator listener. It asks what the API asks, as whoever logged in."""
