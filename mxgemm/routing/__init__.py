"""From a problem to a route: tables, the router, and what it says of its choice."""
