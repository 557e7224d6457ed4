// The arguments of a call as fields that the person can edit. The value and the schema of an argument decide
// whether its field is a text, a number, a switch, a choice or JSON.

/** @import { FieldSchema, Json, JsonObject, Props, Schema } from '../types' */

import { h, text, visible } from './dom.js'

/** @typedef {HTMLInputElement | HTMLTextAreaElement | HTMLSelectElement} Control */
/** @typedef {'switch' | 'number' | 'text' | 'choice' | 'json'} Kind */

let count = 0

export class Arguments {
  /**
   * `onedit` is called after each change with the new arguments, or with null while a field is invalid.
   *
   * @param {JsonObject} given
   * @param {Schema} schema
   * @param {boolean} editable
   * @param {(value: JsonObject | null) => void} onedit
   */
  constructor(given, schema, editable, onedit) {
    this.onedit = onedit
    const properties = schema.properties ?? {}
    const order = Object.keys(properties)
    /** @param {string} name */
    const position = (name) => (order.includes(name) ? order.indexOf(name) : order.length)
    const entries = Object.entries(given).sort(([one], [other]) => position(one) - position(other))
    this.fields = entries.map(([name, value]) => {
      const own = Object.hasOwn(properties, name) ? properties[name] : {}
      return new Field(name, value, own, editable, () => this.edited())
    })
    const none = h('p', { class: 'muted' }, 'No arguments.')
    const shown = this.fields.length ? this.fields.map((one) => one.node) : none
    this.node = h('div', { class: 'arguments' }, shown)
  }

  edited() {
    /** @type {[string, Json][]} */
    const entries = []
    for (const field of this.fields) {
      const value = field.read()
      if (value !== undefined) entries.push([field.name, value])
    }
    this.onedit(entries.length === this.fields.length ? Object.fromEntries(entries) : null)
  }

  /** Whether the person changed anything. */
  get changed() {
    return this.fields.some((one) => one.changed)
  }

  reset() {
    for (const one of this.fields) one.reset()
  }
}

/**
 * The arguments of a call to an MCP server: one field with the JSON text, exactly as it would be sent.
 * `onedit` is called with the edited text, or with null while it is not a JSON object. The browser sends the
 * text to the server unchanged, because JavaScript would round long numbers.
 */
export class JsonArguments {
  /** @param {string} given @param {boolean} editable @param {(value: string | null) => void} onedit */
  constructor(given, editable, onedit) {
    this.given = given
    this.onedit = onedit
    count += 1
    const id = `argument-${count}`
    const rows = Math.min(16, Math.max(2, given.split('\n').length))
    this.control = h('textarea', {
      class: 'textarea mono',
      id,
      rows,
      readOnly: !editable,
      spellcheck: 'false',
      value: given,
      'aria-label': 'Arguments as JSON',
      'aria-describedby': `${id}-hint`,
      oninput: () => this.edited(),
    })
    this.hint = h('span', { class: 'hint', id: `${id}-hint` })
    this.node = h('div', { class: 'arguments argument-value' }, this.control, this.hint)
    this.fields = [this]
  }

  edited() {
    let problem = ''
    try {
      const value = JSON.parse(this.control.value)
      if (typeof value !== 'object' || value === null || Array.isArray(value))
        problem = 'Write a JSON object.'
    } catch (error) {
      problem = `Not valid JSON: ${error instanceof Error ? error.message : error}`
    }
    this.control.setAttribute('aria-invalid', String(problem !== ''))
    text(this.hint, visible(problem))
    this.hint.classList.toggle('bad', problem !== '')
    this.onedit(problem ? null : this.control.value)
  }

  get changed() {
    return this.control.value !== this.given
  }

  reset() {
    this.control.value = this.given
    this.edited()
  }
}

