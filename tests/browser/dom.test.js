// Building elements: text stays text, and what could become a script is refused.

import './page.js'

import assert from 'node:assert/strict'
import { describe, it } from 'node:test'
import {
  ago,
  banner,
  bytes,
  counted,
  h,
  ms,
  svg,
  tabList,
  text,
} from '../../src/toolwire/surfaces/web/static/dom.js'

describe('h', () => {
  it('takes children of every kind, and leaves out what is nothing', () => {
    const node = h('p', null, 'a', 1, [h('b', null, 'c'), [null, undefined, false, true, ['d']]], 0)
    assert.equal(node.innerHTML, 'a1<b>c</b>d0')
  })

  it('makes markup text', () => {
    assert.equal(h('p', null, '<img src=x onerror=x()>').children.length, 0)
  })

  it('sets attributes, properties, data and custom properties', () => {
    const node = h('input', {
      class: 'a',
      value: 'v',
      disabled: true,
      required: false,
      'aria-label': 'x',
      'aria-checked': false,
      dataset: { id: '1', none: null },
      vars: { '--share': 0.5 },
    })
    assert.equal(node.value, 'v')
    assert.equal(node.disabled, true)
    assert.equal(node.hasAttribute('required'), false)
    assert.equal(node.getAttribute('aria-checked'), 'false')
    assert.deepEqual({ ...node.dataset }, { id: '1' })
    assert.equal(node.style.getPropertyValue('--share'), '0.5')
  })

  it('calls handlers with the event', () => {
    /** @type {string[]} */
    const events = []
    h('button', { onclick: (event) => events.push(event.type) }).click()
    assert.deepEqual(events, ['click'])
  })

  it('refuses a handler that is not a function, inline styles and documents', () => {
    for (const [name, value] of [
      ['onclick', 'x()'],
      ['style', 'color: red'],
      ['srcdoc', '<p>'],
    ])
      assert.throws(() => h('p', Object.fromEntries([[name, value]])), TypeError)
  })

  it('drops addresses that run a script', () => {
    for (const href of ['javascript:x()', ' JavaScript:x()', 'data:text/html,x', 'vbscript:x', 'x.html'])
      assert.equal(h('a', { href }).hasAttribute('href'), false, href)
    for (const href of ['https://example.org', '/ui', '#x', '?a', 'mailto:a@b.example'])
      assert.equal(h('a', { href }).getAttribute('href'), href)
  })

  it('makes SVG elements in their namespace', () => {
    assert.equal(svg('path', { d: 'M0 0' }).namespaceURI, 'http://www.w3.org/2000/svg')
  })
})

describe('text', () => {
  it('does not touch a node that has the text already', () => {
    const node = h('p', null, 'same')
    const { firstChild } = node
    assert.equal(text(node, 'same').firstChild, firstChild)
    assert.equal(text(node, null).textContent, '')
  })
})

describe('a tab list', () => {
  it('has one tab stop, and moves by arrow keys, around the ends', () => {
    /** @type {string[]} */
    const picked = []
    const items = ['a', 'b', 'c'].map((id) => ({ id, label: id }))
    const list = tabList(items, 'a', (id) => picked.push(id))
    document.body.append(list)
    const tabs = /** @type {HTMLElement[]} */ ([...list.children])
    tabs[0].focus()
    for (const key of ['ArrowRight', 'End', 'ArrowRight', 'ArrowLeft', 'Home', 'x']) {
      const event = new Event('keydown', { bubbles: true, cancelable: true })
      list.dispatchEvent(Object.assign(event, { key }))
    }
    assert.deepEqual(picked, ['b', 'c', 'a', 'c', 'a'])
    assert.deepEqual(
      tabs.map((tab) => tab.tabIndex),
      [0, -1, -1],
    )
    list.remove()
  })
})

describe('a banner', () => {
  it('is an alert only if it is bad, and can be dismissed', () => {
    let closed = 0
    const node = banner('x', 'bad', () => {
      closed += 1
    })
    document.body.append(node)
    assert.equal(node.getAttribute('role'), 'alert')
    assert.equal(banner('x').getAttribute('role'), 'status')
    node.querySelector('button')?.click()
    assert.equal(closed, 1)
    assert.equal(node.isConnected, false)
  })
})

describe('numbers', () => {
  it('writes sizes', () => {
    const sizes = [null, 0, 999, 1_000, 99_949, 123_456, 5e9, 5e15].map(bytes)
    assert.deepEqual(sizes, ['', '0 B', '999 B', '1.0 KB', '99.9 KB', '123 KB', '5.0 GB', '5000000 GB'])
  })

  it('writes times', () => {
    const times = [null, 0, 0.44, 12.4, 999, 1_000, 12_345, 60_000, 3_600_000, 5_400_000].map(ms)
    const expected = [
      '',
      '0.0 ms',
      '0.4 ms',
      '12 ms',
      '999 ms',
      '1.00 s',
      '12.3 s',
      '1 min 0 s',
      '1 h 0 min',
      '1 h 30 min',
    ]
    assert.deepEqual(times, expected)
  })

  it('counts', () => {
    assert.equal(counted(1, 'file'), '1 file')
    assert.equal(counted(0, 'match', 'matches'), '0 matches')
  })

  it('says how long ago something was', () => {
    const now = Date.UTC(2026, 0, 10)
    const since = (/** @type {number} */ seconds) => ago(new Date(now - seconds * 1000), now)
    assert.deepEqual([-30, 0, 44].map(since), ['just now', 'just now', 'just now'])
    assert.deepEqual([45, 3_599, 3_600, 86_400].map(since), ['1 min ago', '60 min ago', '1 h ago', '1 d ago'])
    assert.match(since(8 * 86_400), /2026/)
  })
})
