"""`toolwire conform`: judges any OpenAI-compatible endpoint's tool calling, on both APIs.

questions   what an endpoint is asked: requests as data, some built from earlier answers
probe       asks over HTTP, with limits on time and size
exchange    a request and what came back, read as a client reads it
mend        small slips put right, so that one of them does not hide what follows
judging     the verdicts: pure functions from exchanges to pass, fail or not-run
catalogue   the checks: what each demands, why, what it asks, which verdict it applies
engine      asks each question once, judges each check
report      the table, JSON and JUnit
"""
