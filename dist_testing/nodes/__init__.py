"""Simulated nodes: network and UTS namespaces in which the ranks of one machine meet each other as on a cluster."""
