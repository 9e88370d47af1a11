import { run } from './suite.js';

run('4.1.1');
