import type { Producer } from './client.js';
import type { Logger } from './plugin.js';
import type { DocOptions, Json, Task } from './task.js';

/** What a handler knows of its document, and what it can do beside its work. */
export interface Context {
  readonly queue: string;
  /** The name of the task. */
  readonly task: string;
  readonly subject: string;
  readonly version: number;
  readonly priority: number;
  /** Attempts since the last success, this one included. */
  readonly attempts: number;
  readonly maxAttempts: number;
  readonly headers: Readonly<Record<string, Json>>;
  readonly createdAt: Date;
  readonly dueAt: Date;
  /** Why the attempt before failed. */
  readonly lastError: string | null;
  /** The number of the lease. */
  readonly lease: string;
  /** The name of the worker. */
  readonly worker: string;
  /**
   * Aborted when the handler has to stop. `signal.reason` is a `StopError`, whose `reason` is `cancelled`, `lost`,
   * `timeout` or `shutdown`.
   */
  readonly signal: AbortSignal;
  readonly log: Logger;
  /** The client of the worker. */
  readonly client: Producer;
  /** What attempts before this one, or this one, have stored by `progress`. */
  readonly saved: Json;
  /** Stores how far the work has come. Everybody can read it, and the next attempt gets it. */
  progress(value: Json): Promise<void>;
  /**
   * Runs a part of the work once: its result is stored, and later attempts get it without running it again. A crash
   * between the end of `run` and the storing runs it again.
   */
  step<T>(name: string, run: () => T | Promise<T>): Promise<T>;
  /**
   * Puts a document in the same commit that settles this one, and only then. A handler that fails puts none.
   */
  followUp<Input>(task: Task<Input, unknown>, payload: NoInfer<Input>, options?: DocOptions): Promise<void>;
}

/** The context of a transactional handler. */
export interface TxContext<Tx> extends Context {
  /** The transaction in which the document is settled. The runtime commits it. */
  readonly tx: Tx;
}

/** A document of a batch. */
export interface BatchDoc<Payload> {
  readonly payload: Payload;
  readonly context: Context;
}
