// Who cannot use the console up, or use it in the name of somebody else. No server of PostgreSQL is needed.
import assert from 'node:assert/strict';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { request } from 'node:http';
import { connect } from 'node:net';
import { networkInterfaces, tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, afterEach, before, test } from 'node:test';
import { run, send as sendTo, startConsole, until } from './support.js';

// Nothing listens there.
const DOWN = 'postgres://postgres@127.0.0.1:1/down';
const OTHER = '127.0.0.2';
let server, folder, passwords;
let streams = [];

before(() => {
  folder = mkdtempSync(join(tmpdir(), 'fetchq-limits-'));
  passwords = join(folder, 'passwords');
  writeFileSync(passwords, 'ann:$2b$04$XMj6.89N3huB1MgYjOpCIOHO2jtbkejP0DB.6W.R.EHymzt.1d.4u\n');
});

after(() => rmSync(folder, { recursive: true, force: true }));

afterEach(async () => {
  for (const stream of streams) stream.close();
  streams = [];
  await server?.stop();
  server = undefined;
});

const send = (path, options) => sendTo(server.address, path, options);

/** Opens a page that listens for changes, and keeps it. */
async function listen({ headers = {}, from } = {}) {
  const stream = await new Promise((done, fail) => {
    const sent = request(`${server.address}/db/down/live?view=overview`, { headers, localAddress: from, agent: false }, (answer) => {
      answer.on('error', () => {});
      done({ status: answer.statusCode, retry: answer.headers['retry-after'], close: () => sent.destroy() });
    });
    sent.on('error', fail);
    sent.end();
  });
  if (stream.status === 200) streams.push(stream);
  else stream.close();
  return stream;
}

/** Opens 70 of them at once. Returns how many were answered with each status. */
async function listenOften(options) {
  const counts = {};
  for (const { status } of await Promise.all(Array.from({ length: 70 }, () => listen(options)))) counts[status] = (counts[status] ?? 0) + 1;
  return counts;
}

test('on an address of the network the origin has to be given, also without a way to log in', async () => {
  for (const login of [['--auth-header', 'x-user'], ['--password-file', passwords], ['--insecure']]) {
    const { code, text } = await run('serve', '--url', DOWN, '--listen', '0.0.0.0:0', ...login);
    assert.equal(code, 1, login[0]);
    assert.match(text, /give --origin with the address that browsers use, such as --origin http:/, login[0]);
  }
  for (const origin of ['queues.example.com', 'https://queues.example.com/console', 'https://*.example.com']) {
    const { code, text } = await run('serve', '--url', DOWN, '--origin', origin);
    assert.equal(code, 1, origin);
    assert.match(text, /is not an origin, such as/, origin);
  }
  process.env.FETCHQ_ORIGIN = 'https://queues.example.com http://console:8090';
  try {
    server = await startConsole([DOWN], '--listen', '0.0.0.0:0', '--insecure');
  } finally {
    delete process.env.FETCHQ_ORIGIN;
  }
  for (const host of ['queues.example.com', 'console:8090']) assert.equal((await send('/', { headers: { host } })).status, 303, host);
});

test('a page whose name was made to resolve to the console gets nothing, and changes nothing', async () => {
  server = await startConsole([DOWN], '--listen', '0.0.0.0:0', '--auth-header', 'x-user', '--allow-actions',
    '--origin', 'https://queues.example.com', '--origin', 'http://console:8090');
  const [, port] = /:(\d+)$/.exec(server.address);
  const user = { 'x-user': 'admin', 'content-type': 'application/x-www-form-urlencoded' };
  const statusOf = async (host, options = {}) => (await send('/db/down/nothing', { ...options, headers: { ...user, host, ...options.headers } })).status;
  for (const host of ['attacker.example', `attacker.example:${port}`, `127.0.0.1.attacker.example:${port}`, '192.0.2.1', `192.0.2.1:${port}`, '']) {
    assert.equal(await statusOf(host), 421, host);
    assert.equal(await statusOf(host, { method: 'POST', headers: { origin: `http://${host}` } }), 421, host);
  }
  for (const host of ['queues.example.com', 'console:8090', `127.0.0.1:${port}`, `localhost:${port}`]) assert.equal(await statusOf(host), 404, host);
  const origins = [['queues.example.com', 'https://queues.example.com', 404], ['queues.example.com', 'http://queues.example.com', 403],
    ['console:8090', 'http://console:8090', 404], ['console:8090', 'http://attacker.example', 403]];
  for (const [host, origin, status] of origins) assert.equal(await statusOf(host, { method: 'POST', headers: { origin } }), status, `${origin} to ${host}`);
  // The address itself, by which checks of a load balancer ask.
  const own = Object.values(networkInterfaces()).flat().find(({ family, internal }) => family === 'IPv4' && !internal)?.address;
  if (own) {
    const { status } = await sendTo(`http://${own}:${port}`, '/db/down/nothing', { headers: user });
    assert.equal(status, 404, 'the address of the connection');
    assert.equal(await statusOf(`${own}:${port}`), 421, 'another address of this machine');
  }
});

