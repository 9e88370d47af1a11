import type { Driver, Executor, Row, Session } from './driver.js';

interface PendingQuery extends PromiseLike<unknown> {
  cancel(): void;
}

/** What the driver uses of `sql` of postgres.js, in and outside of a transaction. */
export interface PostgresSql {
  unsafe(statement: string, values: never[], options?: { prepare?: boolean }): PendingQuery;
}

/** What the driver uses of the `sql` that `postgres()` returns. */
export interface PostgresRoot<Tx extends PostgresSql = PostgresSql> extends PostgresSql {
  readonly options: { readonly max?: number; readonly prepare?: boolean };
  reserve(): Promise<PostgresSql & { release(): void }>;
  begin<T>(work: (sql: Tx) => Promise<T>): Promise<unknown>;
}

/**
 * A driver for postgres.js: `postgresDriver(postgres(url))`. A transaction is the `sql` of `sql.begin`. Statements
 * are prepared unless `postgres()` was told `prepare: false`, as is right behind a pooler.
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
    async session(): Promise<Session> {
      const sql = await root.reserve();
      let pending: PendingQuery | undefined;
      let isReleased = false;
      return {
        query: async (statement, values) => {
          pending = sql.unsafe(statement, values as never[], { prepare: prepare && !statement.startsWith('call ') });
          try {
            return Array.from((await pending) as Iterable<Row>);
          } finally {
            pending = undefined;
          }
        },
        cancel: () => pending?.cancel(),
        release: (broken) => {
          if (isReleased) return;
          isReleased = true;
          // A connection that has ended is back in the pool already. One that does not answer cannot be closed
          // from outside: it is asked to stop, and stays out of the pool.
          if (!broken) sql.release();
          else pending?.cancel();
        },
      };
    },
    async transaction(work) {
      let result: { value: unknown } | undefined;
      await root.begin(async (sql) => {
        result = { value: await work(sql, on(sql)) };
      });
      return result?.value as never;
    },
  };
}
