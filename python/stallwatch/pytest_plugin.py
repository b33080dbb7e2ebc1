"""The pytest plugin of stallwatch. Imported in every pytest run of everybody who has stallwatch installed."""
