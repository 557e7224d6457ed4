"""Whatever a model, note, tool or person writes stays text: no markup, script or request, on any page."""

from __future__ import annotations

import json
import re
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Dialog, Locator, Page, Request, expect

HOSTILE = Path(__file__).parents[1] / "doubles" / "hostile_mcp.py"
# Each would call xss(), fetch from evil.example or insert an element if it were treated as more than text.
SCRIPTS = [
    "<script>xss()</script>",
    "<ScRiPt src=//evil.example/a.js></sCrIpT>",
    "<script\x0c type=module>import('//evil.example/m.js')</script >",
    "<<script>xss();//<</script>",
    "</script><script>xss()</script>",
    "<scr<script>ipt>xss()</scr</script>ipt>",
    "<script>/*</textarea></title></style>*/xss()</script>",
    "<noscript><p title='</noscript><img src=x onerror=xss()>'>",
    "<template><script>xss()</script></template>",
    "<iframe srcdoc='<script>parent.xss()</script>'></iframe>",
    "<iframe src=javascript:parent.xss()></iframe>",
    "<object data=javascript:xss()></object>",
    "<embed src=data:text/html;base64,PHNjcmlwdD54c3MoKTwvc2NyaXB0Pg==>",
    "<base href=//evil.example/>",
    "<meta http-equiv=refresh content='0;url=//evil.example/'>",
    "<link rel=stylesheet href=//evil.example/a.css>",
    "<form action=//evil.example/><button>go</button></form>",
    "<form><button formaction=javascript:xss()>go</button></form>",
]
HANDLERS = [
    "<img src=x onerror=xss()>",
    '<img src="x" onerror="xss()" />',
    "<img/src/onerror=xss()>",
    '<img """><script>xss()</script>">',
    "<body onload=xss()>",
    "<input autofocus onfocus=xss()>",
    "<details open ontoggle=xss()>",
    "<video><source onerror=xss()></video>",
    "<audio src=x onerror=xss()>",
    "<marquee onstart=xss()>",
    "<a href=# onclick=xss()>click</a>",
    "<div onpointerover=xss() style=position:fixed;inset:0>over</div>",
    "<x contenteditable onblur=xss()>lose focus</x>",
    "<button popovertarget=p onbeforetoggle=xss()>p</button><div popover id=p>p</div>",
    '" onmouseover="xss()" x="',
    "' autofocus onfocus='xss()' x='",
    "<img src=x oneonerrorrror=xss()>",
]
FOREIGN = [
    "<svg onload=xss()>",
    "<svg><script>xss()</script></svg>",
    "<svg><animate onbegin=xss() attributeName=x dur=1s>",
    "<svg><a xlink:href=javascript:xss()><text>t</text></a></svg>",
    "<svg><use href='data:image/svg+xml,<svg id=x onload=xss()></svg>#x'></svg>",
    "<svg><foreignObject><iframe srcdoc=x></iframe></foreignObject></svg>",
    "<math><mi xlink:href=javascript:xss()>m</mi></math>",
    "<math><annotation-xml encoding='text/html'><img src=x onerror=xss()></annotation-xml></math>",
    "<svg><style><img src=x onerror=xss()></style></svg>",
]
STYLES = [
    "<style>@import '//evil.example/a.css';body{background:url(//evil.example/b)}</style>",
    "<div style=background:url(javascript:xss())>",
    "<div style='width:expression(xss())'>",
    "{{constructor.constructor('xss()')()}}",
    "${xss()} #{xss()} <%= xss() %>",
    "}</style><script>xss()</script>",
]
LINKS = [
    "[click](javascript:xss())",
    "[click](JaVaScRiPt:xss())",
    "[click](java\tscript:xss())",
    "[click](&#106;avascript:xss())",
    "[click](\x01javascript:xss())",
    "[click](vbscript:xss())",
    "[click](data:text/html,<script>xss()</script>)",
    "[click](data:text/html;base64,PHNjcmlwdD54c3MoKTwvc2NyaXB0Pg==)",
    "[click](file:///etc/passwd)",
    "[click](blob:null/x)",
    "[click](</javascript:xss()>)",
    "[click](//evil.example/x)",
    "[click](/ui/api/session)",
    "![picture](javascript:xss())",
    "![picture](//evil.example/p.png)",
    "![picture](data:image/svg+xml,<svg/onload=xss()>)",
    "<javascript:xss()>",
    "<vbscript:xss()>",
    "[reference][bad]",
    "[bad]: javascript:xss()",
    "[click](javascript:xss()//http://good.example)",
    "[[javascript:xss()|wiki]]",
    '[["><img src=x onerror=xss()>]]',
]
MALFORMED = [
    "<img src=x onerror=xss()//",
    "<img src=x:x onerror=xss()\n>",
    "<a href='jav&#x0A;ascript:xss()'>x</a>",
    "&lt;script&gt;xss()&lt;/script&gt;",
    "&#60;img src=x onerror=xss()&#62;",
    "+ADw-script+AD4-xss()+ADw-/script+AD4-",
    "\u202e>tpircs/<)(ssx>tpircs<",
    "\u2066<b>isolate</b>\u2069 \u200bzero",
    "<img\x00 src=x onerror=xss()>",
    "\ufeff<script>xss()</script>",
    "<!--><img src=x onerror=xss()>-->",
    "<![CDATA[<script>xss()</script>]]>",
    "<?xml version='1.0'?><x/>",
    "%3Cscript%3Exss()%3C/script%3E",
    "\\x3cscript\\x3exss()\\x3c/script\\x3e",
]
POLLUTION = [
    '{"__proto__": {"polluted": "yes"}}',
    '{"constructor": {"prototype": {"polluted": "yes"}}}',
    "__proto__[polluted]=yes",
    "toString",
    "hasOwnProperty",
]
PAYLOADS = [*SCRIPTS, *HANDLERS, *FOREIGN, *STYLES, *LINKS, *MALFORMED, *POLLUTION]
NESTED = [
    ">" * 4000 + " deep quote",
    "[" * 8000 + "](" * 8000,
    "*" * 9001 + "strong",
    "<b>" * 5000,
    "\n".join("  " * depth + "- item" for depth in range(300)),
    "![" * 3000 + "x" + "](javascript:xss())" * 3000,
    "`" * 5000 + "code",
    "| a " * 400 + "|\n" + "|-" * 400 + "|\n" + "| <img src=x onerror=xss()> " * 400 + "|",
]
NOTED = [payload for payload in PAYLOADS if "\0" not in payload]  # no note contains a null
PRINTABLE = [payload for payload in PAYLOADS if payload.isprintable()]
SHORT = [payload for payload in PRINTABLE if len(payload) < 90][::2][:50]  # a search shows at most fifty
MODELS = [
    "<img src=x onerror=xss()>",
    'a" onmouseover="xss()" x="',
    "javascript:xss()",
    "__proto__",
    "constructor",
    "</title><script>xss()</script>",
    "{{7*7}}",
]
WRITER = "<details open ontoggle=xss()>"
"""A model that calls tools."""
NAMES = [f"{payload.replace('/', '∕').replace(chr(92), '')}.md" for payload in SHORT]

