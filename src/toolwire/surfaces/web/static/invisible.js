// Characters that nobody sees: controls, characters without a shape, and those that change the writing
// direction.
//
// The ranges are the same as in `INVISIBLE` of core/display.py, where each range has a name. A test compares
// both for every character of Unicode.

const RANGES = [
  String.raw`\u{0}-\u{8}\u{b}-\u{1f}\u{7f}-\u{9f}\u{ad}\u{34f}\u{61c}\u{70f}\u{115f}-\u{1160}`,
  String.raw`\u{17b4}-\u{17b5}\u{180b}-\u{180f}\u{200b}-\u{200f}\u{2028}-\u{202e}\u{2060}-\u{206f}`,
  String.raw`\u{2800}\u{3164}\u{d800}-\u{f8ff}\u{fdd0}-\u{fdef}\u{fe00}-\u{fe0f}\u{feff}\u{ffa0}`,
  String.raw`\u{fff0}-\u{fffc}\u{fffe}-\u{ffff}\u{13430}-\u{13442}\u{16fe4}`,
  String.raw`\u{1bca0}-\u{1bca3}\u{1d159}\u{1d173}-\u{1d17a}\u{e0000}-\u{e0fff}\u{f0000}-\u{10ffff}`,
  // noncharacters
  ...Array.from('123456789abcde', (plane) => String.raw`\u{${plane}fffe}-\u{${plane}ffff}`),
]
const INVISIBLE = new RegExp(`[${RANGES.join('')}]`, 'gu')
/**
 * The invisible characters without the joiners and variation selectors that emoji and some scripts need, and
 * without line ends and halves of a character, which the next piece of a text may complete.
 */
const UNSEEN_IN_PROSE = new RegExp(
  String.raw`(?![\u200c\u200d\ufe00-\ufe0f\r\ud800-\udfff])[${RANGES.join('')}]`,
  'gu',
)

/**
 * The text with every invisible character written out, so that nothing a person decides on looks like
 * something else.
 *
 * @param {unknown} value
 */
export function visible(value) {
  return String(value).replace(INVISIBLE, written)
}

/**
 * The text with most invisible characters written out. The joiners inside emoji and words stay as they are,
 * so this is only for text on which no approval is based.
 *
 * @param {string} value
 */
export const prose = (value) => value.replace(UNSEEN_IN_PROSE, written)

/** @param {string} char */
function written(char) {
  const code = char.codePointAt(0) ?? 0
  return `⟨U+${code.toString(16).toUpperCase().padStart(4, '0')}⟩`
}

/**
 * The text with its invisible characters as JSON escapes (`\u202e`), for text that was sent over the network.
 * Line ends stay as they are.
 *
 * @param {string} value
 */
export function escaped(value) {
  return value.replace(INVISIBLE, (char) => {
    if (char === '\r') return char
    return char
      .split('')
      .map((unit) => `\\u${unit.charCodeAt(0).toString(16).padStart(4, '0')}`)
      .join('')
  })
}
