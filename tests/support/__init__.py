"""Test doubles of services that cannot run here; production code never imports them."""