WATCH = """() => {
  window.__news = []
  window.xss = () => { window.__xss = 'a script ran'; }
  for (const name of ['alert', 'confirm', 'prompt', 'print']) window[name] = () => { window.__xss = name }
  document.addEventListener('securitypolicyviolation', (event) =>
    window.__news.push(`policy: ${event.violatedDirective} ${event.blockedURI}`))
}"""
# What must not exist. The pages' forms have no action, their only picture is the icon, and they draw SVG
# without these parts.
LOOK = """() => {
  const found = [...window.__news]
  if (window.__xss) found.push(window.__xss)
  if ({}.polluted !== undefined || [].polluted !== undefined) found.push('prototype polluted')
  for (const one of document.querySelectorAll('details')) one.open = true
  const banned =
    'iframe, frame, object, embed, base, link:not(head > link), style, meta:not(head > meta), template, ' +
    'form[action], marquee, audio, video, source, math, foreignObject, animate, set, use, image, svg a, ' +
    'svg script, svg style, [srcdoc], [formaction], [ping], [popover], [contenteditable], body script, ' +
    'img:not([src="/ui/static/favicon.svg"]), [src]:not(img):not(script), x, b'
  for (const one of document.querySelectorAll(banned)) found.push(`element: ${one.outerHTML.slice(0, 120)}`)
  for (const one of document.querySelectorAll('*')) {
    for (const { name, value } of one.attributes) {
      if (name.startsWith('on')) found.push(`handler: ${name} of ${one.tagName}`)
      if (name === 'style' && /url\\(|expression|import|position/i.test(value)) found.push(`style: ${value}`)
      const safe = /^(https?:\\/\\/|mailto:|\\/(?!\\/)|#)/.test(value)
      if ((name === 'href' || name === 'xlink:href') && !safe) found.push(`href: ${value}`)
    }
  }
  return found
}"""
PAINTED_S = 20.0
TEXT = """(node) => {
  const fields = [...node.querySelectorAll('input, textarea, option')]
  return [node.textContent, ...fields.map((one) => one.value)].join('\\n')
}"""


