// Markdown: the right nodes for honest text, only text for hostile text, and the same result however text is
// cut.

import './page.js'

import assert from 'node:assert/strict'
import { describe, it } from 'node:test'
import { target } from '../../src/toolwire/surfaces/web/static/links.js'
import { MarkdownStream, render } from '../../src/toolwire/surfaces/web/static/markdown.js'
import { inline } from '../../src/toolwire/surfaces/web/static/markdown-inline.js'
import {
  cells,
  cutPoint,
  spaces,
  startsBlock,
} from '../../src/toolwire/surfaces/web/static/markdown-lines.js'
import { elements, find, html, runFrames } from './page.js'

/** The markup of a text, without the pieces that only serve the layout. @param {string} source */
const drawn = (source) =>
  html(render(source)).replaceAll(/<div class="md-piece[^"]*">|<\/div>(?=$|<div class="md-piece)/g, '')

/** The markup of a text on one line. @param {string} source */
function line(source) {
  const node = document.createElement('p')
  node.append(...inline(source))
  return node.innerHTML
}

/** The markup of a text that arrives in pieces. @param {string[]} pieces @param {boolean} [eachFrame] */
function streamed(pieces, eachFrame = true) {
  const node = document.createElement('div')
  const stream = new MarkdownStream(node)
  for (const piece of pieces) {
    stream.append(piece)
    if (eachFrame) runFrames()
  }
  stream.end()
  runFrames()
  return html(node)
}

const SAMPLE = `# Title
Some *text* with **marks**, \`code\` and [a link](https://example.org/a_(b)).
Second line.

- one
- two
  - nested

  goes on
1. first
2. [x] done

> quote
> - in a list

\`\`\`js
const a = 1 < 2
  indented
\`\`\`

| a | b |
|---|--:|
| 1 | \`x|y\` |

---
The end 🎉`

describe('inline', () => {
  const cases = [
    ['*a* _b_', '<em>a</em> <em>b</em>'],
    ['**a** __b__', '<strong>a</strong> <strong>b</strong>'],
    ['***a***', '<strong><em>a</em></strong>'],
    ['~~a~~ ~b~', '<del>a</del> ~b~'],
    ['snake_case_name', 'snake_case_name'],
    ['2 * 3 * 4', '2 * 3 * 4'],
    ['**open', '**open'],
    ['a\\*b\\*', 'a*b*'],
    ['`a *b*`', '<code>a *b*</code>'],
    ['`` a ` b ``', '<code>a ` b</code>'],
    ['`open', '`open'],
    ['a\nb', 'a<br>b'],
    ['[[Note|shown]]', '<span class="wikilink" title="Note">shown</span>'],
    ['&amp; &lt; &#8364; &#x1F600;', '&amp; &lt; € 😀'],
    ['&#xD800; &#0; &unknown;', '&amp;#xD800; &amp;#0; &amp;unknown;'],
  ]
  for (const [source, expected] of cases) {
    it(`draws ${JSON.stringify(source)}`, () => assert.equal(line(source), expected))
  }

  it('links to the web and to mail, in a new tab and without a referrer', () => {
    for (const address of ['https://example.org/', 'http://example.org/?a=1&b=2', 'mailto:a@example.org']) {
      const node = document.createElement('p')
      node.append(...inline(`[x](${address})`))
      const link = find(node, 'a')
      assert.equal(link.getAttribute('href'), address)
      assert.equal(link.getAttribute('rel'), 'noopener noreferrer nofollow')
      assert.equal(link.getAttribute('target'), '_blank')
    }
  })

  it('finds bare addresses, without the punctuation after them', () => {
    assert.match(
      line('See https://example.org/a.'),
      /<a href="https:\/\/example.org\/a"[^>]*>https:\/\/example.org\/a<\/a>\.$/,
    )
    assert.match(
      line('(www.example.org)'),
      /^\(<a href="https:\/\/www.example.org\/"[^>]*>www.example.org<\/a>\)$/,
    )
    assert.equal(line('xhttps://example.org').includes('<a'), false)
  })

  it('makes a picture a link, which loads nothing', () => {
    const drawn = line('![cat](https://example.org/cat.png)')
    assert.match(drawn, /^<a href="https:\/\/example.org\/cat.png"/)
    assert.equal(drawn.includes('<img'), false)
  })

  it('puts no link into a link', () => {
    const node = document.createElement('p')
    node.append(...inline('[a [b](https://b.example/) c](https://a.example/)'))
    assert.equal(find(node, 'a').textContent, 'b')
    assert.equal(node.querySelector('a a'), null)
  })

  it('refuses every other kind of address', () => {
    const refused = [
      'javascript:x()',
      'JaVaScRiPt:x()',
      'java\tscript:x()',
      '\u0001javascript:x()',
      'data:text/html,x',
    ]
    for (const address of [
      ...refused,
      'vbscript:x',
      'file:///etc/passwd',
      'blob:null/x',
      '//evil.example/x',
      '/ui/api',
    ])
      assert.equal(target(address), null, address)
  })
})

