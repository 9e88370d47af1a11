// Encrypted connections to PostgreSQL: which certificates are accepted, and what the page says of others.
import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, afterEach, before, test } from 'node:test';
import { connect, createDatabase, run, startConsole, until, urlOf, value } from './support.js';

const secret = randomBytes(12).toString('hex');
const NAME = 'db.example.com';
let admin, db, folder, server, why, hba;

const file = (name) => join(folder, name);
const openssl = (...args) => execFileSync('openssl', args, { stdio: ['ignore', 'pipe', 'ignore'] });

/** An authority. */
function authority(name) {
  openssl('req', '-x509', '-newkey', 'ec', '-pkeyopt', 'ec_paramgen_curve:prime256v1', '-nodes', '-days', '2', '-subj', `/CN=${name}`, '-keyout', file(`${name}.key`), '-out', file(`${name}.crt`));
}

/** A certificate that an authority has signed. */
function certificate(name, signer, subject, names) {
  openssl('req', '-newkey', 'ec', '-pkeyopt', 'ec_paramgen_curve:prime256v1', '-nodes', '-subj', `/CN=${subject}`, '-keyout', file(`${name}.key`), '-out', file(`${name}.csr`));
  writeFileSync(file(`${name}.ext`), names ? `subjectAltName=${names}\n` : 'basicConstraints=CA:FALSE\n');
  openssl('x509', '-req', '-in', file(`${name}.csr`), '-CA', file(`${signer}.crt`), '-CAkey', file(`${signer}.key`), '-CAcreateserial', '-days', '2', '-extfile', file(`${name}.ext`), '-out', file(`${name}.crt`));
}

/** Runs a shell command as the user of the server, in its data folder. */
const shell = (command, input = '') => admin.query(
  `copy (select line from unnest(string_to_array('${input}', E'\\n')) line) to program '${command.replaceAll("'", "''")}'`);

const install = (name) => shell(`umask 077; cat >console_tls_${name}`, readFileSync(file(name), 'utf8').trim());

before(async () => {
  admin = await connect('postgres');
  if (await value(admin, 'show ssl_library') !== 'OpenSSL') why = 'the server is built without TLS';
  try { openssl('version'); } catch { why = 'there is no openssl command'; }
  if (why) return;
  folder = mkdtempSync(join(tmpdir(), 'fetchq-tls-'));
  authority('ca');
  authority('other');
  certificate('server', 'ca', NAME, `DNS:${NAME}`);
  certificate('client', 'ca', 'console_tls');
  db = await createDatabase('console_tls');
  await admin.query('drop role if exists console_tls');
  await admin.query(`create role console_tls login password '${secret}'`);
  await db.query("select fetchq.queue_create('mail')");
  await db.query('grant usage on schema fetchq, fetchq_data to console_tls');
  hba = await value(admin, 'show hba_file');
});

after(async () => {
  if (!why) {
    for (const name of ['ssl', 'ssl_cert_file', 'ssl_key_file', 'ssl_ca_file']) await admin.query(`alter system reset ${name}`);
    await shell(`if [ -e console_tls_hba ]; then cat console_tls_hba >"${hba}"; fi; rm -f console_tls_*`);
    await admin.query('select pg_reload_conf()');
    await db?.end();
    await admin.query('drop database if exists console_tls with (force)');
    await admin.query('drop role if exists console_tls');
    rmSync(folder, { recursive: true, force: true });
  }
  await admin.end();
});

afterEach(async () => {
  await server?.stop();
  server = undefined;
});

/** The connection string with these options, for a name of the server. */
function url(options, { host = NAME, user, password } = {}) {
  const parsed = new URL(urlOf('console_tls', user, password));
  parsed.hostname = host;
  for (const [key, text] of Object.entries({ hostaddr: '127.0.0.1', ...options })) parsed.searchParams.set(key, text);
  return parsed.href;
}

/** Opens the first page of a console with this connection string. */
async function open(connection) {
  server = await startConsole([connection]);
  const answer = await fetch(`${server.address}/db/console_tls`);
  const text = await answer.text();
  // How many of its connections are encrypted, and how many there are.
  const { rows } = await db.query(`select count(*) filter (where ssl)::int as encrypted, count(*)::int as all from pg_stat_ssl join pg_stat_activity using (pid)
    where application_name = 'fetchq console' and datname = 'console_tls'`);
  await server.stop();
  // A connection that ends is not taken for one of the next console.
  await until('the connections of the console end', async () => (await value(db, "select count(*)::int from pg_stat_activity where application_name = 'fetchq console' and datname = 'console_tls'")) === 0);
  return { status: answer.status, text, ...rows[0] };
}

async function accepted(connection, { isEncrypted = true } = {}) {
  const { status, text, encrypted, all } = await open(connection);
  assert.equal(status, 200, text);
  assert.ok(all > 0);
  assert.equal(encrypted, isEncrypted ? all : 0);
}

