"""Changes to a running gateway, by command or through the admin API: one implementation, one audit log."""