def squeezed(text: str) -> str:
    """The letters and digits of a text, which must be visible.

    Marks may be read as Markdown, and invisible characters are escaped.
    """
    return re.sub(r"⟨U\+[0-9A-F]{4}⟩|\\u[0-9a-f]{4}|\\[fnt]|[^A-Za-z0-9]", "", text)


@dataclass
class Watched:
    """A tab that records everything that text must not cause."""

    page: Page
    origin: str
    key: str = ""
    news: list[str] = field(default_factory=list)

    def note(self, request: Request) -> None:
        known = (
            "/ui/static/",
            "/ui/api/",
            "/ui/chat",
            "/ui/inbox",
            "/ui/wire",
            "/ui/connect",
            "/ui/settings",
            "/ui/enter",
        )
        path = request.url.removeprefix(self.origin)
        if path == request.url or not (path in ("/", "/ui") or path.startswith(known)):
            self.news.append(f"request: {request.url}")

    def dialog(self, dialog: Dialog) -> None:
        self.news.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    def go(self, path: str) -> Page:
        self.page.goto(self.origin + path)
        expect(self.page.get_by_role("main")).to_be_visible()
        return self.page

    def inert(self, where: str, *payloads: str, within: Locator | None = None) -> None:
        """Checks that these texts are visible once the page has painted everything, and caused nothing."""
        missing, until = [*payloads], time.monotonic() + PAINTED_S
        while missing:
            text = squeezed((within or self.page.locator("body")).evaluate(TEXT))
            missing = [payload for payload in missing if squeezed(payload) not in text]
            assert not missing or time.monotonic() < until, (where, missing[:10])
            if missing:
                self.page.wait_for_timeout(50)
        found = [*self.news, *self.page.evaluate(LOOK)]
        assert not found, (where, found[:10])

    def call(self, method: str, path: str, body: Any = None) -> Any:
        self.key = self.key or self.page.evaluate("localStorage.getItem('toolwire-page')")
        answer = self.page.request.fetch(
            f"{self.origin}/ui/api{path}", method=method, data=body, headers={"x-toolwire-page": self.key}
        )
        assert answer.ok, (path, answer.text())
        return answer.json()

    def said(self, model: str, words: str) -> str:
        """Asks a model a question on the page, in a new conversation."""
        id: str = self.call("POST", "/conversations", {"model": model})["id"]
        page = self.go(f"/ui/chat/{id}")
        page.get_by_role("textbox", name="Message").fill(words)
        page.get_by_role("textbox", name="Message").press("Enter")
        return id

    def ended(self) -> None:
        expect(self.page.get_by_role("button", name="Retry").last).to_be_visible(timeout=30_000)


@pytest.fixture
def watched(browse: Any) -> Any:
    def watch(site: Any) -> Watched:
        browsing = browse(site)
        browsing.context.add_init_script(f"({WATCH})()")
        page = browsing.tab()
        out = Watched(page, site.url)
        page.on("dialog", out.dialog)
        page.context.on("request", out.note)
        page.context.on("page", lambda opened: out.news.append(f"a page opened: {opened.url}"))
        return out

    return watch


def raw(payloads: list[str]) -> str:
    return json.dumps("\n\n".join(payloads))


# What Markdown shows of a payload, if that differs from its text.
RENDERED = {
    "&lt;script&gt;xss()&lt;/script&gt;": "<script>xss()</script>",
    "&#60;img src=x onerror=xss()&#62;": "<img src=x onerror=xss()>",
    "[click](&#106;avascript:xss())": "[click](javascript:xss())",
    "[[javascript:xss()|wiki]]": "wiki",
}


