// The shell: who is signed in, where we are, and whether the server is there.
//
// A page is a module with `title` and `open(main, context)`, which returns a function that closes it; that function may have `go(id)`, by which the
// page itself goes from one of its addresses to another.

import * as api from './api.js'
import { banner, clear, h, icon, text } from './dom.js'
import { live } from './live.js'
import { signIn } from './signin.js'

const PAGES = [
  {
    name: 'chat',
    label: 'Chat',
    icon: 'chat',
    path: '/',
    match: /^\/(?:ui(?:\/(?:chat(?:\/([^/]+))?\/?)?)?)?$/,
    load: () => import('./chat.js'),
  },
  {
    name: 'inbox',
    label: 'Inbox',
    icon: 'inbox',
    path: '/ui/inbox',
    match: /^\/ui\/inbox\/?$/,
    load: () => import('./inbox.js'),
  },
  {
    name: 'wire',
    label: 'Wire',
    icon: 'wire',
    path: '/ui/wire',
    match: /^\/ui\/wire(?:\/([^/]+))?\/?$/,
    load: () => import('./wire.js'),
  },
  {
    name: 'connect',
    label: 'Connect',
    icon: 'plug',
    path: '/ui/connect',
    match: /^\/ui\/connect\/?$/,
    load: () => import('./connect.js'),
  },
  {
    name: 'settings',
    label: 'Settings',
    icon: 'sliders',
    path: '/ui/settings',
    match: /^\/ui\/settings\/?$/,
    load: () => import('./settings.js'),
  },
]
const GONE_AFTER_MS = 1_500
const PROBE_MS = 3_000

const main = h('main', { id: 'main', tabindex: '-1' })
const news = h('div', { class: 'visually-hidden', 'aria-live': 'polite', role: 'status', id: 'news' })
const bar = h('div', { class: 'shell-banner' })
const count = h('span', { class: 'count', hidden: true })
const links = new Map()
const context = { session: null, api, live, navigate, announce, id: undefined }

let page = null
let title = ''
let pending = 0
let opening = 0

// --- the frame -------------------------------------------------------------------------------------------------------------------------------------

function shell() {
  const items = PAGES.map(({ name, label, icon: drawn, path }) => {
    const link = h(
      'a',
      { class: 'nav-link', href: path },
      icon(drawn, 19),
      h('span', null, label),
      name === 'inbox' ? count : null,
    )
    links.set(name, link)
    return h('li', null, link)
  })
  const brand = h(
    'a',
    { class: 'brand', href: '/' },
    h('img', { src: '/ui/static/favicon.svg', alt: '', width: '22', height: '22' }),
    'Toolwire',
  )
  const state = h('span', { class: 'connection' }, '')
  live.on('state', () => {
    connection(state)
    if (live.state === 'lost') refreshed() // the session may have ended in another tab
  })
  connection(state)
  const nav = h(
    'nav',
    { class: 'shell-nav', 'aria-label': 'Pages' },
    brand,
    h('ul', { class: 'nav-links' }, items),
    h('div', { class: 'nav-foot' }, state, themeButton()),
  )
  return [
    h(
      'a',
      {
        class: 'skip',
        href: '#main',
        onclick: (event) => {
          event.preventDefault()
          main.focus()
        },
      },
      'Skip to the content',
    ),
    h('div', { class: 'shell' }, nav, h('div', { class: 'shell-main' }, bar, main)),
    news,
  ]
}

function themeButton() {
  const dark = () =>
    (document.documentElement.dataset.theme ??
      (matchMedia('(prefers-color-scheme: dark)').matches ? 'dark' : 'light')) === 'dark'
  const button = h('button', { type: 'button', class: 'button quiet square', onclick: toggle })
  function draw() {
    button.setAttribute('aria-label', dark() ? 'Use the light theme' : 'Use the dark theme')
    button.title = button.getAttribute('aria-label')
    clear(button, icon(dark() ? 'sun' : 'moon'))
  }
  function toggle() {
    const theme = dark() ? 'light' : 'dark'
    document.documentElement.dataset.theme = theme
    try {
      localStorage.setItem('toolwire-theme', theme)
    } catch {
      // it holds for this tab
    }
  }
  matchMedia('(prefers-color-scheme: dark)').addEventListener('change', draw)
  new MutationObserver(draw).observe(document.documentElement, { attributeFilter: ['data-theme'] }) // the settings change it too
  draw()
  return button
}

let gone = 0
let probing = 0
function connection(state) {
  const open = live.state === 'open'
  clearInterval(probing)
  if (!open && context.session) probing = setInterval(refreshed, PROBE_MS) // a server that is back may not know us any more
  state.classList.toggle('lost', !open)
  text(state, open ? 'Connected' : 'Connecting…')
  clearTimeout(gone)
  if (open) {
    if (bar.dataset.gone) announce('The server is back.')
    delete bar.dataset.gone
    clear(bar)
  } else {
    gone = setTimeout(() => {
      if (live.state === 'open' || !context.session || document.hidden) return
      bar.dataset.gone = 'yes'
      const again = h('button', { type: 'button', class: 'button small', onclick: live.now }, 'Try now')
      clear(bar, banner('Server gone, trying again… What you have written is kept.', 'warn', null, again))
    }, GONE_AFTER_MS)
  }
}

/** Tells those who listen rather than look. */
function announce(words) {
  text(news, '')
  requestAnimationFrame(() => text(news, words))
}

