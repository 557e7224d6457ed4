"""Tasks for a model in a sample vault, through Toolwire's tool loop, with every call allowed.

The last answer and the notes afterwards decide whether a task succeeded. Every note that the task does not
name must be unchanged. Two tasks need no tool, and succeed only if the model makes no call.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from pathlib import Path

from toolwire.gateway.pipeline import Gateway
from toolwire.settings.types import Settings
from toolwire.store.store import Store
from toolwire.surfaces.terminal.surface import RuleSurface
from toolwire.tools.approvals import Approvals
from toolwire.tools.contract import Asking, system_prompt
from toolwire.tools.executor import Executor, Toolbox
from toolwire.tools.loop import Budget, Called, Conversation, Ended, GatewayModel, SaidText
from toolwire.tools.rules import Rule
from toolwire.tools.vault_tools import opened

BUDGET = Budget(rounds=5, seconds=240)
NOTES = {
    "Travel/Lisbon.md": "# Lisbon\n\nFour nights in May. Hotel Miradouro costs 119 a night. #travel\n\n"
    "- [ ] Book the train\n- [x] Ask for the days off\n",
    "Travel/Oslo.md": "# Oslo\n\nThe ferry leaves at 17:40 from pier 4. #travel\n",
    "Recipes/Bread.md": "# Bread\n\n500 g of rye flour, 350 g of water, ten hours of rest. #recipe\n",
    "Recipes/Soup.md": "# Leek soup\n\nThree leeks, two potatoes, a spoon of nutmeg. #recipe\n",
    "Projects/Website.md": "# Website\n\nWith [[Mara]].\n\n- [ ] Renew the domain\n- [ ] Write the imprint\n",
    "Projects/Garden.md": "# Garden\n\nTomatoes are sown in March, beans in May.\n",
    "People/Mara.md": "# Mara\n\nDesigner. Her birthday is on 9 October.\n",
}


@dataclass(frozen=True, slots=True)
class Task:
    """A task, and what must be true after it.

    `asked`: the question. `answer`: words that the last answer must contain, in upper or lower case. `notes`:
    the texts, by path, of the notes that the task changes; white space at their ends does not count. `tools`:
    False if the right answer needs no tool.
    """

    asked: str
    answer: tuple[str, ...] = ()
    notes: Mapping[str, str] = field(default_factory=dict)
    tools: bool = True


TASKS = (
    Task("How much does Hotel Miradouro cost a night, according to my notes?", ("119",)),
    Task("When does the ferry to Oslo leave? It is in my notes.", ("17:40",)),
    Task("Search my notes for nutmeg. Which recipe uses it?", ("soup",)),
    Task("Read Projects/Garden.md. In which month are tomatoes sown?", ("march",)),
    Task("When is Mara's birthday? Look into my notes.", ("october",)),
    Task("Which notes are in the folder Recipes?", ("bread", "soup")),
    Task("Which tasks are still open in Projects/Website.md?", ("domain", "imprint")),
    Task("Which note links to People/Mara.md?", ("website",)),
    Task(
        "Create the note Ideas/Podcast.md with the text: Interview Mara",
        notes={"Ideas/Podcast.md": "Interview Mara"},
    ),
    Task(
        "In Recipes/Bread.md, replace rye flour by spelt flour.",
        notes={"Recipes/Bread.md": NOTES["Recipes/Bread.md"].replace("rye flour", "spelt flour")},
    ),
    Task(
        "In Travel/Lisbon.md, mark the task Book the train as done.",
        notes={"Travel/Lisbon.md": NOTES["Travel/Lisbon.md"].replace("[ ] Book", "[x] Book")},
    ),
    Task("What is 7 times 8?", ("56",), tools=False),
    Task("How do you say good morning in French?", ("bonjour",), tools=False),
)


@dataclass(slots=True)
class Done:
    """The result of a task: whether it succeeded, the calls, the last answer, and how the turn ended."""

    right: bool
    called: list[str]
    said: str
    ended: str
    seconds: float


def succeeded(task: Task, called: Sequence[str], said: str, notes: Mapping[str, str]) -> bool:
    """Grades a task by the last answer, the calls, and all notes afterwards."""
    wanted = {path: text.strip() for path, text in {**NOTES, **task.notes}.items()}
    kept = {path: text.strip() for path, text in notes.items()} == wanted
    answered = all(word in said.lower() for word in task.answer)
    return kept and answered and (task.tools or not called)


async def run(gateway: Gateway, model: str, task: Task) -> Done:
    """Runs a task in a new vault and a new conversation."""
    with tempfile.TemporaryDirectory(prefix="toolwire-tasks-") as folder:
        return await _run(gateway, model, task, Path(folder).resolve())


async def _run(gateway: Gateway, model: str, task: Task, folder: Path) -> Done:
    root = folder / "vault"
    for path, text in NOTES.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text, "utf-8")
    store = Store(f"sqlite:///{folder}/store.db")
    called: list[str] = []
    said, ended = "", ""
    started = time.perf_counter()
    try:
        async with opened(Settings(), root, folder / "index") as tools:
            approvals, toolbox = Approvals(store), Toolbox(tools)
            allowed = [Rule(name, name) for name in toolbox.tools]
            executor = Executor(toolbox, approvals, RuleSurface(approvals, allowed, lambda: toolbox))
            conversation = Conversation(
                GatewayModel(gateway),
                model,
                executor,
                Asking("tasks", model, "bench"),
                messages=[{"role": "system", "content": system_prompt(tools)}],
                budget=BUDGET,
                options={"temperature": 0, "seed": 1, "max_tokens": 256},
            )
            async with aclosing(conversation.turn(task.asked)) as happenings:
                async for happening in happenings:
                    if isinstance(happening, SaidText):
                        said += happening.text
                    elif isinstance(happening, Called):
                        called += [f"{call.name}({call.arguments})" for call in happening.calls]
                        said = ""  # only the last answer counts
                    elif isinstance(happening, Ended):
                        ended = f"{happening.why} {happening.words}".strip()
    finally:
        await store.close()
    notes = {path.relative_to(root).as_posix(): path.read_text("utf-8") for path in root.rglob("*.md")}
    passed = succeeded(task, called, said, notes)
    return Done(passed, called, said, ended, time.perf_counter() - started)