def test_text_and_thoughts_of_a_model_stay_text(site: Any, watched: Any) -> None:
    assert len(PAYLOADS) >= 60
    here = site(
        models={
            "says": {
                "script": f"think {raw(PAYLOADS)}\nchunk 13\nraw {raw(PAYLOADS)}\nchunk 0\n"
                f"raw {json.dumps(chr(10) * 2 + 'The end.')}"
            },
            "nests": {
                "script": "\n---\n".join(
                    f'think {json.dumps(one)}\nraw {json.dumps(one)}\nraw "\\n\\nThe end."' for one in NESTED
                )
            },
        }
    )
    tab = watched(here)
    tab.said("says", "\n".join(PAYLOADS))
    tab.ended()
    wanted = [RENDERED.get(payload, payload) for payload in PAYLOADS]
    answer, question = (
        tab.page.get_by_role("article", name="Answer from says"),
        tab.page.get_by_role("article", name="You"),
    )
    for when in ("as it came", "as it was kept"):
        tab.inert(when, *wanted, within=answer)
        tab.inert(when, *PAYLOADS, within=question)
        assert answer.locator(".thought-text").evaluate("node => node.textContent.length") > 2000
        assert (
            answer.locator("a").evaluate_all("links => links.map((link) => link.href)")
            == ["http://good.example/"] * 2
        )
        tab.page.reload()
        tab.ended()
    tab.said("nests", "Go")
    answers = tab.page.get_by_role("article", name="Answer from nests")
    for place in range(len(NESTED)):
        if place:
            tab.page.get_by_role("textbox", name="Message").fill("Go")
            tab.page.get_by_role("textbox", name="Message").press("Enter")
        expect(answers.nth(place)).to_contain_text("The end.")
        expect(answers.nth(place).get_by_role("button", name="Retry")).to_be_visible()
    tab.inert("what is nested deep", "deep quote", "strong", "item")


def called(name: str, **arguments: Any) -> str:
    return f"call {name} {json.dumps(arguments)}"


TOOLS = {
    "reads": called("file_read", filePaths=NAMES) + "\n---\nraw The end.",
    "finds": called("vault_search", query="needle", limit=50) + "\n---\nsay {result}",
    "writes": called("note_write", filePath="<svg onload=xss()>.md", content="\n".join(NOTED))
    + "\n---\nsay {result}",
    "asks": called("vault_search", query="\n".join(PAYLOADS)) + "\n---\nsay {result}",
    "errs": called("<img/src=x/onerror=xss()>", **dict.fromkeys(PAYLOADS, "<img src=x onerror=xss()>"))
    + "\n---\nsay {result}",
    "breaks": 'call file_read {"filePaths": ["<img src=x onerror=xss()>\n---\nsay {result}',
    "fails": f"fail backend {' '.join(PRINTABLE)}",
}


@pytest.fixture
def hostile(site: Any, watched: Any) -> Any:
    """A tab on a server whose models, notes, tools and errors have hostile names and contents."""
    scripts = {
        **dict.fromkeys(MODELS, "say Hello from {model}."),
        **TOOLS,
        WRITER: called("file_read", filePaths=NAMES[:1]) + "\n---\nsay Hello.",
    }
    models = {name: {"script": script} for name, script in scripts.items()}
    notes = {name: f"# {payload}\n\nneedle {payload}\n" for name, payload in zip(NAMES, SHORT, strict=True)}
    return watched(site(models=models, notes=notes))


def test_notes_arguments_names_and_errors_stay_text_in_the_chat(hostile: Any) -> None:
    tab, page, dialog = hostile, hostile.page, hostile.page.get_by_role("dialog")
    tab.said("reads", "Go")
    expect(dialog).to_be_visible()
    tab.inert("files to read", *NAMES, within=dialog)
    dialog.get_by_role("button", name=re.compile("^Read [0-9]+ notes$")).click()
    tab.ended()
    tab.inert("files read", *NAMES, within=page.get_by_role("region", name="Tool call"))
    tab.said("finds", "Go")
    expect(dialog).to_be_visible()
    dialog.get_by_role("button", name="Search", exact=True).click()
    expect(dialog).to_contain_text("may be shared?")
    tab.inert("what was found", *NAMES, within=dialog)
    dialog.get_by_role("button", name="Select all", exact=True).click()
    dialog.get_by_role("button", name=re.compile("^Share [0-9]+ results$")).click()
    tab.ended()
    tab.inert("what was shared", *NAMES)
    tab.said("writes", "Go")
    expect(dialog).to_be_visible()
    tab.inert("a difference", *NOTED, within=dialog)
    dialog.get_by_role("button", name="Deny", exact=True).click()
    tab.ended()


