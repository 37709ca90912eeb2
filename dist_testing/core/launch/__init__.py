"""Ways of making ranks: isolations, launchers, and the fork server."""
