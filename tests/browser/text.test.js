// Pure helpers: diffs, invisible characters, wire text, what became of a model's text, patterns and
// addresses.

import './page.js'

import assert from 'node:assert/strict'
import { describe, it } from 'node:test'
import { messageOf, query } from '../../src/toolwire/surfaces/web/static/api.js'
import { Arguments } from '../../src/toolwire/surfaces/web/static/arguments.js'
import { drawDiff, lines } from '../../src/toolwire/surfaces/web/static/diff.js'
import { banner } from '../../src/toolwire/surfaces/web/static/dom.js'
import { shortPath, timeLeft } from '../../src/toolwire/surfaces/web/static/inbox-entries.js'
import { escaped, prose, visible } from '../../src/toolwire/surfaces/web/static/invisible.js'
import { linked } from '../../src/toolwire/surfaces/web/static/links.js'
import { glob } from '../../src/toolwire/surfaces/web/static/settings-models.js'
import { jsonTree } from '../../src/toolwire/surfaces/web/static/wire-json.js'
import { curl, newest, statusesOf } from '../../src/toolwire/surfaces/web/static/wire-list.js'
import { reportRows } from '../../src/toolwire/surfaces/web/static/wire-overview.js'
import { pieces } from '../../src/toolwire/surfaces/web/static/wire-pieces.js'
import { RowSource } from '../../src/toolwire/surfaces/web/static/wire-source.js'
import {
  difference,
  gapText,
  gist,
  oneLine,
  pretty,
  toneOf,
} from '../../src/toolwire/surfaces/web/static/wire-text.js'
import { callNames, finishOf } from '../../src/toolwire/surfaces/web/static/wire-words.js'

/** @typedef {import('../../src/toolwire/surfaces/web/types').TurnLine} TurnLine */
/** @typedef {import('../../src/toolwire/surfaces/web/types').Row} Row */

describe('links in plain text', () => {
  /** @param {string} text */
  const draw = (text) => {
    const box = document.createElement('div')
    box.append(...linked(text))
    return box
  }

  it('are addresses of the web, and open another tab that learns nothing of this page', () => {
    const box = draw('See https://example.com/a?b=1 (and www.example.org), please.')
    const links = [...box.querySelectorAll('a')]
    assert.deepEqual(
      links.map((one) => [one.textContent, one.getAttribute('href')]),
      [
        ['https://example.com/a?b=1', 'https://example.com/a?b=1'],
        ['www.example.org', 'https://www.example.org/'],
      ],
    )
    for (const one of links) {
      assert.equal(one.getAttribute('rel'), 'noopener noreferrer nofollow')
      assert.equal(one.getAttribute('target'), '_blank')
    }
    assert.equal(box.textContent, 'See https://example.com/a?b=1 (and www.example.org), please.')
  })

  for (const text of [
    'javascript:alert(1)',
    'data:text/html,x',
    'file:///etc/passwd',
    '<a href="x">y</a> **bold** [a](b)',
    'xhttps://no.example',
    'https://',
    'www.',
  ])
    it(`leave "${text}" as it is`, () => {
      const box = draw(text)
      assert.deepEqual([box.children.length, box.textContent], [0, text])
    })
})

