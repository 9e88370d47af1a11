// Makes a database and a login for each test file, and has the common helpers of the tests.
import assert from 'node:assert/strict';
import { randomBytes } from 'node:crypto';
import pg from 'pg';

const { FETCHQ_URL } = process.env;
assert.ok(FETCHQ_URL, 'FETCHQ_URL must hold the URL of the server, with a password');

/** Whether the background worker runs. It then does maintenance, and sends the notifications. */
export const HAS_WORKER = process.env.FETCHQ_WORKER === 'on';

/** Returns the URL of the server with other parts. */
function urlWith({ user, password, database, options }) {
  const url = new URL(FETCHQ_URL);
  if (user) Object.assign(url, { username: user, password });
  if (database) url.pathname = `/${database}`;
  if (options) url.searchParams.set('options', options);
  return url.href;
}

async function maintenance(...statements) {
  const client = new pg.Client({ connectionString: urlWith({ database: 'postgres' }) });
  await client.connect();
  try {
    for (const statement of statements) await client.query(statement);
  } finally {
    await client.end();
  }
}

/**
 * Creates the database `name` with the extension, and a superuser of the same name with `settings`.
 * It first removes those of an earlier run.
 */
export async function createDatabase(name, settings = {}, { hasExtension = true } = {}) {
  const password = randomBytes(16).toString('hex');
  const remove = [
    // FORCE is needed because background workers may be connected.
    `drop database if exists ${name} with (force)`,
    `drop role if exists ${name}`,
  ];
  await maintenance(
    ...remove,
    `create role ${name} superuser login password '${password}'`,
    `create database ${name} template template0`,
  );
  const url = (options) => urlWith({ user: name, password, database: name, options });
  const pool = new pg.Pool({ connectionString: url() });
  if (hasExtension) await pool.query('create extension fetchq');
  for (const [setting, value] of Object.entries(settings)) {
    await pool.query(`alter role ${name} set ${setting} = '${value}'`);
  }
  // The settings of the role apply to new sessions only.
  await pool.end();

  const db = new pg.Pool({ connectionString: url() });
  // A session may be terminated with its database while it ends.
  let hasEnded = false;
  const failed = (error) => {
    if (!hasEnded) throw error;
  };
  // The pool passes on the errors of its idle clients.
  db.on('error', failed);
  db.on('connect', (client) => client.on('error', failed));
  return {
    url,
    db,
    /** First row of a statement. */
    one: async (sql, params) => (await db.query(sql, params)).rows[0],
    /** All rows of a statement. */
    all: async (sql, params) => (await db.query(sql, params)).rows,
    drop: async () => {
      hasEnded = true;
      // Sessions that clients have ended may still run. A client whose session PostgreSQL terminates fails,
      // although it has ended the session itself.
      const sessions = `select count(*)::int as n from pg_stat_activity
        where datname = current_database() and backend_type = 'client backend' and pid <> pg_backend_pid()`;
      const others = async () => (await db.query(sessions)).rows[0].n;
      for (let i = 0; i < 250 && (await others()) > db.totalCount - 1; i++) await new Promise((next) => setTimeout(next, 20));
      await db.end();
      await maintenance(...remove);
    },
  };
}

/** Calls `ask` until the answer is truthy, and returns the answer. It fails at the deadline. */
export async function poll(what, ask, deadline = 10_000) {
  const end = Date.now() + deadline;
  for (;;) {
    const answer = await ask();
    if (answer) return answer;
    assert.ok(Date.now() < end, `not within ${deadline} ms: ${what}`);
    await new Promise((next) => setTimeout(next, 20));
  }
}

/** Opens a second session that collects notifications. */
export async function listen(t, url, ...channels) {
  const client = new pg.Client({ connectionString: url });
  await client.connect();
  t.after(() => client.end());
  const heard = [];
  client.on('notification', ({ channel, payload }) => heard.push({ channel, payload }));
  for (const channel of channels) await client.query(`listen "${channel}"`);
  return heard;
}

/** Characters that break code that pastes text into a statement. */
export const HOSTILE = [
  `it's`,
  `''`,
  `'''`,
  `"double"`,
  `back\\slash \\' \\n \\\\`,
  `"; drop table x; --`,
  `$$ $1 {DATA} ), (`,
  `line\nbreak\ttab`,
  `🦊 žluťoučký 漢字`,
].join(' | ');

/** The same text in every place of a JSON document. */
export const HOSTILE_PAYLOAD = {
  text: HOSTILE,
  [`key's "${'\\'}" 🦊`]: [HOSTILE, { nested: HOSTILE }],
  empty: `''`,
};

/** Asserts that all counters of a queue equal a real count of its documents. */
export async function assertCounters({ one }, queue) {
  const counted = await one('select * from fetchq.metric_compute($1)', [queue]);
  const { cnt, pln, pnd, act, kll, cpl } = await one('select * from fetchq.metric_get_common($1)', [queue]);
  assert.deepEqual({ cnt, pln, pnd, act, kll, cpl }, counted);
}
