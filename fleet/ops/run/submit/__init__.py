"""A run that a batch system starts by and by: requested here, led there by its job, and watched from its folder."""