describe('a diff', () => {
  const diff =
    '--- a/x.md\n+++ b/x.md\n@@ -3,3 +3,4 @@ head\n same\n-old\n+new\n+--- not a file\n last\n\\ No newline at end of file\n'

  it('numbers its lines on both sides', () => {
    assert.deepEqual(
      lines(diff).map(({ kind, old, new: now }) => [kind, old, now]),
      [
        ['file', undefined, undefined],
        ['file', undefined, undefined],
        ['hunk', undefined, undefined],
        ['same', 3, 3],
        ['removed', 4, undefined],
        ['added', undefined, 4],
        ['added', undefined, 5],
        ['same', 5, 6],
        ['note', undefined, undefined],
      ],
    )
  })

  it('starts again with each hunk', () => {
    const found = lines('@@ -1 +1 @@\n-a\n+b\n@@ -90,2 +95 @@\n c')
    assert.deepEqual(found.at(-1), { kind: 'same', old: 90, new: 95, text: 'c' })
  })

  it('is drawn as text, with invisible characters written out and signs that are spoken', () => {
    const node = drawDiff('@@ -1 +1 @@\n-<img src=x onerror=x()>\n+a\u202eb')
    assert.equal(node.querySelector('img'), null)
    assert.match(node.textContent ?? '', /removed: <img src=x onerror=x\(\)>.*added: a⟨U\+202E⟩b/s)
    assert.equal(
      node.querySelector('.diff-lines')?.getAttribute('aria-label'),
      'Changes: 1 line added, 1 line removed',
    )
  })

  it('draws a very long diff in pieces, and loses no line', () => {
    const node = drawDiff(`@@ -0,0 +1,5000 @@\n${'+line\n'.repeat(5_000)}`)
    assert.ok(node.querySelectorAll('.diff-piece').length > 20)
    assert.equal(node.querySelectorAll('.diff-line.added').length, 5_000)
  })
})

describe('invisible characters', () => {
  it('are written out', () => {
    assert.equal(visible('a\u200bb\u202ec\u0000'), 'a⟨U+200B⟩b⟨U+202E⟩c⟨U+0000⟩')
    assert.equal(visible('\u{e0041}'), '⟨U+E0041⟩')
  })

  it('include half of a surrogate pair, but no whole one', () => {
    assert.equal(visible('😀'), '😀')
    assert.equal(visible('\ud83d!'), '⟨U+D83D⟩!')
    assert.equal(escaped('\udc00'), '\\udc00')
  })

  it('stay in prose only where emoji and words need them', () => {
    assert.equal(
      prose('a\u202eb\u{e0041}\r\n👩\u200d👩 ❤\ufe0f'),
      'a⟨U+202E⟩b⟨U+E0041⟩\r\n👩\u200d👩 ❤\ufe0f',
    )
  })

  it('are written out in the message of an error', () => {
    assert.equal(messageOf(new Error('no file a\u202eb')), 'no file a⟨U+202E⟩b')
    assert.equal(messageOf('a\u200bb'), 'a⟨U+200B⟩b')
    assert.match(banner('a\u202eb', 'bad').textContent ?? '', /a⟨U\+202E⟩b/)
  })

  it('are escapes of JSON on the wire', () => {
    assert.equal(escaped('a\u202eb'), 'a\\u202eb')
    assert.equal(JSON.parse(`"${escaped('\u{e0041}')}"`), '\u{e0041}')
    assert.equal(escaped('a\r\nb\tc'), 'a\r\nb\tc')
  })
})

describe('wire text', () => {
  it('shows what is new in a chunk', () => {
    const chunk = {
      id: 'x',
      choices: [{ index: 1, delta: { content: 'hi' }, finish_reason: 'stop' }],
      usage: { n: 1 },
    }
    assert.equal(
      gist(`data: ${JSON.stringify(chunk)}`),
      'data: … {"content":"hi"} · index 1 · finish stop · usage {"n":1}',
    )
    for (const other of ['data: [DONE]', '{"choices": []}', '{"choices"', 'x'.repeat(9_000)])
      assert.equal(gist(other), other)
  })

  it('spreads JSON and the data of events, and nothing else', () => {
    assert.equal(pretty('{"a":[1]}'), '{\n  "a": [\n    1\n  ]\n}')
    assert.equal(pretty('event: x\ndata: {"a":1}\n'), 'event: x\ndata: {\n  "a": 1\n}\n')
    for (const other of ['plain', '{broken', 'data: {broken', 'data: [DONE]'])
      assert.equal(pretty(other), other)
  })

  it('keeps lines visible on one line', () => {
    assert.equal(oneLine('a \n\n  b\u200bc'), 'a ⏎ b\\u200bc')
  })

  it('tells gaps and labels apart', () => {
    assert.deepEqual([0, 0.04, 1.26, 12, 1_500].map(gapText), ['0', '0', '1.3 ms', '12 ms', '1.50 s'])
    const labels = [
      'CallBegin',
      'response.function_call_arguments.delta',
      'Thought',
      'Text 1',
      'Textile',
      'error',
      'data',
    ]
    assert.deepEqual(labels.map(toneOf), ['call', 'call', 'thought', 'text', 'other', 'bad', 'other'])
  })

  it('finds the difference of two texts', () => {
    assert.deepEqual(difference('abcd', 'abXd'), { before: 'ab', differs: 'c', after: 'd' })
    assert.deepEqual(difference('aa', 'aaa'), { before: 'aa', differs: '', after: '' })
    assert.deepEqual(difference('aaa', 'aa'), { before: 'aa', differs: 'a', after: '' })
    assert.deepEqual(difference('', 'x'), { before: '', differs: '', after: '' })
  })
})

