// What the approval dialog sends: exactly what the person saw and selected. And how a conversation grows and
// sends messages.

import './page.js'

import assert from 'node:assert/strict'
import { readFileSync } from 'node:fs'
import { describe, it } from 'node:test'
import { Composer } from '../../src/toolwire/surfaces/web/static/composer.js'
import { h } from '../../src/toolwire/surfaces/web/static/dom.js'
import { keyedList } from '../../src/toolwire/surfaces/web/static/inbox-lists.js'
import { Question } from '../../src/toolwire/surfaces/web/static/question.js'
import { approveLabel, effectOf, lead } from '../../src/toolwire/surfaces/web/static/question-words.js'
import { ranArguments } from '../../src/toolwire/surfaces/web/static/ran-arguments.js'
import { snippet } from '../../src/toolwire/surfaces/web/static/snippet.js'
import { Thread } from '../../src/toolwire/surfaces/web/static/thread.js'
import { find, html, runFrames } from './page.js'

/** @typedef {import('../../src/toolwire/surfaces/web/types').Approval} Approval */
/** @typedef {import('../../src/toolwire/surfaces/web/types').CallPart} CallPart */
/** @typedef {import('../../src/toolwire/surfaces/web/types').Operation} Operation */

const touched = ['a.md', 'b.md', 'gone.md'].map((path) => ({
  key: path,
  path,
  size: 10,
  snippet: '',
  missing: path === 'gone.md',
  reason: '',
}))
const shown = { touched, diff: '', summary: '', pick: true, problem: '', action: '', facts: [], content: '' }
/** @type {Approval} */
const approval = {
  id: '1',
  created_at: 0,
  expires_at: 0,
  session: 's',
  surface: 'web',
  model: 'm',
  source: 'vault:/v',
  pin: '',
  tool: 'file_read',
  stage: 'run',
  title: 'Read notes',
  purpose: '',
  effect: 'read',
  arguments_json: '{}',
  rule: '',
  arguments: { paths: 'a.md', count: 1 },
  schema: {},
  shown,
  digest: 'd',
  problem_note: '',
  token: 't',
  status: 'pending',
  decided_at: null,
  decided_by: null,
  decision: null,
  editable: true,
  folder: 'Projects',
  note: '',
  place: 'in a web chat',
  needs_code: '',
  hint: '',
  scripted: '',
}

/** @param {Partial<Approval>} [changes] @param {(changed: boolean) => void} [onchange] */
const question = (changes = {}, onchange = () => {}) =>
  new Question({ ...approval, ...changes }, false, onchange)

describe('the approving button', () => {
  const cases = JSON.parse(readFileSync(new URL('../doubles/labels.json', import.meta.url), 'utf8'))
  for (const { stage, action, pick, there, picked, problem = '', label } of cases)
    it(`says "${label}" (${stage})`, () => {
      const some = Array.from({ length: there }, (_, at) => ({ ...touched[0], key: `${at}` }))
      const preview = { ...shown, touched: [...some, touched[2]], pick, action, problem }
      assert.equal(approveLabel(preview, stage, picked), label)
    })

  it('follows what is picked, and notices that nothing is', () => {
    let changes = 0
    const one = question({}, () => {
      changes += 1
    })
    assert.deepEqual([one.label, one.empty], ['Read 2 notes', false])
    for (const box of one.node.querySelectorAll('.picks input'))
      if (box instanceof HTMLInputElement && box.checked) {
        box.checked = false
        box.dispatchEvent(new Event('change'))
      }
    assert.deepEqual([one.label, one.empty, changes], ['Read notes', true, 2])
  })

  it('may be pressed if nothing could be picked', () => {
    const one = question({ stage: 'share', shown: { ...shown, touched: [] } })
    assert.deepEqual([one.label, one.empty], ['Tell the model that nothing was found', false])
  })
})

describe('a denial', () => {
  it('carries the reason, an approval does not', () => {
    assert.deepEqual(question().decision(false, 'No.'), { token: 't', approved: false, reason: 'No.' })
    assert.equal(question().decision(true, 'No.').reason, undefined)
  })
})

describe('the arguments that ran', () => {
  /** @param {Element} node @param {string} selector */
  const texts = (node, selector) => [...node.querySelectorAll(selector)].map((one) => one.textContent)

  it('strike through what the model asked for', () => {
    const node = ranArguments({ query: 'tea', limit: 10, old: 1 }, { query: '<b>', limit: 10, extra: true })
    assert.deepEqual(texts(node, 'dt'), ['query', 'limit', 'old', 'extra'])
    assert.deepEqual(texts(node, 'del'), ['The model asked for: tea', 'The model asked for: 1'])
    assert.deepEqual(texts(node, 'ins'), ['This ran: <b>', 'This ran: true'])
    assert.equal(node.querySelectorAll('dd')[1].textContent, '10')
  })

  it('are plain if nobody edited them', () => {
    const node = ranArguments({ query: 'tea' }, { query: 'tea' })
    assert.deepEqual([texts(node, 'del'), texts(node, 'ins'), texts(node, 'dd')], [[], [], ['tea']])
  })

  it('never take a name of the prototype for an argument', () => {
    assert.deepEqual(texts(ranArguments({}, { constructor: 'x' }), 'ins'), ['This ran: x'])
  })
})

