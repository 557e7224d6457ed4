"""The flow of a turn between a client's API and a backend.

pipeline.py    the whole flow on one screen: parse, decode, choose the model, limits, plan, answer
plan.py        decides how tools are served, and what becomes of each request field
run.py         the loop of a turn; starts, parks, resumes and repeats runs, and reports to the journal
source.py      one run of a backend, as the loop reads it; time limits; several choices at the same time
stages.py      what happens to a batch of events: interpret.py, required call, policy, output mode, writer
answers.py     the answer that the events become: a stream or a body, stored if the client asks for it
parked.py      runs that wait for the results of their calls
queue.py       who runs next, if a model has a limit
served.py      tools that the gateway serves itself: what it needs of the tool runtime
rounds.py      the rounds of calls of such tools in one response; serving.py decides when one follows
approval_requests.py  what clients were asked to approve
account.py     what a turn sent and used
catalog.py     the models, their names and their state
images.py      fetches images for backends that take them only inline
compaction.py  shortens a conversation
records.py     what passes between a surface and this package
"""
