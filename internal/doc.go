// Package internal is the folder of tools that own no table of the domain: pools of connections,
// workers, limits, tokens, the private PostgreSQL, and helpers of tests.
//
// A package here may import only internal. Generators and helpers of tests are exceptions, named in
// internal/imports. Every folder may import it.
package internal