describe('what became of the model’s text', () => {
  const read = { id: '1', name: 'read', arguments: '{"path":"a"}' }
  const write = { id: '2', name: 'write', arguments: '{}' }

  /** @param {string} wrote @param {import('../../src/toolwire/surfaces/web/types').Received} received */
  function kinds(wrote, received) {
    const found = pieces(wrote, received)
    assert.equal(found.map((one) => one.text).join(''), wrote, 'the pieces are not the text')
    return found.map((one) => [one.kind, one.text, one.calls])
  }

  it('is text where the client got it', () => {
    assert.deepEqual(kinds('Hello', { text: 'Hello' }), [['text', 'Hello', []]])
    assert.deepEqual(kinds('', { text: 'x' }), [])
  })

  it('is a call where its name is, and markup around it', () => {
    const wrote = 'Let me look.\n<call>{"name":"read","arguments":{"path":"a"}}</call>\n'
    const found = kinds(wrote, { text: 'Let me look.', calls: [read] })
    assert.deepEqual(
      found.map(([kind]) => kind),
      ['text', 'markup', 'call', 'markup'],
    )
    assert.deepEqual(found[2][2], [0])
  })

  it('tells two calls apart', () => {
    const wrote = '<call>{"name":"read"}</call>\n<call>{"name":"write"}</call>'
    const found = kinds(wrote, { calls: [read, write] })
    assert.deepEqual(
      found.map(([kind, , calls]) => [kind, calls]),
      [
        ['call', [0]],
        ['call', [1]],
      ],
    )
  })

  it('joins calls that share their markup', () => {
    const found = kinds('[{"name":"read"},{"name":"write"}]', { calls: [read, write] })
    assert.deepEqual(
      found.map(([kind, , calls]) => [kind, calls]),
      [['call', [0, 1]]],
    )
  })

  it('is a thought where the client got it as one, and else was dropped', () => {
    const wrote = '<think>I should say hello to the person.</think>Hello tail'
    const found = kinds(wrote, { text: 'Hello', thoughts: 'I should say hello to the person.' })
    assert.deepEqual(
      found.map(([kind]) => kind),
      ['thought', 'text', 'markup'],
    )
  })

  it('survives empty names, names that are not there, and text that never matches', () => {
    kinds('abc', {
      text: 'xyz',
      calls: [
        { id: '', name: '' },
        { id: '', name: 'nowhere' },
      ],
    })
    kinds('aaaa', { text: 'aa aa', thoughts: '   ' })
    kinds('\ud83d\ude00 read', { text: '😀', calls: [read] })
  })
})

