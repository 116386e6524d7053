"""The load client: sends requests over HTTP/1.1, stamps what arrives, and makes one record of each request."""
