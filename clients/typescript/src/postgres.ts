import postgres from 'postgres';
import { CallTimeoutError, FetchqError } from './errors.js';
import { type Driver, type Executor, type Row, type Session, isBroken, within } from './driver.js';

/** How long after its last error a connection may take to tell of its end, in milliseconds. */
const CLOSING = 100;

/** A query that has begun. */
export interface PendingQuery extends PromiseLike<unknown> {
  cancel(): void;
  canceller?: ((query: PendingQuery) => Promise<unknown>) | null;
  /** The session that it was sent to. */
  readonly state?: object | null;
  strings?: readonly string[];
  args?: readonly unknown[];
}

/** What the driver uses of `sql` of postgres.js, in and outside of a transaction. */
export interface PostgresSql {
  unsafe(statement: string, values: never[], options?: { prepare?: boolean }): PendingQuery;
}

/** What the driver uses of the `sql` that `postgres()` returns. */
export interface PostgresRoot<Tx extends PostgresSql = PostgresSql> extends PostgresSql {
  readonly options: {
    readonly max?: number;
    readonly prepare?: boolean;
    readonly shared?: object;
    fetch_types?: boolean;
  };
  begin<T>(work: (sql: Tx) => Promise<T>): Promise<unknown>;
}

/**
 * A driver for postgres.js: `postgresDriver(postgres(url))`. A transaction is the `sql` of `sql.begin`. Statements
 * are prepared unless `postgres()` was told `prepare: false`, as is right behind a pooler.
 * A worker turns `fetch_types` off once a connection has read the types of arrays: postgres.js 3.4 reads them again on
 * each new connection, and ends the process when one breaks meanwhile.
 * A worker has connections of its own beside the pool: one to wait, and one for the heartbeat.
 */
export function postgresDriver<Tx extends PostgresSql>(root: PostgresRoot<Tx>): Driver<Tx> {
  const prepare = root.options.prepare ?? true;
  const on = (sql: PostgresSql): Executor => ({
    query: async (statement, values) =>
      Array.from((await sql.unsafe(statement, values as never[], { prepare })) as Iterable<Row>),
  });
  return {
    name: 'postgres',
    size: root.options.max,
    query: on(root).query,
    on,
    async call(statement, values, ms) {
      const pending = root.unsafe(statement, values as never[], { prepare });
      const answer = (async () => Array.from((await pending) as Iterable<Row>))();
      try {
        return await within(answer, ms);
      } catch (error) {
        if (error instanceof CallTimeoutError) cancel(pending);
        throw error;
      }
    },
    hasOwnSessions: true,
    async session(): Promise<Session> {
      if (root.options.fetch_types) {
        // Whatever has answered has read the types, and all connections share them.
        await root.unsafe('select 1', []);
        root.options.fetch_types = false;
      }
      // As `sql.listen` does: a connection of `sql.reserve` cannot be closed, and cannot be used again after it was.
      const own = postgres({
        ...(root.options as object),
        max: 1,
        idle_timeout: 0,
        max_lifetime: null,
        fetch_types: false,
        // It has the count of failures from which postgres.js takes how long the pool waits before it connects.
        shared: { ...root.options.shared, retries: 0 },
      } as object);
      let pending: PendingQuery | undefined;
      let isReleased = false;
      return {
        query: async (statement, values) => {
          pending = own.unsafe(statement, values as never[], { prepare: prepare && !statement.startsWith('call ') });
          try {
            return Array.from((await pending) as Iterable<Row>);
          } finally {
            pending = undefined;
          }
        },
        cancel: () => {
          if (pending) cancel(pending);
        },
        release: () => {
          if (isReleased) return;
          isReleased = true;
          void own.end({ timeout: pending ? 0 : 1 }).catch(() => undefined);
        },
      };
    },
    async transaction(work) {
      let result: { value: unknown } | undefined;
      const state = { isOver: false };
      const begun = root.begin(async (sql) => {
        const { query } = on(sql);
        // postgres.js 3.4 ends the process when it writes to a connection that was closed inside of a transaction,
        // also by the rollback that it makes itself. So nothing is sent then, and it is not told that the work ended.
        const guarded: Executor['query'] = (statement, values) =>
          state.isOver ? Promise.reject(new FetchqError('Connection closed')) : query(statement, values);
        try {
          result = { value: await work(sql, { query: guarded }) };
        } catch (error) {
          if (isBroken(error)) await new Promise((resolve) => setTimeout(resolve, CLOSING));
          if (state.isOver) await new Promise(() => undefined);
          throw error;
        }
        if (state.isOver) await new Promise(() => undefined);
      });
      try {
        await begun;
      } finally {
        state.isOver = true;
      }
      return result?.value as never;
    },
  };
}

/**
 * Asks the server to cancel a statement that was sent, each time that it is called: a request that is there before the
 * statement cancels nothing. postgres.js 3.4 itself asks only once, and keeps no hold of the request: one that does not
 * reach the server would end the process. A connection whose first statement is cancelled while it connects
 * is of no use to postgres.js 3.4 ever after, and all further statements wait for it. So what was not sent yet becomes
 * a statement that does nothing: whenever it is sent, nobody waits for what it leases.
 */
function cancel(query: PendingQuery): void {
  if (query.state === null) {
    query.strings = ['select where false'];
    query.args = [];
    return;
  }
  const { canceller } = query;
  if (canceller) canceller(query).catch(() => undefined);
  else query.cancel();
}
