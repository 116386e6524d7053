"""Running a plan: servers, requests, and the records on disk, which are the truth."""