function entitle() {
  const name = [title, 'Toolwire'].filter(Boolean).join(' · ')
  document.title = pending ? `(${pending}) ${name}` : name
}

function waiting(number) {
  if (number > pending)
    announce(`${number} tool ${number === 1 ? 'call waits' : 'calls wait'} for your decision.`)
  pending = number
  count.hidden = number === 0
  clear(count, number > 99 ? '99+' : number, h('span', { class: 'visually-hidden' }, ' waiting'))
  entitle()
}

async function recount() {
  try {
    waiting((await api.get('/approvals?status=pending&limit=1')).pending)
  } catch {
    // the banner or the sign-in page says what is wrong
  }
}

// --- going from page to page -------------------------------------------------------------------------------------------------------------------------

function found(path) {
  for (const one of PAGES) {
    const match = one.match.exec(path)
    if (match) return { ...one, id: match[1] === undefined ? undefined : decoded(match[1]) }
  }
  return { ...PAGES[0], id: undefined }
}

function decoded(written) {
  try {
    return decodeURIComponent(written)
  } catch {
    return written
  }
}

function navigate(path, { replace = false } = {}) {
  if (path !== location.pathname + location.search)
    history[replace ? 'replaceState' : 'pushState'](null, '', path)
  return route()
}

async function route({ first = false } = {}) {
  const wanted = found(location.pathname)
  context.id = wanted.id
  if (page?.name === wanted.name && page.close.go) return page.close.go(wanted.id)
  const turn = (opening += 1)
  page?.close()
  page = null
  for (const [name, link] of links) {
    if (name === wanted.name) link.setAttribute('aria-current', 'page')
    else link.removeAttribute('aria-current')
  }
  clear(
    main,
    h('h1', { class: 'visually-hidden' }, wanted.label),
    h('div', { class: 'loading' }, h('span', { class: 'spinner' }), 'Loading…'),
  )
  main.scrollTop = 0
  try {
    const module = await wanted.load()
    if (turn !== opening) return undefined
    title = module.title
    entitle()
    clear(main)
    const close = (await module.open(main, context)) ?? (() => {})
    if (turn !== opening) return close()
    page = { name: wanted.name, close }
    if (!first) focusHeading()
  } catch (error) {
    if (turn !== opening || error.status === 401) return undefined
    const again = h('button', { type: 'button', class: 'button small', onclick: () => route() }, 'Try again')
    clear(
      main,
      h(
        'div',
        { class: 'page' },
        h('h1', null, wanted.label),
        banner(`This page could not be opened: ${error.message}`, 'bad', null, again),
      ),
    )
    if (!(error instanceof api.ApiError)) reportError(error)
  }
  return undefined
}

function focusHeading() {
  const heading = main.querySelector('h1')
  if (!heading || main.contains(document.activeElement)) return
  heading.tabIndex = -1
  heading.focus({ preventScroll: true })
}

/** The title of what a page shows, such as a conversation's. */
context.entitle = (words) => {
  title = words
  entitle()
}

document.addEventListener('click', (event) => {
  const link = event.target.closest?.('a[href]')
  if (
    !link ||
    event.defaultPrevented ||
    event.button ||
    event.metaKey ||
    event.ctrlKey ||
    event.shiftKey ||
    event.altKey
  )
    return
  if (
    link.target ||
    link.hasAttribute('download') ||
    link.origin !== location.origin ||
    /^\/(?:ui\/(?:api|static|enter)|v1)/.test(link.pathname)
  )
    return
  if (link.getAttribute('href').startsWith('#')) return
  event.preventDefault()
  navigate(link.pathname + link.search)
})
addEventListener('popstate', () => context.session && route())

// --- sessions ----------------------------------------------------------------------------------------------------------------------------------------

async function start() {
  try {
    context.session = await api.session()
  } catch (error) {
    return error.status === 401 ? signedOut() : unreachable(error)
  }
  if (location.search.includes('link=used')) history.replaceState(null, '', location.pathname)
  document.body.replaceChildren(...shell())
  live.start()
  recount()
  return route({ first: true })
}

function unreachable(error) {
  document.body.replaceChildren(
    h('main', { class: 'page' }, h('h1', null, 'Toolwire'), banner(`${error.message} Trying again…`, 'warn')),
  )
  setTimeout(start, 2_000)
}

function signedOut() {
  if (document.body.dataset.signedOut) return
  document.body.dataset.signedOut = 'yes'
  context.session = null
  live.stop()
  page?.close()
  page = null
  opening += 1
  document.title = 'Sign in · Toolwire'
  for (const dialog of document.querySelectorAll('dialog[open]')) dialog.close()
  signIn(() => {
    delete document.body.dataset.signedOut
    return start()
  })
}

api.onSignedOut(signedOut)
live.on('approvals', (told) => (typeof told.pending === 'number' ? waiting(told.pending) : recount()))
live.on('lost', recount)
live.on('settings', refreshed)
live.on('boot', (told) => {
  refreshed()
  if (context.session && told.version !== context.session.version) {
    const reload = h(
      'button',
      { type: 'button', class: 'button small', onclick: () => location.reload() },
      'Reload',
    )
    bar.append(banner(`Toolwire was updated to ${told.version}.`, '', null, reload))
  }
})

async function refreshed() {
  if (!context.session) return
  try {
    const told = await api.session()
    if (context.session) Object.assign(context.session, told)
  } catch (error) {
    if (error.status === 401) signedOut()
  }
}

start()
