// A database, consoles that are connected to it, and a browser that reports what goes wrong.
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { request } from 'node:http';
import { createRequire } from 'node:module';
import pg from 'pg';
import { chromium } from 'playwright-core';

const { FETCHQ_URL, FETCHQ_CONSOLE, CHROMIUM = '/usr/bin/chromium' } = process.env;
assert.ok(FETCHQ_URL, 'FETCHQ_URL must hold the URL of the server, with a password');
assert.ok(FETCHQ_CONSOLE, 'FETCHQ_CONSOLE must hold the path of the program');

const AXE = readFileSync(createRequire(import.meta.url).resolve('axe-core/axe.min.js'), 'utf8');

/** Returns the URL of the server with another database or user. */
export function urlOf(database, user, password) {
  const url = new URL(FETCHQ_URL);
  url.pathname = `/${database}`;
  if (user) Object.assign(url, { username: user, password });
  return url.href;
}

/** Connects to a database. */
export async function connect(database) {
  const client = new pg.Client({ connectionString: urlOf(database) });
  await client.connect();
  return client;
}

/** Makes a database anew. */
export async function createDatabase(name, { hasExtension = true } = {}) {
  const admin = await connect('postgres');
  await admin.query(`drop database if exists ${name} with (force)`);
  await admin.query(`create database ${name}`);
  await admin.end();
  const client = await connect(name);
  if (hasExtension) await client.query('create extension fetchq');
  return client;
}

/** The first column of the first row. */
export async function value(client, sql, params = []) {
  const { rows } = await client.query({ text: sql, values: params, rowMode: 'array' });
  return rows[0]?.[0];
}

/** Polls until something is as it should be, up to a deadline. */
export async function until(what, check, seconds = 20) {
  const deadline = Date.now() + seconds * 1000;
  for (;;) {
    const last = await check();
    if (last) return last;
    if (Date.now() > deadline) assert.fail(`waited in vain: ${what}`);
    await new Promise((wake) => setTimeout(wake, 100));
  }
}

/** Starts a console on a free port, of a loopback address unless the options name another one. */
export async function startConsole(urls, ...options) {
  const listen = options.includes('--listen') ? [] : ['--listen', '127.0.0.1:0'];
  const args = ['serve', ...listen, ...urls.flatMap((url) => ['--url', url]), ...options];
  const child = spawn(FETCHQ_CONSOLE, args, { stdio: ['ignore', 'ignore', 'pipe'], env: { ...process.env, FETCHQ_URL: '' } });
  let log = '';
  child.stderr.on('data', (data) => { log += data; });
  const ended = new Promise((end) => child.on('exit', end));
  const address = await until('the console says its address', () => {
    assert.equal(child.exitCode, null, `the console ended: ${log}`);
    return /(http:\/\/[0-9.:]+)\//.exec(log)?.[1];
  });
  return { address, log: () => log, stop: async () => { child.kill('SIGTERM'); return ended; } };
}

/** Runs the program to its end. One that does not end is ended, and has no code. */
export async function run(...args) {
  const child = spawn(FETCHQ_CONSOLE, args, { stdio: ['ignore', 'pipe', 'pipe'] });
  let text = '';
  for (const stream of [child.stdout, child.stderr]) stream.on('data', (data) => { text += data; });
  const late = setTimeout(() => child.kill(), 20_000);
  const code = await new Promise((end) => child.on('exit', end));
  clearTimeout(late);
  return { code, text };
}

/** Sends a request with headers that a browser would not allow, from an address of this machine. */
export function send(address, path, { method = 'GET', headers = {}, body = '', from } = {}) {
  return new Promise((done, fail) => {
    const sent = request(`${address}${path}`, { method, headers, localAddress: from, agent: false }, (answer) => {
      let text = '';
      answer.on('data', (data) => { text += data; });
      answer.on('end', () => done({ status: answer.statusCode, headers: answer.headers, text }));
    });
    sent.on('error', fail);
    sent.end(body);
  });
}

/** Starts a browser. */
export function startBrowser() {
  const args = ['--no-sandbox', '--disable-gpu', '--disable-quic', '--no-first-run', '--disable-background-networking',
    '--disable-component-update', '--disable-sync', '--disable-dev-shm-usage'];
  return chromium.launch({ executablePath: CHROMIUM, args });
}

/**
 * Opens a page in a context of its own: another person. What the browser complains about is in
 * `complaints`: errors of scripts, violations of the content security policy, dialogs, requests to
 * other hosts.
 */
export async function person(browser, options = {}) {
  const context = await browser.newContext({ viewport: { width: 1280, height: 900 }, ...options });
  const page = await context.newPage();
  const complaints = [];
  await page.addInitScript(() => {
    addEventListener('securitypolicyviolation', (event) => {
      console.error(`CSP ${event.violatedDirective} ${event.blockedURI} ${event.sourceFile}:${event.lineNumber}`);
    });
  });
  page.on('console', (message) => {
    // The browser itself says that of every answer with a status of 400 or more.
    if (message.type() === 'error' && !message.text().startsWith('Failed to load resource')) complaints.push(message.text());
  });
  page.on('pageerror', (error) => complaints.push(String(error)));
  page.on('dialog', (dialog) => { complaints.push(`a dialog: ${dialog.message()}`); dialog.dismiss(); });
  page.on('request', (request) => {
    if (!/^http:\/\/(127\.0\.0\.1|localhost)[:/]/.test(request.url())) complaints.push(`a request to ${request.url()}`);
  });
  return { page, complaints, close: () => context.close() };
}

/** Fails if axe finds a violation in the page, or the browser has complained. */
export async function check({ page, complaints }) {
  await page.evaluate(AXE);
  const { violations } = await page.evaluate(() => globalThis.axe.run(document, {
    runOnly: ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa', 'wcag22aa', 'best-practice'],
  }));
  const found = violations.map(({ id, help, nodes }) => `${id}: ${help}: ${nodes.slice(0, 3).map((node) => node.html).join(' | ')}`);
  assert.deepEqual(found, [], `axe on ${page.url()}`);
  assert.deepEqual(complaints, [], `the browser on ${page.url()}`);
  // The page itself is never wider than the window: wide tables scroll in themselves.
  const excess = await page.evaluate(() => document.documentElement.scrollWidth - document.documentElement.clientWidth);
  assert.ok(excess <= 0, `${page.url()} is ${excess} pixels wider than the window`);
}