async function refused(connection, expected) {
  const { status, text, all } = await open(connection);
  assert.equal(status, 503);
  assert.equal(all, 0);
  assert.match(text, expected);
}

/** A test that needs TLS in the server. */
const tls = (name, body) => test(name, async (context) => (why ? context.skip(why) : body()));

tls('a server without TLS is refused where it is required, and else not', async () => {
  await admin.query('alter system set ssl = off');
  await admin.query('select pg_reload_conf()');
  await until('the server has no TLS', async () => {
    const client = await connect('postgres');
    const ssl = await value(client, 'show ssl');
    await client.end();
    return ssl === 'off';
  });
  await refused(url({ sslmode: 'require' }), /does not support TLS/);
  await accepted(url({ sslmode: 'prefer' }), { isEncrypted: false });
});

/** Has the server use a certificate. */
async function serve(name) {
  await admin.query(`alter system set ssl_cert_file = 'console_tls_${name}.crt'`);
  await admin.query(`alter system set ssl_key_file = 'console_tls_${name}.key'`);
  await admin.query("alter system set ssl_ca_file = 'console_tls_ca.crt'");
  await admin.query('alter system set ssl = on');
  await admin.query('select pg_reload_conf()');
  await until('the server has the certificate', async () => {
    const client = await connect('postgres');
    const settings = [await value(client, 'show ssl'), await value(client, 'show ssl_cert_file')];
    await client.end();
    return settings.join(' ') === `on console_tls_${name}.crt`;
  });
}

tls('a server with TLS is encrypted, unless that is disabled', async () => {
  for (const name of ['server.crt', 'server.key', 'ca.crt', 'ca.key']) await install(name);
  await serve('server');
  await accepted(url({ sslmode: 'require' }));
  await accepted(url({}));
  await accepted(url({ sslmode: 'disable' }), { isEncrypted: false });
});

tls('verify-full accepts the name that a known authority has certified, and no other', async () => {
  const options = { sslmode: 'verify-full', sslrootcert: file('ca.crt') };
  await accepted(url(options));
  await refused(url(options, { host: 'other.example.com' }), /What to do: <\/strong>The certificate of the server is for other names/);
  await refused(url({ ...options, sslrootcert: file('other.crt') }), /What to do: <\/strong>No authority of sslrootcert/);
});

tls('verify-ca accepts any name, and no other authority', async () => {
  const options = { sslmode: 'verify-ca', sslrootcert: file('ca.crt') };
  await accepted(url(options, { host: 'other.example.com' }));
  await refused(url({ ...options, sslrootcert: file('other.crt') }), /No authority of sslrootcert/);
});

tls('require checks the authority if sslrootcert names one, as libpq does', async () => {
  await accepted(url({ sslmode: 'require', sslrootcert: file('ca.crt') }, { host: 'other.example.com' }));
  await refused(url({ sslmode: 'require', sslrootcert: file('other.crt') }), /No authority of sslrootcert/);
});

tls('a server that has the certificate of the authority itself is refused, with the reason', async () => {
  await serve('ca');
  await refused(url({ sslmode: 'verify-ca', sslrootcert: file('ca.crt') }), /is that of an authority. Make one for the server/);
  await serve('server');
});

tls('a role that has to show a certificate is let in with it, and not without it', async () => {
  await shell(`cat "${hba}" >console_tls_hba; { cat; cat console_tls_hba; } >console_tls_new; cat console_tls_new >"${hba}"`, 'hostssl console_tls console_tls all cert');
  await admin.query('select pg_reload_conf()');
  const role = { user: 'console_tls', password: secret };
  const own = { sslmode: 'verify-full', sslrootcert: file('ca.crt') };
  await until('the server asks for a certificate', async () => (await open(url(own, role))).status === 503);
  await refused(url(own, role), /certificate/);
  await accepted(url({ ...own, sslcert: file('client.crt'), sslkey: file('client.key') }, role));
  assert.equal(await value(db, "select count(*)::int from fetchq.queue_stats()"), 1);
});

tls('a file that cannot be used is an error at the start, which names it', async () => {
  const started = async (options) => {
    const { code, text } = await run('serve', '--url', url(options), '--listen', '127.0.0.1:0');
    assert.equal(code, 1);
    return text;
  };
  assert.match(await started({ sslmode: 'verify-full', sslrootcert: file('none.crt') }), /certificates of .*none\.crt cannot be read/);
  assert.match(await started({ sslmode: 'verify-full', sslrootcert: file('ca.key') }), /certificates of .*ca\.key cannot be read: there is none/);
  assert.match(await started({ sslcert: file('client.crt') }), /needs its private key/);
  assert.match(await started({ sslcert: file('client.crt'), sslkey: file('client.crt') }), /private key of .*client\.crt cannot be read/);
  assert.match(await started({ sslcert: file('client.crt'), sslkey: file('ca.key') }), /client\.crt cannot be read/);
  assert.match(await started({ sslmode: 'verify' }), /not a value of sslmode/);
});
