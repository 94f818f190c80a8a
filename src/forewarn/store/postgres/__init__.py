"""The shared store: one PostgreSQL database for any number of nodes, and its SQL. Only this package imports psycopg."""