describe('a piece of a note', () => {
  it('is Markdown with the matches marked, as whole words', () => {
    const node = snippet('## Tea\n\n- *Green* tea in a teapot\n- TEA', ['tea', 'TEA', 'Tea'])
    assert.deepEqual(
      [...node.querySelectorAll('mark')].map((one) => one.textContent),
      ['Tea', 'tea', 'TEA'],
    )
    assert.equal(node.querySelector('em')?.textContent, 'Green')
    assert.equal(node.querySelectorAll('li').length, 2)
    assert.equal(node.querySelector('h1, h2, h3, h4, h5, h6'), null)
  })

  it('marks words of scripts without spaces, and signs', () => {
    const marked = (/** @type {string} */ text, /** @type {string[]} */ words) =>
      [...snippet(text, words).querySelectorAll('mark')].map((one) => one.textContent)
    assert.deepEqual(marked('绿茶很好', ['茶']), ['茶'])
    assert.deepEqual(marked('learn C++ (now)', ['C++', '(now)']), ['C++', '(now)'])
  })

  it('has no links and no markup of its own, and hides nothing', () => {
    const source = '<img src=x onerror=xss()> [here](https://evil.example/x) [b](javascript:xss()) \u202e'
    const node = snippet(source, ['<img', 'here'])
    assert.equal(node.querySelector('a, img, script'), null)
    for (const words of [
      '<img src=x onerror=xss()>',
      'here (https://evil.example/x)',
      'javascript:',
      '⟨U+202E⟩',
    ])
      assert.ok(node.textContent?.includes(words), `${words} in ${html(node)}`)
  })
})

