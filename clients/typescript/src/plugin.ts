import type { Context } from './context.js';
import { text } from './errors.js';
import type { Action } from './outcome.js';
import type { PutDoc } from './task.js';

/** Where lines of the log go: `console`, pino by a wrapper, or anything with these methods. */
export interface Logger {
  info(message: string, fields?: Readonly<Record<string, unknown>>): void;
  warn(message: string, fields?: Readonly<Record<string, unknown>>): void;
  error(message: string, fields?: Readonly<Record<string, unknown>>): void;
}

/** What `put` has done. */
export interface PutResult {
  readonly subject: string;
  /** `queued`: it runs once more when its worker has settled it. */
  readonly action: 'created' | 'updated' | 'queued' | 'ignored';
}

/** What a worker tells about itself. */
export type WorkerEvent =
  | {
      readonly type: 'settled';
      readonly queue: string;
      readonly task: string;
      readonly action: Action;
      readonly seconds: number;
    }
  | { readonly type: 'lost'; readonly queue: string; readonly task: string; readonly subject: string }
  | { readonly type: 'stuck'; readonly queue: string; readonly task: string; readonly subject: string }
  | { readonly type: 'heartbeat'; readonly documents: number; readonly lagSeconds: number }
  | { readonly type: 'call'; readonly name: string; readonly seconds: number; readonly failed: boolean }
  | { readonly type: 'slots'; readonly used: number; readonly total: number };

/**
 * Middleware, and an ear for events. Plugins are called in the order in which they are given: the first one is the
 * outermost. None of them can change a lease.
 */
export interface Plugin {
  /** Around a call that puts documents. It may change their headers. */
  put?(docs: PutDoc[], next: () => Promise<PutResult[]>): Promise<PutResult[]>;
  /** Around a handler, or around all of the documents of a batch, once for each. */
  handle?(context: Context, next: () => Promise<unknown>): Promise<unknown>;
  event?(event: WorkerEvent): void;
}

/** The logger that is used when none is given: one line for each message, on stderr. */
export const consoleLogger: Logger = {
  info: (message, fields) => {
    console.error(line(message, fields));
  },
  warn: (message, fields) => {
    console.error(line(message, fields));
  },
  error: (message, fields) => {
    console.error(line(message, fields));
  },
};

function line(message: string, fields: Readonly<Record<string, unknown>> = {}): string {
  const parts = Object.entries(fields).map(([key, value]) => {
    const shown = value instanceof Error ? text(value) : value;
    return `${key}=${typeof shown === 'string' ? JSON.stringify(shown) : String(shown)}`;
  });
  return ['fetchq:', message, ...parts].join(' ');
}

/** Calls a logger or a plugin. Its failure is not that of the caller. */
export function quietly(call: () => void): void {
  try {
    call();
  } catch (error) {
    console.error(`fetchq: a logger or a plugin has failed: ${text(error)}`);
  }
}
