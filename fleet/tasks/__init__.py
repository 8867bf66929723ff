"""Python tasks: fabric's @task functions, over fleet's own connections. fabric and invoke are imported here only."""