describe('turns', () => {
  const turn = /** @type {TurnLine} */ ({
    state: 'ended',
    at: 5,
    cancelled: false,
    error: null,
    status: 200,
    parked: false,
  })

  it('have the statuses that filters use', () => {
    assert.deepEqual(statusesOf(turn), ['ok'])
    assert.deepEqual(statusesOf({ ...turn, parked: true }), ['ok', 'parked'])
    assert.deepEqual(statusesOf({ ...turn, status: 503 }), ['error'])
    assert.deepEqual(statusesOf({ ...turn, cancelled: true, error: 'x' }), ['cancelled'])
  })

  it('are sorted by time, those that run first', () => {
    const running = /** @type {TurnLine} */ ({ ...turn, state: 'running', at: 1 })
    const sorted = [turn, { ...turn, at: 9 }, running].sort(newest)
    assert.deepEqual(
      sorted.map((one) => one.at),
      [1, 9, 5],
    )
  })

  it('end with tool calls where the backend only says stop', () => {
    assert.equal(finishOf({ finish: 'stop', calls: ['read'] }), 'tool_calls')
    assert.equal(finishOf({ finish: 'stop', calls: [] }), 'stop')
    assert.equal(callNames(['a', 'b', 'a']), 'a ×2, b')
  })

  it('have a report in any of three forms', () => {
    const row = { field: 'a=b', how: 'ignored', note: '' }
    assert.deepEqual(reportRows({ plan: null, report: ' a=b=ignored; ;n=honoured' }), [
      row,
      { field: 'n', how: 'honoured', note: '' },
    ])
    assert.deepEqual(reportRows({ plan: { report: [['a=b', 'ignored']] }, report: '' }), [row])
    assert.deepEqual(reportRows({ plan: { report: { 'a=b': 'ignored' } }, report: '' }), [row])
  })

  it('are shown as a command that a shell reads', () => {
    const session = /** @type {import('../../src/toolwire/surfaces/web/types').Session} */ ({
      base_url: 'http://x/v1',
      keys: true,
    })
    assert.match(curl(session, "it's"), /"model":"it'\\''s"/)
    assert.match(curl(session, 'm'), /Bearer \$TOOLWIRE_API_KEY/)
  })
})

describe('rows that are loaded by pages', () => {
  /** @param {number} total */
  function source(total) {
    /** @type {number[]} */
    const asked = []
    const rows = new RowSource(async (from, count) => {
      asked.push(from)
      const length = Math.min(count, total - from)
      return { rows: [...Array(length).keys()].map((at) => /** @type {Row} */ ([from + at, 'x', ''])), total }
    }, total)
    return { rows, asked }
  }

  it('are asked for once, however often they are wanted', async () => {
    const { rows, asked } = source(2_500)
    await Promise.all([rows.page(1), rows.page(1)])
    rows.want(1_000, 1_500)
    assert.deepEqual(asked, [1_000])
    assert.equal(rows.at(1_234)?.[0], 1_234)
    assert.equal(rows.at(0), null)
  })

  it('come in order, and thinned out if there are too many', async () => {
    const { rows } = source(5_000)
    const firsts = []
    for await (const [first] of rows.all(2)) firsts.push(first)
    assert.deepEqual(firsts, [0, 3_000])
  })

  it('are loaded again when the last page has grown, and after an error', async () => {
    let fails = true
    const rows = new RowSource(async () => {
      if (fails) throw new Error('gone')
      return { rows: [[0, 'x', '']], total: 1 }
    }, 1)
    await assert.rejects(rows.page(0), /gone/)
    assert.ok(rows.error)
    fails = false
    assert.equal((await rows.page(0)).length, 1)
    assert.equal(rows.error, null)
  })
})

