// The few parts of Node that the unit tests use. Node's own types would also apply to the browser modules, where
// for example `setTimeout` returns a number.

declare module 'node:test' {
  export function describe(name: string, body: () => void): void
  export function it(name: string, body: () => unknown): void
}

declare module 'node:assert/strict' {
  const assert: {
    ok(value: unknown, message?: string): asserts value
    equal<T>(actual: T, expected: T, message?: string): void
    notEqual<T>(actual: T, expected: T, message?: string): void
    deepEqual(actual: unknown, expected: unknown, message?: string): void
    match(value: string, pattern: RegExp, message?: string): void
    throws(body: () => unknown, error: unknown): void
    rejects(promise: Promise<unknown>, error: RegExp): Promise<void>
  }
  export default assert
}

declare module 'node:fs' {
  export function readFileSync(path: URL, encoding: 'utf8'): string
}
