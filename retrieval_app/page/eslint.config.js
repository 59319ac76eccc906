import js from '@eslint/js';
import globals from 'globals';

export default [
  js.configs.recommended,
  {
    files: ['static/**/*.js'],
    languageOptions: {globals: globals.browser},
    rules: {
      curly: ['error', 'multi-line'],
      eqeqeq: 'error',
      'max-lines': ['error', 400],
      'no-console': ['error', {allow: ['error']}],
      'no-else-return': 'error',
      'no-shadow': 'error',
      'no-unused-expressions': ['error', {allowShortCircuit: true}],
      'no-useless-concat': 'error',
      'no-useless-return': 'error',
      'no-var': 'error',
      'object-shorthand': 'error',
      'one-var': ['error', 'never'],
      'prefer-arrow-callback': 'error',
      'prefer-const': 'error',
    },
  },
];
