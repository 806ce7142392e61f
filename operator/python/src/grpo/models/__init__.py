"""Types made by operator/python/generate.py: `api` has the parts of manifests, `views` the views of records."""
