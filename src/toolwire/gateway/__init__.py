"""The flow of a turn between a client's API and a backend.

pipeline.py    the flow of a request: parse, decode, choose the model, check limits, plan, answer
plan.py        decides how tools are served, and what becomes of each request field
run.py         the loop of a turn; starts, parks, resumes and repeats runs, and reports to the journal
source.py      one run of a backend, as the loop reads it; time limits; several choices at the same time
stages.py      the steps between a backend's events and the client's bytes; interpret.py is the first of them
answers.py     turns events into the answer, a stream or a body, and stores it if the client asks for that
parked.py      parked runs: runs that wait until the client sends the results of their calls
queue.py       decides which turn runs next on a model that runs a limited number of turns at once
served.py      the interface to the tool runtime, which calls tools of MCP servers for the gateway
rounds.py      runs the model's calls of these tools, in a round after each run of the model
serving.py     starts the next round, or the model's next run
approval_requests.py  the calls that clients were asked to approve
account.py     counts the calls and the usage of a turn
catalog.py     the models, their names and their state
images.py      fetches images for backends that take them only inline
compaction.py  shortens a conversation
records.py     the types that this package shares with its callers, such as the HTTP server
"""
