import { format } from 'node:util';

/** An error of this package. Errors of the server are thrown as the driver gives them. */
export class FetchqError extends Error {
  override name = 'FetchqError';
}

/** The database, the pool or the options do not fit. Trying again does not help. */
export class ConfigurationError extends FetchqError {
  override name = 'ConfigurationError';
}

/** A payload does not match the schema of its task, or JSON cannot hold it. */
export class InvalidPayloadError extends FetchqError {
  override name = 'InvalidPayloadError';
}

/** A call of the runtime was not answered in time. Its connection is closed. */
export class CallTimeoutError extends FetchqError {
  override name = 'CallTimeoutError';
  readonly code = 'ETIMEDOUT';
}

/** Why a handler is asked to stop. */
export type StopReason = 'cancelled' | 'lost' | 'timeout' | 'shutdown';

const STOP_MESSAGES: Record<StopReason, string> = {
  cancelled: 'the document was cancelled',
  lost: 'the lease of the document was lost',
  timeout: 'the handler took longer than its timeout',
  shutdown: 'the worker stops',
};

/** The reason of the signal of a handler: `signal.reason.reason`. */
export class StopError extends FetchqError {
  // What timers, fetch() and other programs look for.
  override name = 'AbortError';

  constructor(
    readonly reason: StopReason,
    message = STOP_MESSAGES[reason],
  ) {
    super(message);
  }
}

/** What an error of the database means for the call that got it. */
export type ErrorClass =
  /** The connection is dead, there is none, or the server has no resources: whether the call was committed is not known. */
  | 'connection'
  /** A serialization failure, a deadlock, a lock, a server that is read-only for a moment: nothing was done, try again. */
  | 'conflict'
  /** fetchq says that a lease was lost. */
  | 'lost'
  /** The configuration, or a right: trying again does not help. */
  | 'configuration'
  /** What was sent is not valid: sending it again does not help. */
  | 'invalid'
  /** Anything else. Trying again may help. */
  | 'other';

interface DatabaseError {
  code?: unknown;
  routine?: unknown;
  cause?: unknown;
  originalError?: unknown;
  meta?: { code?: unknown; driverAdapterError?: unknown };
}

/** Finds the SQLSTATE, or the code of the driver, also where an ORM has wrapped the error. */
export function errorCode(error: unknown): { code: string; routine: string } {
  let at = error;
  for (let depth = 0; depth < 6 && typeof at === 'object' && at !== null; depth++) {
    const { code, routine, meta, cause, originalError } = at as DatabaseError;
    // Prisma wraps the SQLSTATE of the server in an error with a code of its own.
    if (typeof meta?.code === 'string') return { code: meta.code, routine: '' };
    if (typeof code === 'string' && !/^P[12]\d{3}$/.test(code)) {
      return { code, routine: typeof routine === 'string' ? routine : '' };
    }
    at = cause ?? originalError ?? meta?.driverAdapterError;
  }
  return { code: '', routine: '' };
}

const CONNECTION_MESSAGE =
  /connection (terminated|error|timeout|ended|closed|destroyed)|timeout exceeded when trying to connect|not queryable|socket hang up|Client was closed/i;

/** Says what an error means for the call that got it. */
export function classify(error: unknown): ErrorClass {
  const { code, routine } = errorCode(error);
  if (code === '55000' && (routine === 'fetchq' || /\blease\b.*\b(was lost|before)\b/.test(text(error)))) return 'lost';
  if (/^(40001|40P01|55P03|25006)$/.test(code)) return 'conflict';
  if (/^(42501|42704|42883|42P01|3F000|3D000|28000|28P01)$/.test(code)) return 'configuration';
  if (/^(08...|57P..|53...)$/.test(code)) return 'connection';
  if (/^(E[A-Z]+|CONNECT\w+)$/.test(code) && code !== 'EXCEPTION') return 'connection';
  if (/^(0A|21|22|23|27|2F|38|39|42|44|54|P0)...$/.test(code) || /^5500[06]$/.test(code)) return 'invalid';
  if (code === '' && CONNECTION_MESSAGE.test(text(error))) return 'connection';
  return 'other';
}

/** The message of whatever was thrown. */
export function text(error: unknown): string {
  return format('%s', error instanceof Error ? error.message || error.name : error);
}

/** A text that PostgreSQL can store: without NUL and half of a character, and not longer than `limit`. */
export function clean(value: string, limit = 2000): string {
  const whole = value
    .slice(0, limit * 2)
    .replaceAll('\0', '')
    .replace(/\p{Surrogate}/gu, '\ufffd');
  // By characters and not by UTF-16 units, so that none is cut in two.
  return whole.length > limit ? Array.from(whole).slice(0, limit).join('') : whole;
}