def test_answers_errors_and_titles_stay_text_in_the_chat(hostile: Any) -> None:
    tab, page = hostile, hostile.page
    # A call of an unknown tool is shown as text.
    said = [RENDERED.get(payload, payload) for payload in PAYLOADS]
    shown = {
        "errs": said,
        "breaks": ["<img src=x onerror=xss()>"],
        "fails": PRINTABLE,
        **{name: [f"Hello from {name}."] for name in MODELS},
    }
    for name, payloads in shown.items():
        tab.said(name, "Go")
        tab.ended()
        tab.inert(name, *payloads, within=page.get_by_role("article", name="Answer from"))
    for payload in PAYLOADS:
        id = tab.call("POST", "/conversations", {"model": "asks"})["id"]
        tab.call("PATCH", f"/conversations/{id}", {"title": payload})
    count = len(tab.call("GET", "/conversations?limit=500")["conversations"])
    expect(page.get_by_role("complementary", name="Conversations").get_by_role("listitem")).to_have_count(
        count
    )
    page.get_by_role("button", name="Model:").click()
    tab.inert("models and titles", *MODELS, *PAYLOADS)


def test_reasons_requesters_and_files_stay_text_in_the_inbox(hostile: Any) -> None:
    tab, page, dialog = hostile, hostile.page, hostile.page.get_by_role("dialog")
    tab.said("asks", "Go")
    expect(dialog).to_be_visible()
    tab.inert("arguments", *PAYLOADS, within=dialog)
    asked = tab.call("GET", "/approvals?status=pending")["approvals"][0]
    tab.go("/ui/inbox")
    expect(page.get_by_role("button", name="Review")).to_be_visible()
    tab.inert("pending", *PAYLOADS)
    reasons = HANDLERS[:8] + FOREIGN[:6] + LINKS[:6]
    tab.call(
        "POST",
        f"/approvals/{asked['id']}/decision",
        {"token": asked["token"], "approved": False, "reason": " ".join(reasons)},
    )
    tab.said(WRITER, "Go")
    dialog.get_by_text("Remember this approval").click()
    dialog.get_by_role("radio", name="For every call of").check()
    tab.inert("what may be remembered", WRITER, within=dialog)
    dialog.get_by_role("button", name="Read 1 note").click()
    tab.ended()
    tab.said(WRITER, "Go")
    tab.ended()
    for which, payloads in {
        "decided": [*reasons, *PAYLOADS, WRITER],
        "expired": [],
        "grants": [WRITER],
        "audit": [WRITER],
    }.items():
        tab.go(f"/ui/inbox?tab={which}")
        expect(page.get_by_role("tab", selected=True)).to_have_text(re.compile(which, re.I))
        expect(page.get_by_text("Loading")).to_have_count(0)
        tab.inert(which, *payloads)


def test_names_patterns_and_errors_stay_text_in_the_settings_and_on_the_connect_page(hostile: Any) -> None:
    tab, page = hostile, hostile.page
    tab.call("PUT", "/settings", {"tool_models": [*MODELS, *PRINTABLE]})
    tab.go("/ui/settings")
    expect(page.get_by_role("switch", name="Tools in the chat")).to_be_checked()
    tab.inert("settings", *MODELS, *PRINTABLE)
    tab.go("/ui/connect?client=%3Cimg%20src=x%20onerror=xss()%3E")
    for name in (*MODELS, "fails"):
        page.get_by_label("Model", exact=True).select_option(name)
        expect(page.get_by_role("main")).to_contain_text(name)
        tab.inert(f"connect {name}", name)
    page.get_by_role("button", name="Test the round trip").click()
    expect(page.get_by_role("button", name="Test again")).to_be_visible()
    tab.inert(
        "a test that fails", "<script>xss()</script>", within=page.get_by_role("region", name="Test of")
    )


