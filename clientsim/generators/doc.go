// Package generators tests that others can generate clients from the lexicons. The test generates
// clients with indigo's lexgen (Go). Where the npm packages are installed, it also generates
// clients with @atproto/lex-cli and @atproto/lex (TypeScript). It compiles the clients. The clients
// then call every method of a booted server and validate the answers.
//
// testdata/indigo and typescript hold the programs that make the calls. The programs read the calls
// from a file that the test writes, and print a line of JSON for each call.
package generators