class Field {
  /**
   * @param {string} name
   * @param {Json} value
   * @param {FieldSchema} schema
   * @param {boolean} editable
   * @param {() => void} onchange
   */
  constructor(name, value, schema, editable, onchange) {
    this.name = name
    this.value = value
    this.kind = kindOf(value, schema)
    count += 1
    const id = `argument-${count}`
    this.control = control(this.kind, value, schema, { id, 'aria-describedby': `${id}-hint` })
    this.hint = h('span', { class: 'hint', id: `${id}-hint` }, this.warning())
    const picks = this.kind === 'switch' || this.kind === 'choice'
    if (picks || this.control instanceof HTMLSelectElement) this.control.disabled = !editable
    else this.control.readOnly = !editable
    this.control.addEventListener(picks ? 'change' : 'input', onchange)
    const label = h(
      'label',
      { class: 'argument-name mono', for: id, title: schema.description },
      visible(name),
    )
    this.node = h(
      'div',
      { class: `argument of-${this.kind}` },
      label,
      h('div', { class: 'argument-value' }, this.control, this.hint),
    )
  }

  /** A warning about characters that the field cannot show. */
  warning() {
    const plain = typeof this.value === 'string' ? this.value : JSON.stringify(this.value)
    return visible(plain) === plain ? '' : `Contains invisible characters: ${visible(plain)}`
  }

  /** The value, or undefined if the field is invalid. The hint says why. @returns {Json | undefined} */
  read() {
    /** @type {Json | undefined} */
    let value
    let problem = ''
    const { control, kind } = this
    if (kind === 'switch') value = control instanceof HTMLInputElement && control.checked
    else if (kind === 'text') value = control.value
    else if (kind === 'number') {
      const number = control.value.trim() === '' ? Number.NaN : Number(control.value)
      if (Number.isFinite(number)) value = number
      else problem = 'Enter a number.'
    } else {
      try {
        value = JSON.parse(control.value)
      } catch (error) {
        problem = `Not valid JSON: ${error instanceof Error ? error.message : error}`
      }
    }
    control.setAttribute('aria-invalid', String(problem !== ''))
    text(this.hint, problem)
    this.hint.classList.toggle('bad', problem !== '')
    return value
  }

  get changed() {
    const value = this.read()
    return value === undefined || JSON.stringify(value) !== JSON.stringify(this.value)
  }

  reset() {
    if (this.kind === 'switch' && this.control instanceof HTMLInputElement)
      this.control.checked = this.value === true
    else this.control.value = written(this.kind, this.value)
    this.read()
  }
}

/** @param {Json} value @param {FieldSchema} schema @returns {Kind} */
function kindOf(value, schema) {
  const same = JSON.stringify(value)
  if (Array.isArray(schema.enum) && schema.enum.some((one) => JSON.stringify(one) === same)) return 'choice'
  if (typeof value === 'boolean') return 'switch'
  if (typeof value === 'number') return 'number'
  return typeof value === 'string' ? 'text' : 'json'
}

/** The value as a control shows it. @param {Kind} kind @param {Json} value */
function written(kind, value) {
  if (kind === 'choice') return JSON.stringify(value)
  if (kind !== 'json') return String(value)
  const short = JSON.stringify(value).length <= 60
  const spread = JSON.stringify(value, null, 1)
  return short ? spread.replace(/\n\s*/g, ' ') : spread
}

/**
 * @param {Kind} kind
 * @param {Json} value
 * @param {FieldSchema} schema
 * @param {Props} props
 * @returns {Control}
 */
function control(kind, value, schema, props) {
  const shown = written(kind, value)
  if (kind === 'switch')
    return h('input', {
      ...props,
      type: 'checkbox',
      class: 'switch',
      role: 'switch',
      checked: value === true,
    })
  if (kind === 'choice') {
    const options = (schema.enum ?? []).map((one) => {
      const json = JSON.stringify(one)
      return h(
        'option',
        { value: json, selected: json === shown },
        visible(typeof one === 'string' ? one : json),
      )
    })
    return h('select', { ...props, class: 'select' }, options)
  }
  if (kind === 'number') {
    const step = schema.type === 'integer' ? '1' : 'any'
    const { minimum: min, maximum: max } = schema
    return h('input', { ...props, type: 'number', class: 'input', step, min, max, value: shown })
  }
  if (kind === 'json' || shown.length > 70 || shown.includes('\n')) {
    const rows = Math.min(12, Math.max(2, shown.split('\n').length, Math.ceil(shown.length / 80)))
    return h('textarea', { ...props, class: 'textarea mono', rows, spellcheck: 'false', value: shown })
  }
  const text = { type: 'text', class: 'input', spellcheck: 'false', autocomplete: 'off', value: shown }
  return h('input', { ...props, ...text })
}