test('half a header keeps no connection, and neither does silence, nor a form that does not arrive', async () => {
  server = await startConsole([DOWN], '--allow-actions');
  const { host, hostname, port } = new URL(server.address);
  const form = `POST /db/down/act HTTP/1.1\r\nHost: ${host}\r\nOrigin: ${server.address}\r\nContent-Type: application/x-www-form-urlencoded\r\n`
    + 'Content-Length: 1000\r\n\r\ncsrf=';
  const open = new Set();
  let said = '';
  for (const text of ['GET / HTTP/1.1\r\nHost: localhost\r\nX-Slow: ', 'GET', '', `GET / HTTP/1.1\r\nHost: ${host}\r\n\r\n`, form]) {
    const socket = connect(Number(port), hostname, () => socket.write(text));
    open.add(text);
    socket.on('error', () => {});
    socket.on('data', (data) => { if (text === form) said += data; });
    socket.on('close', () => open.delete(text));
  }
  await until('the server closes all of them', () => open.size === 0, 90);
  assert.match(said, /^HTTP\/1.1 408 /);
});

test('an address has a number of pages that listen, and gets another one when one is closed', async () => {
  server = await startConsole([DOWN]);
  assert.deepEqual(await listenOften(), { 200: 50, 429: 20 });
  assert.match((await listen()).retry, /^[1-9]\d*$/);
  assert.equal((await send('/assets/x/y')).status, 404, 'pages are served');
  assert.equal((await listen({ from: OTHER })).status, 200, 'another address');
  streams[0].close();
  await until('a place is free again', async () => (await listen()).status === 200);
});

test('people behind a proxy have their pages each, and cannot use up those of others', async () => {
  server = await startConsole([DOWN], '--auth-header', 'x-user', '--max-streams', '10');
  assert.deepEqual(await listenOften({ headers: { 'x-user': 'ann' } }), { 200: 10, 429: 60 });
  assert.equal((await listen({ headers: { 'x-user': 'bob' } })).status, 200);
  assert.equal((await listen({ headers: { 'x-user': 'ann' }, from: OTHER })).status, 429, 'the same person elsewhere');
});

test('an address has a number of connections, and all together have one', async () => {
  server = await startConsole([DOWN], '--max-connections-per-address', '3', '--max-connections', '5');
  // A connection that is refused can be reset before its answer is read.
  const status = (options) => listen(options).then((stream) => stream.status, () => 503);
  for (let n = 0; n < 3; n += 1) assert.equal(await status(), 200, `connection ${n}`);
  assert.equal(await status(), 503);
  for (let n = 0; n < 2; n += 1) assert.equal(await status({ from: OTHER }), 200, `of another address: ${n}`);
  assert.equal(await status({ from: OTHER }), 503, 'all together');
  streams[0].close();
  await until('a place is free again', async () => await status() === 200);
});

test('an address that guesses passwords has to wait, and others have not', async () => {
  server = await startConsole([DOWN], '--password-file', passwords);
  const login = async (text, from) => send('/db/down/nothing', { from, headers: { authorization: `Basic ${Buffer.from(text).toString('base64')}` } });
  const guesses = await Promise.all(Array.from({ length: 50 }, (_, n) => login(`ann:guess ${n}`)));
  const refused = guesses.filter(({ status }) => status === 429);
  assert.ok(guesses.every(({ status }) => status === 401 || status === 429));
  assert.ok(refused.length > 0, 'no guess is refused');
  for (const { headers, text } of refused) {
    assert.match(headers['retry-after'], /^[1-9]\d*$/);
    assert.equal(headers['www-authenticate'], undefined, 'the browser would ask for a password');
    assert.match(text, /Too many wrong passwords/);
  }
  assert.equal((await login('ann:right', OTHER)).status, 404, 'another address');
  assert.equal((await login('ann:right')).status, 404, 'a password that is known');
  assert.match(server.log(), /a login as "ann" from 127\.0\.0\.1 has failed/);
});

test('a right password that is not known yet is not tried while its address has to wait', async () => {
  server = await startConsole([DOWN], '--password-file', passwords);
  const attempt = (text) => send('/db/down/nothing', { headers: { authorization: `Basic ${Buffer.from(text).toString('base64')}` } });
  const login = async (text) => (await attempt(text)).status;
  // The pauses double, so that this one is long enough for the next line.
  await until('a longer pause', async () => Number((await attempt(`ann:${Math.random()}`)).headers['retry-after']) >= 4, 60);
  assert.equal(await login('ann:right'), 429);
  await until('the pause ends', async () => await login('ann:right') === 404, 60);
});