describe('blocks', () => {
  it('draws headings below the page’s own, and skips no level', () => {
    assert.deepEqual(
      elements(render('# A\n### B\n###### C\n# D'))
        .map((one) => one.tagName)
        .filter((tag) => tag !== 'DIV'),
      ['H2', 'H3', 'H4', 'H2'],
    )
  })

  it('keeps nested lists, tasks and the first number', () => {
    const list = render('3. three\n4. four\n\n- [ ] open\n- [x] done\n  - nested')
    assert.equal(find(list, 'ol').getAttribute('start'), '3')
    assert.deepEqual(
      [...list.querySelectorAll('.task-box')].map((one) => one.getAttribute('aria-label')),
      ['to do:', 'done:'],
    )
    assert.equal(find(list, 'ul ul li').textContent, 'nested')
  })

  it('continues a paragraph in a quote without its mark', () => {
    assert.equal(drawn('> a\nb'), '<blockquote><p>a<br>b</p></blockquote>')
  })

  it('draws tables with their alignment, and cells with an escaped bar', () => {
    const table = render('| a | b |\n|:-:|--:|\n| x \\| y | `a|b` | more |')
    assert.deepEqual(
      [...table.querySelectorAll('th')].map((one) => one.className),
      ['center', 'right'],
    )
    assert.deepEqual(
      [...table.querySelectorAll('td')].map((one) => one.textContent),
      ['x | y', 'a|b'],
    )
  })

  it('takes a line of dashes without bars for a rule, not for a table', () => {
    assert.equal(render('a\n\n---\n').querySelector('table'), null)
  })

  it('keeps a fence inside a longer fence, and other fences inside it', () => {
    const code = find(render('````md\n```js\nx\n```\n~~~\n````\nafter'), 'code')
    assert.equal(code.textContent, '```js\nx\n```\n~~~')
  })

  it('keeps code in a list and in a quote, without their indent', () => {
    assert.equal(find(render('- a\n  ```\n  x\n    y\n  ```'), 'li code').textContent, 'x\n  y')
    assert.equal(find(render('> ```\n> x\n> ```'), 'blockquote code').textContent, 'x')
  })

  it('draws code that is never closed', () => {
    assert.equal(find(render('```\na\nb'), 'code').textContent, 'a\nb')
  })

  it('drops carriage returns at line ends', () => {
    assert.equal(drawn('a\r\nb\r\n'), '<p>a<br>b</p>')
  })

  it('bounds the depth of nesting', () => {
    const deep = render(`${'> '.repeat(500)}end`)
    assert.equal(deep.querySelectorAll('blockquote').length, 24)
    assert.match(deep.textContent ?? '', /> end$/)
  })
})