describe('a question', () => {
  it('denies with its token alone', () => {
    assert.deepEqual(question().decision(false), { token: 't', approved: false })
  })

  it('selects what a model asked to read, but nothing of what a search found', () => {
    assert.deepEqual(question().decision(true).picked, ['a.md', 'b.md'])
    assert.deepEqual(question({ stage: 'share' }).decision(true).picked, [])
  })

  it('never offers what is missing', () => {
    const one = question()
    for (const button of one.node.querySelectorAll('button'))
      if (button.textContent === 'Select all') button.click()
    assert.deepEqual(one.decision(true).picked, ['a.md', 'b.md'])
  })

  it('sends what is selected, and remembers only what was chosen', () => {
    const one = question()
    const box = /** @type {HTMLInputElement} */ (find(one.node, '.picks input'))
    box.checked = false
    const folder = /** @type {HTMLInputElement} */ (find(one.node, 'input[value=folder]'))
    assert.equal(one.decision(true).remember, 'once')
    folder.checked = true
    const sent = one.decision(true)
    assert.deepEqual([sent.picked, sent.remember, sent.folder], [['b.md'], 'folder', 'Projects'])
  })

  it('offers no folder where a call has none', () => {
    assert.equal(question({ folder: '' }).node.querySelector('input[value=folder]'), null)
  })

  it('is not ready while edited arguments are invalid or not yet previewed', () => {
    /** @type {boolean[]} */
    const changes = []
    const one = question({}, (changed) => changes.push(changed))
    one.edit(null)
    assert.equal(one.ready, false)
    one.arguments.fields[0].control.value = 'b.md'
    one.arguments.edited()
    assert.equal(one.ready, false)
    one.reset()
    assert.equal(one.ready, true)
    assert.deepEqual(changes, [false, false, true])
    assert.equal(one.decision(true).arguments, undefined)
    one.decidedHere()
  })

  it('carries the digest of the preview of edited arguments, and keeps what was deselected', () => {
    const one = question()
    const box = /** @type {HTMLInputElement} */ (find(one.node, '.picks input'))
    box.checked = false
    one.edited = { paths: 'b.md', count: 1 }
    one.digest = 'e'
    one.show({ ...shown, touched: touched.slice(0, 2) }, '', '')
    const sent = one.decision(true)
    assert.deepEqual([sent.arguments, sent.seen, sent.picked], [{ paths: 'b.md', count: 1 }, 'e', ['b.md']])
  })

  it('about a call to a server sends edited JSON as it was written, and a rule only if it was chosen', () => {
    /** @type {[string, string][]} */
    const facts = [
      ['Server', 'files'],
      ['The server says', '<b>Safe.</b> Approve \u202eall.'],
    ]
    const rule = 'read {"n": 1}'
    const call = {
      effect: /** @type {const} */ ('call'),
      tool: 'files__read',
      rule,
      arguments_json: '{\n  "n": 12345678901234567890\n}',
    }
    const calling = { ...shown, touched: [], pick: false, action: 'Run', facts }
    const one = question({ ...call, shown: calling, arguments: { n: 1 } })
    const field = /** @type {HTMLTextAreaElement} */ (find(one.node, 'textarea'))
    assert.equal(field.value, '{\n  "n": 12345678901234567890\n}')
    const said = find(one.node, '.foreign')
    assert.match(said.textContent ?? '', /<b>Safe\.<\/b> Approve ⟨U\+202E⟩all\./)
    assert.equal(said.querySelector('b'), null)
    assert.equal(one.label, 'Run')
    assert.deepEqual(one.decision(true), { token: 't', approved: true, remember: 'once' })
    const chosen = one.scopes.find(({ scope }) => scope === 'rule')
    assert.ok(chosen && one.ruleNote.hidden)
    one.scopes[0].input.checked = false
    chosen.input.checked = true
    one.showScope()
    assert.equal(one.label, 'Run, and always allow this')
    assert.ok(!one.ruleNote.hidden)
    assert.equal(one.ruleText.textContent, rule)
    assert.deepEqual(one.decision(true), { token: 't', approved: true, rule })
    one.edited = '{"n": 2}'
    one.digest = 'e'
    one.showRule('read {"n": 2}')
    const sent = one.decision(true)
    assert.deepEqual(
      [sent.arguments_json, sent.arguments, sent.seen, sent.rule],
      ['{"n": 2}', undefined, 'e', 'read {"n": 2}'],
    )
    one.showRule('')
    assert.equal(one.scope.scope, 'once')
    field.value = '[1'
    field.dispatchEvent(new Event('input'))
    assert.equal(one.ready, false)
    assert.match(one.node.textContent ?? '', /Not valid JSON/)
    one.decidedHere()
  })

  it('shows foreign text as text, with invisible characters written out', () => {
    const one = question({
      model: '<b>m</b>',
      title: 'a\u202eb',
      note: '<img src=x>',
      arguments: { '<i>': '<u>' },
    })
    assert.equal(one.node.querySelector('b, img, i, u'), null)
    assert.match(one.node.textContent ?? '', /a⟨U\+202E⟩b/)
  })

  it('says what an expiry means: in the share stage, the call has run already', () => {
    for (const [stage, nothing] of /** @type {const} */ ([
      ['run', 'The call did not run.'],
      ['share', 'Nothing was shared.'],
    ])) {
      const one = question({ stage })
      one.decidedElsewhere({ ...approval, stage, status: 'expired' })
      assert.equal(one.outcome, `Read notes: Expired. ${nothing}`)
    }
  })

  it('says what a decision causes', () => {
    /** @param {Partial<Approval>} changes */
    const effects = (changes) =>
      [true, false].map((approved) => effectOf({ ...approval, ...changes }, shown, approved))
    assert.deepEqual(effects({}), ['file_read may run once.', 'file_read does not run.'])
    assert.deepEqual(effects({ stage: 'share' }), [
      'The call has run. The model receives what you shared.',
      'The call has run. Its result is not shared.',
    ])
    const problem = { ...shown, problem: 'The text is not in the note.' }
    assert.match(effectOf(approval, problem, true), /so file_read does not run\. The model learns why\.$/)
  })

  it('is introduced by who asks and what for', () => {
    /** @param {Partial<Approval>} changes @returns {string} */
    const said = (changes) => h('p', null, lead([{ ...approval, ...changes }])).textContent ?? ''
    assert.equal(said({}), 'm in a web chat wants to use this tool:')
    const forLink = JSON.parse(JSON.stringify({ ...approval, session: undefined })) // as the link's page gets it
    assert.equal(h('p', null, lead([forLink])).textContent, 'm in a web chat wants to use this tool:')
    assert.match(
      said({ stage: 'share' }),
      /^The search is done\. Choose which results m in a web chat may see:$/,
    )
    assert.match(
      said({ stage: 'share', effect: 'call' }),
      /^The call has run\. Choose whether m .* the result:$/,
    )
  })

  it('says how it was decided elsewhere, and cannot be decided any more', () => {
    const one = question()
    one.decidedElsewhere({ ...approval, status: 'denied', decided_by: 'shell' })
    assert.equal(one.outcome, 'Read notes: Denied with toolwire approvals.')
    assert.deepEqual([one.pending, one.wanted], [false, false])
  })
})

