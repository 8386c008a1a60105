// Package generators is the folder of the test that others can generate clients from the lexicons.
// It generates clients with indigo's lexgen (Go) and, where their npm packages are installed, with
// @atproto/lex-cli and @atproto/lex (TypeScript). It compiles them, calls every method of a booted
// server with them, and has them validate the answers.
//
// testdata/indigo and typescript hold the programs that make the calls. They read the calls from a
// file that the test writes, and print a line of JSON for each.
package generators