describe('hostile text', () => {
  const hostile = [
    '<script>alert(1)</script>',
    '<img src=x onerror=alert(1)>',
    '<svg onload=alert(1)>',
    '"><iframe srcdoc="<script>alert(1)</script>">',
    '[click](javascript:alert(1))',
    '[click](JAVASCRIPT&#58;alert(1))',
    '![p](data:text/html,<script>alert(1)</script>)',
    '<javascript:alert(1)>',
    '[a](https://e.example/" onmouseover="alert(1))',
    '[[x" onclick="alert(1)|<b>y</b>]]',
    '```"><script>alert(1)</script>\n<script>alert(1)</script>\n```',
    '| <img src=x onerror=alert(1)> | b |\n|---|---|\n| <script>x</script> | [x](vbscript:x) |',
    '# <style>*{display:none}</style>',
    '- [x] <form action=//evil.example><button>go</button></form>',
    '&lt;script&gt;alert(1)&lt;/script&gt;',
    '<!-- <script> -->',
    '\u202e<script>\u2066alert(1)',
  ]
  const allowed = new Set(
    'DIV P BR EM STRONG DEL CODE PRE SPAN A UL OL LI BLOCKQUOTE HR TABLE THEAD TBODY TR TH TD H2 H3 H4 H5 H6 BUTTON'.split(
      ' ',
    ),
  )

  /**
   * Fails if a node has an element, a handler or an address that Markdown does not make.
   *
   * @param {ParentNode} node
   */
  function assertInert(node) {
    for (const one of elements(node)) {
      if (one.closest('.copy')) continue // the page's own button
      assert.ok(allowed.has(one.tagName), `an element ${one.tagName}`)
      for (const { name, value } of one.attributes) {
        assert.ok(
          !name.startsWith('on') && name !== 'style' && name !== 'src' && name !== 'srcdoc',
          `an attribute ${name}`,
        )
        if (name === 'href') assert.match(value, /^(?:https?:\/\/|mailto:)/)
      }
    }
  }

  for (const source of hostile) {
    it(`stays text: ${JSON.stringify(source)}`, () => {
      const fragment = render(source)
      assertInert(fragment)
      assert.notEqual(fragment.textContent, '')
    })
    it(`stays text in one-character pieces: ${JSON.stringify(source)}`, () => {
      const node = document.createElement('div')
      const stream = new MarkdownStream(node)
      for (const char of source) {
        stream.append(char)
        runFrames()
        assertInert(node)
      }
    })
  }

  it('reads text of any shape in linear time', () => {
    const shapes = [
      '['.repeat(40_000),
      '*'.repeat(40_001),
      '`'.repeat(39_999),
      '![a]('.repeat(8_000),
      '<b>'.repeat(12_000),
      '> '.repeat(20_000),
      `${'| a '.repeat(10_000)}|`,
      '**a _b '.repeat(6_000),
      'https://'.repeat(5_000),
      `${'- '.repeat(10_000)}x`,
      '&amp'.repeat(10_000),
    ]
    for (const shape of shapes) {
      const before = performance.now()
      render(shape)
      const took = performance.now() - before
      assert.ok(took < 3_000, `${JSON.stringify(shape.slice(0, 12))} took ${took} ms`)
    }
  })
})

describe('long lines', () => {
  it('cuts a long line, and loses nothing', () => {
    const source = 'word '.repeat(5_000).trim()
    const fragment = render(source)
    assert.ok(fragment.querySelectorAll('p').length >= 3)
    assert.equal((fragment.textContent ?? '').replaceAll(/\s/g, ''), source.replaceAll(' ', ''))
  })

  it('does not cut a character in half', () => {
    const source = `${'x'.repeat(7_999)}${'😀'.repeat(9_000)}`
    for (const node of [render(source), render(`\`\`\`\n${source}\n\`\`\``)]) {
      for (const one of node.querySelectorAll('p, .code-piece'))
        assert.ok((one.textContent ?? '').isWellFormed(), 'half of a surrogate pair')
    }
  })

  it('cuts a text before a pair, but not one that is no pair', () => {
    assert.equal(cutPoint('ab😀', 0, 3), 2)
    assert.equal(cutPoint('ab😀', 0, 4), 4)
    assert.equal(cutPoint('ab\ud83dcd', 0, 3), 3)
    assert.equal(cutPoint('abc', 2, 10), 3)
  })

  it('keeps every line of long code, and copies all of it', () => {
    const lines = [...Array(1_000).keys()].map((number) => `line ${number}`)
    const code = find(render(`\`\`\`\n${lines.join('\n')}\n\`\`\``), 'code')
    const pieces = [...code.querySelectorAll('.code-piece')].map((one) => one.textContent)
    assert.ok(pieces.length > 5)
    assert.equal(pieces.join('\n'), lines.join('\n'))
  })

  it('continues the numbers of a long list', () => {
    const items = [...Array(150).keys()].map((number) => `${number + 1}. item`)
    const lists = [...render(items.join('\n')).querySelectorAll('ol')]
    assert.deepEqual(
      lists.map((one) => one.getAttribute('start')),
      [null, '61', '121'],
    )
    assert.equal(
      lists.reduce((sum, one) => sum + one.children.length, 0),
      150,
    )
  })
})