describe('a conversation', () => {
  const thread = () => new Thread({ retry: () => {}, review: () => {} })
  const head = { conversation: 'c', prev: 0, seq: 1 }
  /** @type {CallPart} */
  const call = {
    type: 'call',
    id: '1',
    name: 'file_read',
    title: 'Read notes',
    arguments: '{"path": "<b>a</b>"}',
    state: 'asked',
    result: null,
    notice: '',
    shared: [],
    unread: {},
  }
  /** @type {Operation[]} */
  const turn = [
    { ...head, op: 'user', entry: { kind: 'user', at: 1, text: '<b>hi</b>' } },
    { ...head, op: 'answer', entry: { kind: 'answer', at: 2, model: 'm', parts: [], ended: null } },
    { ...head, op: 'thought', text: 'hm' },
    { ...head, op: 'text', text: 'Let me ' },
    { ...head, op: 'text', text: '*look*.' },
    { ...head, op: 'calls', parts: [call] },
    { ...head, op: 'call', id: '1', state: 'done', result: { ok: true }, shared: ['a.md'] },
    { ...head, op: 'text', text: 'Done.' },
    { ...head, op: 'ended', ended: { why: 'stop', words: '', usage: { output_tokens: 7 } } },
  ]

  it('grows by changes to what a reload would show', () => {
    const live = thread()
    for (const op of turn) assert.ok(live.apply(op))
    const entries = live.views.map((view) => view.entry)
    const loaded = thread()
    loaded.set(structuredClone(entries), false)
    live.run(false)
    runFrames()
    assert.equal(live.node.textContent, loaded.node.textContent)
    assert.equal(live.lastText, 'Let me *look*.\n\nDone.')
    assert.equal(live.node.querySelector('b'), null)
  })

  it('keeps the views of entries that did not change', () => {
    const one = thread()
    for (const op of turn) one.apply(op)
    const nodes = [...one.node.children]
    one.set(structuredClone(one.views.map((view) => view.entry)), false)
    assert.deepEqual([...one.node.children], nodes)
    one.set([{ kind: 'user', at: 9, text: 'other' }], false)
    assert.equal(one.node.children.length, 1)
  })

  it('refuses a change that fits nothing', () => {
    const one = thread()
    assert.equal(one.apply({ ...head, op: 'text', text: 'x' }), false)
    one.apply(turn[0])
    one.apply(turn[1])
    assert.equal(one.apply({ ...head, op: 'call', id: 'unknown', state: 'done' }), false)
  })

  it('offers a retry of the last answer only, and only while nothing runs', () => {
    const one = thread()
    for (const op of [...turn, ...turn]) one.apply(op)
    const retries = () =>
      [...one.node.querySelectorAll('button')].filter(
        (button) => button.textContent === 'Retry' && !button.hidden,
      )
    one.run(true)
    assert.equal(retries().length, 0)
    one.run(false)
    assert.equal(retries().length, 1)
  })
})

describe('a list that is drawn again', () => {
  it('keeps the nodes of rows that did not change', () => {
    const list = document.createElement('ul')
    const draw = keyedList(list)
    const make = () => document.createElement('li')
    draw(
      [
        { id: '1', text: 'a' },
        { id: '2', text: 'b' },
      ],
      make,
    )
    const [first, second] = list.children
    draw(
      [
        { id: '3', text: 'c' },
        { id: '1', text: 'a' },
        { id: '2', text: 'changed' },
      ],
      make,
    )
    assert.equal(list.children.length, 3)
    assert.equal(list.children[1], first)
    assert.notEqual(list.children[2], second)
    draw([], make)
    assert.equal(list.children.length, 0)
  })
})

describe('Composer', () => {
  /** A composer whose server accepts each message when the test says so. */
  const composer = () => {
    /** @type {string[]} */
    const sent = []
    /** @type {(() => void)[]} */
    const accept = []
    const made = new Composer({
      send: (message) => {
        sent.push(message)
        return new Promise((resolve) => accept.push(() => resolve(true)))
      },
      stop: () => {},
      left: null,
    })
    return { made, sent, accept }
  }

  it('sends the same words again if they were typed before the server accepted the first ones', async () => {
    const { made, sent, accept } = composer()
    made.set('Go')
    const first = made.submit()
    made.set('Go')
    made.submit()
    accept[0]?.()
    await first
    assert.deepEqual(sent, ['Go', 'Go'])
  })

  it('sends a message once if Enter is pressed twice', async () => {
    const { made, sent, accept } = composer()
    made.set('Go')
    const first = made.submit()
    made.submit()
    accept[0]?.()
    await first
    assert.deepEqual(sent, ['Go'])
    assert.equal(made.area.value, '')
  })
})
