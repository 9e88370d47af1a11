import { sql, type SQL } from 'drizzle-orm';
import { type Driver, type Row, TxExecutor, type Value, withTransactions } from './driver.js';

/** What is used of a database or a transaction of Drizzle, over node-postgres or postgres.js. */
export interface DrizzleExecutor {
  execute(query: SQL): PromiseLike<unknown>;
}

/** What is used of a database of Drizzle. */
export interface DrizzleDatabase<Tx extends DrizzleExecutor> extends DrizzleExecutor {
  transaction<T>(work: (tx: Tx) => Promise<T>): Promise<T>;
}

/** A transaction of Drizzle, for the option `tx`. */
export function drizzleTx(tx: DrizzleExecutor): TxExecutor {
  return new TxExecutor(async (statement, values) => {
    const result = await tx.execute(bind(statement, values));
    // node-postgres gives an object with rows, and postgres.js a list.
    return Array.from((Array.isArray(result) ? result : (result as { rows: unknown[] }).rows) as Iterable<Row>);
  });
}

/** A driver whose transactions are those of Drizzle. To work, it needs the driver of the pool that Drizzle uses. */
export function drizzleDriver<Tx extends DrizzleExecutor>(db: DrizzleDatabase<Tx>, base?: Driver): Driver<Tx> {
  return withTransactions('drizzle', base, {
    root: () => drizzleTx(db),
    on: (tx: Tx) => drizzleTx(tx),
    transaction: (work) => db.transaction(work),
  });
}

function bind(statement: string, values: readonly Value[]): SQL {
  const parts = statement.split(/(\$\d+)/).map((part) => {
    const at = /^\$(\d+)$/.exec(part)?.[1];
    return at === undefined ? sql.raw(part) : sql`${values[Number(at) - 1] ?? null}`;
  });
  return sql.join(parts);
}
