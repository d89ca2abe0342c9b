"""The job API and the operator's page over HTTP (extra ``web``): nothing else of ours needs FastAPI."""
