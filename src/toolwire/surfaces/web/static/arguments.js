// A call's arguments as fields that can be edited, each by its schema: text, number, yes or no, one of several, else JSON.

import { h, text, visible } from './dom.js'

let count = 0

export class Arguments {
  /** `onedit(value)` is called after each change with the arguments as they stand; null while a field does not hold what it should. */
  constructor(given, schema, editable, onedit) {
    this.given = given
    this.onedit = onedit
    const order = Object.keys(schema?.properties ?? {})
    const place = (key) => (order.includes(key) ? order.indexOf(key) : order.length)
    const entries = Object.entries(given).sort(([one], [other]) => place(one) - place(other))
    this.fields = entries.map(
      ([key, value]) => new Field(key, value, schema?.properties?.[key] ?? {}, editable, () => this.edited()),
    )
    this.node = h(
      'div',
      { class: 'arguments' },
      this.fields.length ? this.fields.map((one) => one.node) : h('p', { class: 'muted' }, 'No arguments.'),
    )
  }

  edited() {
    const values = this.fields.map((one) => [one.key, one.read()])
    const valid = values.every(([, value]) => value !== undefined)
    this.onedit(valid ? Object.fromEntries(values) : null)
  }

  /** Whether the person changed anything. */
  get changed() {
    return this.fields.some((one) => one.changed)
  }

  reset() {
    for (const one of this.fields) one.reset()
  }
}

class Field {
  constructor(key, value, schema, editable, onchange) {
    this.key = key
    this.value = value
    this.kind = kindOf(value, schema)
    const id = `argument-${(count += 1)}`
    this.control = control(this.kind, value, schema, { id, 'aria-describedby': `${id}-hint` })
    this.hint = h('span', { class: 'hint', id: `${id}-hint` }, this.invisible())
    if (this.kind === 'flag' || this.kind === 'choice') this.control.disabled = !editable
    else this.control.readOnly = !editable
    this.control.addEventListener(
      this.kind === 'flag' || this.kind === 'choice' ? 'change' : 'input',
      onchange,
    )
    const label = h(
      'label',
      { class: 'argument-name mono', for: id, title: schema.description ?? null },
      visible(key),
    )
    this.node = h(
      'div',
      { class: `argument of-${this.kind}` },
      label,
      h('div', { class: 'argument-value' }, this.control, this.hint),
    )
  }

  /** A word of warning about what the field can not show. */
  invisible() {
    const written = typeof this.value === 'string' ? this.value : JSON.stringify(this.value)
    return visible(written) === written ? '' : `Holds invisible characters: ${visible(written)}`
  }

  /** The value, or undefined when there is none. */
  read() {
    const { control, kind } = this
    let value
    let wrong = ''
    if (kind === 'flag') value = control.checked
    else if (kind === 'text') value = control.value
    else if (kind === 'choice') value = JSON.parse(control.value)
    else if (kind === 'number') {
      value =
        control.value.trim() === '' || Number.isNaN(control.valueAsNumber) ? undefined : control.valueAsNumber
      if (value === undefined) wrong = 'A number is needed here.'
    } else {
      try {
        value = JSON.parse(control.value)
      } catch (error) {
        wrong = `Not JSON: ${error.message}`
      }
    }
    control.setAttribute('aria-invalid', String(wrong !== ''))
    text(this.hint, wrong)
    this.hint.classList.toggle('bad', wrong !== '')
    return value
  }

  get changed() {
    const value = this.read()
    return value === undefined || JSON.stringify(value) !== JSON.stringify(this.value)
  }

  reset() {
    if (this.kind === 'flag') this.control.checked = this.value
    else this.control.value = shown(this.kind, this.value)
    this.read()
  }
}

function kindOf(value, schema) {
  if (Array.isArray(schema.enum) && schema.enum.some((one) => JSON.stringify(one) === JSON.stringify(value)))
    return 'choice'
  if (typeof value === 'boolean') return 'flag'
  if (typeof value === 'number') return 'number'
  return typeof value === 'string' ? 'text' : 'json'
}

function shown(kind, value) {
  if (kind === 'choice') return JSON.stringify(value)
  return kind === 'json'
    ? (JSON.stringify(value, null, 1)?.replace(/\n\s*/g, (gap) =>
        JSON.stringify(value).length > 60 ? gap : ' ',
      ) ?? '')
    : String(value)
}

function control(kind, value, schema, props) {
  if (kind === 'flag')
    return h('input', { ...props, type: 'checkbox', class: 'switch', role: 'switch', checked: value })
  if (kind === 'choice') {
    const options = schema.enum.map((one) =>
      h(
        'option',
        { value: JSON.stringify(one), selected: JSON.stringify(one) === JSON.stringify(value) },
        visible(typeof one === 'string' ? one : JSON.stringify(one)),
      ),
    )
    return h('select', { ...props, class: 'select' }, options)
  }
  if (kind === 'number') {
    const step = schema.type === 'integer' ? '1' : 'any'
    return h('input', {
      ...props,
      type: 'number',
      class: 'input',
      step,
      min: schema.minimum,
      max: schema.maximum,
      value: shown(kind, value),
    })
  }
  const written = shown(kind, value)
  if (kind === 'json' || written.length > 70 || written.includes('\n')) {
    const rows = Math.min(12, Math.max(2, written.split('\n').length, Math.ceil(written.length / 80)))
    return h('textarea', { ...props, class: 'textarea mono', rows, spellcheck: 'false', value: written })
  }
  return h('input', {
    ...props,
    type: 'text',
    class: 'input',
    spellcheck: 'false',
    autocomplete: 'off',
    value: written,
  })
}