describe('arguments', () => {
  const schema = {
    properties: { path: {}, mode: { enum: ['a', 'b'] }, count: { type: 'integer' }, deep: {} },
  }
  const given = { deep: { list: [1, 2] }, count: 3, mode: 'a', path: '<b>x</b>', flag: true }

  it('are fields in the order of the schema, with values that survive', () => {
    /** @type {unknown} */
    let edited
    const fields = new Arguments(given, schema, true, (value) => {
      edited = value
    })
    assert.deepEqual(
      fields.fields.map((one) => [one.name, one.kind]),
      [
        ['path', 'text'],
        ['mode', 'choice'],
        ['count', 'number'],
        ['deep', 'json'],
        ['flag', 'switch'],
      ],
    )
    assert.equal(fields.changed, false)
    fields.edited()
    assert.deepEqual(edited, { path: '<b>x</b>', mode: 'a', count: 3, deep: { list: [1, 2] }, flag: true })
  })

  it('are null while a field is invalid, and come back by a reset', () => {
    /** @type {unknown[]} */
    const edits = []
    const fields = new Arguments(given, schema, true, (value) => edits.push(value))
    const [, , count, deep] = fields.fields
    count.control.value = ''
    fields.edited()
    assert.equal(count.control.getAttribute('aria-invalid'), 'true')
    count.control.value = '4'
    deep.control.value = '{broken'
    fields.edited()
    assert.deepEqual(edits, [null, null])
    assert.equal(fields.changed, true)
    fields.reset()
    assert.equal(fields.changed, false)
  })

  it('warn about characters that cannot be seen', () => {
    const fields = new Arguments({ path: 'a\u202eb' }, {}, true, () => {})
    assert.match(fields.node.textContent ?? '', /invisible characters: a⟨U\+202E⟩b/)
  })

  it('take no names from the prototype of objects', () => {
    const fields = new Arguments(JSON.parse('{"__proto__": 1, "constructor": "x"}'), schema, true, () => {})
    assert.deepEqual(
      fields.fields.map((one) => [one.name, one.kind]),
      [
        ['__proto__', 'number'],
        ['constructor', 'text'],
      ],
    )
  })
})

describe('a JSON tree', () => {
  it('shows text, folds what is deep, and builds the rest on request', () => {
    const node = jsonTree({
      a: '<img src=x>',
      b: [1, null, true],
      c: { d: { e: { f: { g: 1, h: [1, 2, 3, { i: 'x'.repeat(80) }] } } } },
    })
    assert.equal(node.querySelector('img'), null)
    assert.match(node.textContent ?? '', /"<img src=x>"/)
    assert.match(node.textContent ?? '', /\[1, null, true\]/)
    assert.ok(!(node.textContent ?? '').includes('xxx'))
  })

  it('cuts long strings and long lists', () => {
    const node = jsonTree({
      text: 'x'.repeat(1_000),
      list: [...Array(250).keys()].map((at) => ({ at, text: 'y'.repeat(80) })),
    })
    const more = [...node.querySelectorAll('button')].map((one) => one.textContent)
    assert.deepEqual(more, ['… 842 more characters', '150 more'])
    for (const button of node.querySelectorAll('button')) button.click()
    assert.ok((node.textContent ?? '').includes('x'.repeat(1_000)))
  })
})

describe('small helpers', () => {
  it('match models by patterns as the server does', () => {
    const matches = (/** @type {string} */ pattern, /** @type {string} */ id) => glob(pattern).test(id)
    assert.ok(matches('*', 'any/thing:1') && matches('ollama/*', 'ollama/x') && matches('gpt-?', 'gpt-4'))
    assert.ok(matches('[ab]*', 'abc') && matches('[!a]', 'b') && matches('a.b', 'a.b'))
    assert.ok(
      !matches('ollama/*', 'xollama/y') &&
        !matches('a.b', 'axb') &&
        !matches('[!a]', 'a') &&
        !matches('gpt-?', 'gpt-44'),
    )
    assert.ok(!matches('(a', 'a') && matches('(a', '(a') && !matches('[z-a]', 'b'))
  })

  it('write addresses with those parameters that have a value', () => {
    assert.equal(query('/turns', { a: '', b: null, c: undefined }), '/turns')
    assert.equal(query('/turns', { model: 'a b&c', limit: 0 }), '/turns?model=a+b%26c&limit=0')
  })

  it('count down, and keep the end of a path', () => {
    assert.deepEqual([0, 9, 61, 3_600, 7_260].map(timeLeft), [
      'expired',
      '0:09 left',
      '1:01 left',
      '1 h 0 min left',
      '2 h 1 min left',
    ])
    assert.equal(shortPath('a.md'), 'a.md')
    assert.equal(shortPath(`${'x/'.repeat(60)}end.md`).length, 52)
    assert.match(shortPath(`${'x/'.repeat(60)}end.md`), /^….*end\.md$/)
  })
})
