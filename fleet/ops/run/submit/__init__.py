"""A run that a batch system starts by and by: asked for here, led there by its job, and watched from its folder."""
