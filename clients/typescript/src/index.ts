/**
 * Typed tasks and workers for fetchq.
 *
 * @packageDocumentation
 */
export * from './client.js';
export type { BatchDoc, Context, TxContext } from './context.js';
export { type Driver, type Executor, type Row, type Session, TxExecutor, type Value } from './driver.js';
export {
  CallTimeoutError,
  ConfigurationError,
  type ErrorClass,
  FetchqError,
  InvalidPayloadError,
  StopError,
  type StopReason,
  classify,
  clean,
} from './errors.js';
export { type Action, Outcome, type When, complete, drop, kill, reject, reschedule, snooze } from './outcome.js';
export type { Logger, Plugin, PutResult, WorkerEvent } from './plugin.js';
export type {
  BatchHandler,
  BatchOptions,
  HandleOptions,
  Handled,
  Handler,
  TxHandler,
  TxOptions,
} from './registration.js';
export type { SchemaIssue, SchemaResult, StandardSchema } from './schema.js';
export {
  type DocOptions,
  type Failure,
  type InputOf,
  type Json,
  type Mode,
  type OutputOf,
  type PutDoc,
  type Retry,
  type SimpleMode,
  TASK_HEADER,
  type Task,
  type TaskOptions,
  defineTask,
} from './task.js';
export { type Duration, interval } from './time.js';
export * from './worker.js';
