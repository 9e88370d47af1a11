import { CompiledQuery } from 'kysely';
import { type Driver, type Row, TxExecutor, withTransactions } from './driver.js';

/** What is used of a database or a transaction of Kysely. */
export interface KyselyExecutor {
  executeQuery(query: CompiledQuery): Promise<{ rows: unknown[] }>;
}

/** What is used of a database of Kysely. */
export interface KyselyDatabase<Tx extends KyselyExecutor> extends KyselyExecutor {
  transaction(): { execute<T>(work: (tx: Tx) => Promise<T>): Promise<T> };
}

/** A transaction of Kysely, for the option `tx`. */
export function kyselyTx(tx: KyselyExecutor): TxExecutor {
  return new TxExecutor(async (statement, values) => {
    const { rows } = await tx.executeQuery(CompiledQuery.raw(statement, [...values]));
    return rows as Row[];
  });
}

/** A driver whose transactions are those of Kysely. To work, it needs the driver of the pool that Kysely uses. */
export function kyselyDriver<Tx extends KyselyExecutor>(db: KyselyDatabase<Tx>, base?: Driver): Driver<Tx> {
  return withTransactions('kysely', base, {
    root: () => kyselyTx(db),
    on: (tx: Tx) => kyselyTx(tx),
    transaction: (work) => db.transaction().execute(work),
  });
}