describe('a stream', () => {
  const whole = streamed([SAMPLE])

  it('draws the same as a whole text', () => {
    const node = document.createElement('div')
    node.append(render(SAMPLE))
    assert.equal(whole, html(node))
  })

  for (const size of [1, 2, 3, 7, 64]) {
    const pieces = SAMPLE.match(new RegExp(`.{1,${size}}`, 'gs')) ?? []
    it(`draws the same in pieces of ${size} characters`, () => assert.equal(streamed(pieces), whole))
    it(`draws the same in pieces of ${size} characters without a frame in between`, () =>
      assert.equal(streamed(pieces, false), whole))
  }

  it('joins a character whose halves arrive apart', () => {
    assert.match(streamed(['a \ud83d', '\ude00 b']), /<p>a 😀 b<\/p>/)
  })

  it('writes out characters that nobody sees', () => {
    const pieces = ['a\u202e', 'b\u{e0041} `c\u2066`\n\n```\n\u200b', 'x\n```']
    const text = streamed(pieces)
    for (const code of ['202E', 'E0041', '2066', '200B']) assert.ok(text.includes(`⟨U+${code}⟩`), code)
    assert.equal(/[\u202e\u2066\u200b]|\u{e0041}/u.test(text), false)
  })

  it('joins a line end whose halves arrive apart', () => {
    assert.match(streamed(['a\r', '\nb']), /<p>a<br>b<\/p>/)
  })

  it('shows strong text before it is closed, and takes that back if it never is', () => {
    const node = document.createElement('div')
    const stream = new MarkdownStream(node)
    stream.append('**bold')
    runFrames()
    assert.match(node.innerHTML, /<strong>bold<\/strong>/)
    stream.end()
    runFrames()
    assert.match(node.innerHTML, /<p>\*\*bold<\/p>/)
  })

  it('draws a long paragraph that grows the same as a whole one', () => {
    const source = 'Some *text* with `code` and **marks** in it. '.repeat(60)
    assert.equal(streamed(source.match(/.{1,9}/gs) ?? []), streamed([source]))
  })

  it('ignores text after its end', () => {
    const node = document.createElement('div')
    const stream = new MarkdownStream(node)
    stream.append('a')
    stream.end()
    stream.append('b')
    runFrames()
    assert.equal(node.textContent, 'a')
  })
})

describe('lines', () => {
  it('counts tabs as spaces up to the next stop', () => {
    assert.equal(spaces('\ta'), '    a')
    assert.equal(spaces('  \ta\tb'), '    a\tb')
  })

  it('splits cells at bars that are neither escaped nor in code', () => {
    assert.deepEqual(cells('| a | b \\| c | `d|e` |'), ['a', 'b | c', '`d|e`'])
    assert.deepEqual(cells('a|'), ['a'])
    assert.equal(cells('|'.repeat(500)).length, 101)
  })

  it('knows what starts a block', () => {
    for (const block of ['> a', '- a', '1. a', '# a', '---', '```', '~~~ js'])
      assert.ok(startsBlock(block), block)
    for (const other of ['a', '#a', '-a', '1.a', '``', '=== ']) assert.ok(!startsBlock(other), other)
  })
})
