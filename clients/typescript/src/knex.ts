import { type Driver, type Row, TxExecutor, type Value, withTransactions } from './driver.js';

/** What is used of Knex, and of a transaction of it. */
export interface KnexExecutor {
  raw(statement: string, bindings: readonly Value[]): PromiseLike<unknown>;
}

/** What is used of Knex. */
export interface KnexDatabase<Tx extends KnexExecutor> extends KnexExecutor {
  transaction<T>(work: (tx: Tx) => Promise<T>): Promise<T>;
}

/** A transaction of Knex, for the option `tx`. */
export function knexTx(tx: KnexExecutor): TxExecutor {
  return new TxExecutor(async (statement, values) => {
    const bindings: Value[] = [];
    // Knex numbers its parameters by itself.
    const text = statement.replaceAll('?', '\\?').replace(/\$(\d+)/g, (_, at) => {
      bindings.push(values[Number(at) - 1] ?? null);
      return '?';
    });
    return ((await tx.raw(text, bindings)) as { rows: Row[] }).rows;
  });
}

/** A driver whose transactions are those of Knex. To work, it needs a driver with a pool of its own. */
export function knexDriver<Tx extends KnexExecutor>(db: KnexDatabase<Tx>, base?: Driver): Driver<Tx> {
  return withTransactions('knex', base, {
    root: () => knexTx(db),
    on: (tx: Tx) => knexTx(tx),
    transaction: (work) => db.transaction(work),
  });
}
