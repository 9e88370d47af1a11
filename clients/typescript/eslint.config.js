import js from '@eslint/js';
import { defineConfig } from 'eslint/config';
import tseslint from 'typescript-eslint';

export default defineConfig(
  { ignores: ['dist', 'out', 'tests/pages', 'docs', 'node_modules', 'try*'] },
  js.configs.recommended,
  ...tseslint.configs.strictTypeChecked,
  ...tseslint.configs.stylisticTypeChecked,
  {
    languageOptions: {
      parserOptions: { projectService: { allowDefaultProject: ['eslint.config.js', 'tests/extract.mjs'] } },
    },
    rules: {
      '@typescript-eslint/no-confusing-void-expression': ['error', { ignoreArrowShorthand: true }],
      // Rows of the database and headers are read by the names of their columns.
      '@typescript-eslint/dot-notation': 'off',
      '@typescript-eslint/restrict-template-expressions': ['error', { allowNumber: true }],
      // An outcome can be thrown.
      '@typescript-eslint/only-throw-error': 'off',
      '@typescript-eslint/prefer-promise-reject-errors': 'off',
      'no-control-regex': 'off',
    },
  },
  {
    files: ['tests/**', 'conformance/**', 'bench/**'],
    rules: {
      '@typescript-eslint/no-confusing-void-expression': ['error', { ignoreArrowShorthand: true }],
      // node:test returns promises that need no await.
      '@typescript-eslint/no-floating-promises': 'off',
      // Handlers and commands are asynchronous by their type.
      '@typescript-eslint/require-await': 'off',
    },
  },
);
