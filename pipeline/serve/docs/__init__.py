"""The description of the HTTP contract: OpenAPI and its page."""
