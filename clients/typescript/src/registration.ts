import type { BatchDoc, Context, TxContext } from './context.js';
import type { Retry, Task } from './task.js';
import { type Duration, interval, milliseconds } from './time.js';

/** What a handler returns: a result, an outcome, or nothing. */
export type Handled = unknown;

/** Options of a handler. Those that a task has too are taken from the task where they are left out. */
export interface HandleOptions {
  /** How many documents of the queue this process works on at once. By default that of the worker. */
  readonly concurrency?: number;
  /** The share of the slots of the process, when several queues have documents. By default 1. */
  readonly weight?: number;
  readonly lease?: Duration;
  readonly timeout?: Duration;
  readonly retry?: Retry;
  /** What becomes of a payload that does not match the schema: `reject` (by default) or `kill`. */
  readonly poison?: 'reject' | 'kill';
}

export interface TxOptions extends HandleOptions {
  /** How often the handler runs anew after a serialization failure or a deadlock. By default 0. */
  readonly reruns?: number;
}

export interface BatchOptions extends HandleOptions {
  /** How many documents a call of the handler gets at most. `concurrency` counts calls, and is 1 by default. */
  readonly size: number;
}

/** A task and its handler. */
export interface Registration {
  readonly task: Task;
  readonly kind: 'plain' | 'transaction' | 'batch';
  readonly handler: (payload: never, context: never) => unknown;
  readonly concurrency: number | undefined;
  readonly weight: number;
  /** As text for the server. */
  readonly lease: string | null;
  readonly leaseMs: number | undefined;
  readonly timeout: Duration | undefined;
  readonly timeoutMs: number | undefined;
  readonly retry: Retry | undefined;
  readonly poison: 'reject' | 'kill';
  readonly reruns: number;
  readonly size: number;
}

export type Handler<Payload> = (payload: Payload, context: Context) => Handled;
export type TxHandler<Payload, Tx> = (payload: Payload, context: TxContext<Tx>) => Handled;
/** Returns nothing, or a result or an outcome for each document, in their order. */
export type BatchHandler<Payload> = (docs: readonly BatchDoc<Payload>[], signal: AbortSignal) => Handled;

export function register(
  task: Task,
  kind: Registration['kind'],
  handler: Registration['handler'],
  options: HandleOptions & Partial<TxOptions> & Partial<BatchOptions>,
): Registration {
  const size = options.size ?? 1;
  for (const [name, value] of Object.entries({ concurrency: options.concurrency, size, weight: options.weight })) {
    if (value !== undefined && !(value > 0 && (name === 'weight' || Number.isInteger(value)))) {
      throw new RangeError(`${name} of task ${task.name} is ${String(value)}, and must be above 0`);
    }
  }
  const lease = options.lease ?? task.lease;
  const timeout = options.timeout ?? task.timeout;
  return {
    task,
    kind,
    handler,
    concurrency: kind === 'batch' ? (options.concurrency ?? 1) * size : options.concurrency,
    weight: options.weight ?? 1,
    lease: lease === undefined ? null : interval(lease),
    leaseMs: lease === undefined ? undefined : milliseconds(lease),
    timeout,
    timeoutMs: timeout === undefined ? undefined : milliseconds(timeout),
    retry: options.retry ?? task.retry,
    poison: options.poison ?? 'reject',
    reruns: options.reruns ?? 0,
    size,
  };
}