def test_what_an_mcp_server_says_stays_text_on_every_page(site: Any, watched: Any, tmp_path: Path) -> None:
    script = f"call evil__t {json.dumps({'x': PAYLOADS})}\n---\nsay {{result}}"
    words = {"says": "\n".join(PAYLOADS), "exit-at-start": " ".join(HANDLERS[:4])}
    names = {"says": "evil", "exit-at-start": "gone"}
    servers: dict[str, dict[str, Any]] = {}
    for mode, said in words.items():
        file = tmp_path / mode
        file.write_text(json.dumps(said))
        command = [sys.executable, "-S", str(HOSTILE), mode, "/dev/null", str(file)]
        servers[names[mode]] = {"command": command, "share": "ask"}
    tab = watched(site(models={"m": {"script": script}}, mcp=servers))
    page, dialog = tab.page, tab.page.get_by_role("dialog")
    tab.said("m", "Go")
    expect(dialog.get_by_role("button", name="Run", exact=True)).to_be_visible()
    tab.inert("the server's own words", *PAYLOADS, within=dialog)
    dialog.get_by_role("button", name="Run", exact=True).click()
    expect(dialog.get_by_role("button", name="Share the result")).to_be_visible()
    tab.inert("a result before it is shared", *PAYLOADS, within=dialog)
    dialog.get_by_role("button", name="Share the result").click()
    tab.ended()
    tab.inert("a shared result", *SHORT)
    tab.go("/ui/settings")
    server = page.get_by_role("list", name="MCP servers and their state").get_by_role("listitem")
    server.get_by_role("button", name="Check evil").click()
    expect(server.first).to_contain_text("t has changed. Models do not see this tool until you agree.")
    tab.inert("its last words", *HANDLERS[:4])
    tab.go("/ui/inbox")
    page.get_by_role("button", name="Review").click()
    expect(dialog.locator(".diff-line.added").first).to_be_visible()
    tab.inert("a changed definition", *SHORT, within=dialog)


def test_the_wire_inspector_shows_text_whatever_went_over_the_wire(site: Any, watched: Any) -> None:
    models = {
        name: {
            "script": f"think {raw(PAYLOADS)}\nraw {raw(PAYLOADS)}\n"
            f"call get_weather {json.dumps({'city': PAYLOADS})}"
        }
        for name in MODELS[:2]
    }
    models |= {
        MODELS[2]: {
            "script": f"raw {raw(PAYLOADS)}\ncall get_weather {json.dumps({'city': PAYLOADS})}",
            "tools": "emulated",
        }
    }
    models |= {"fails": {"script": f"fail backend {' '.join(PRINTABLE)}"}}
    tab = watched(site(models=models))
    tools = [
        {"type": "function", "function": {"name": "get_weather", "description": payload}}
        for payload in PAYLOADS[:1]
    ]
    body = {
        "stream": True,
        "tools": tools,
        "metadata": {"a": "<img src=x onerror=xss()>"},
        "user": "</script><script>xss()</script>",
    }
    text = json.dumps({**body, "messages": [{"role": "user", "content": payload} for payload in PAYLOADS]})
    odd = (
        ', "__proto__": {"polluted": "yes"}, "constructor": {"prototype": {"polluted": "yes"}}, "<b>": '
        '"<img src=x onerror=xss()>", "model": '
    )
    hostile = text.replace('"get_weather"', '"<img src=x onerror=xss()>"')
    for name, sent in (
        *((name, text) for name in models),
        ("no <img src=x onerror=xss()> model", text),
        ("fails", hostile),
    ):
        data = f"{sent[:-1]}{odd}{json.dumps(name)}}}"
        tab.page.request.post(
            f"{tab.origin}/v1/chat/completions", data=data, headers={"content-type": "application/json"}
        )
    tab.go("/ui/wire")
    expect(tab.page.get_by_role("row")).to_have_count(len(models) + 3)
    tab.inert("turns", *models)
    for turn in tab.call("GET", "/turns")["turns"]:
        for name in ("overview", "request", "frames", "events", "wire", "sides"):
            tab.go(f"/ui/wire/{turn['id']}#{name}")
            expect(tab.page.get_by_role("tab", selected=True)).to_have_id(f"turn-tab-{name}")
            rows = tab.page.get_by_role("option")
            if rows.count():
                rows.first.click()
                expect(tab.page.get_by_role("region", name="whole")).to_be_visible()
            answered = turn["model"] in MODELS
            payloads = {"request": PAYLOADS, "sides": PAYLOADS if answered else []}.get(name, [])
            tab.inert(f"{turn['model']} {name}", turn["model"], *payloads)
        if turn["model"]:
            tab.page.get_by_role("button", name="Replay").click()
            expect(tab.page.get_by_role("main")).to_contain_text(re.compile("Replayed|replayed|same|differ"))
            tab.inert(f"{turn['model']} replayed")
